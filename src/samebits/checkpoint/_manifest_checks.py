"""Checks that a manifest is of a known schema and holds only what samebits itself writes.

Digests cannot show it: a forger computes them, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from samebits._context import VERSION
from samebits.errors import CorruptCommitError, NewerCommitError

SCHEMA = 1
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
ROLLING = re.compile(r"[a-z0-9-]+:[0-9a-f]{16}")
LIMIT = 2**63
MAX_DIMENSIONS = 64
"""More than any tensor of torch's operators has."""


@cache
def samebits_version() -> str:
    """Returns the version of the installed package, or that of the sources where it is not installed."""
    try:
        return version("samebits")
    except PackageNotFoundError:
        return VERSION


def check_schema(values: Mapping[str, Any], file: object) -> None:
    """Raises NewerCommitError for a later schema, CorruptCommitError for any other than `SCHEMA`."""
    schema = values.get("schema")
    if schema == SCHEMA:
        return
    kind = NewerCommitError if type(schema) is int and schema > SCHEMA else CorruptCommitError
    raise kind(
        f"{file} has schema version {schema!r}, written by samebits {values.get('samebits')!r}; this samebits "
        f"{samebits_version()} reads version {SCHEMA}. Read it with the samebits that wrote it."
    )


def check_fields(values: Mapping[str, Any]) -> None:
    """Raises KeyError, TypeError or ValueError for a field that is missing or not of its kind, and for names that leave the folder."""
    if not _is_count(values["step"]):
        raise ValueError(f"step {values['step']!r}")
    kinds = {
        **dict.fromkeys(("position", "program", "environment", "tensors", "files"), dict),
        "finished": bool,
        "samebits": str,
        "parent": str | None,
        "rolling": str | None,
        "value": float | int | None,
    }
    for field, kind in kinds.items():
        if not isinstance(values[field], kind):
            raise TypeError(f"{field} is a {type(values[field]).__name__}")
    if values["rolling"] is not None and not ROLLING.fullmatch(values["rolling"]):
        raise ValueError(f"rolling {values['rolling']!r:.100}")
    if isinstance(values["value"], int) and abs(values["value"]) >= LIMIT:
        raise ValueError("value is larger than any float")
    for name, entry in values["files"].items():
        if not FILE_NAME.fullmatch(name) or not isinstance(entry, dict) or not _is_count(entry.get("bytes")):
            raise ValueError(f"file {name!r}: {entry!r:.100}")
    for name, entry in values["tensors"].items():
        if not _is_tensor_entry(entry):
            raise ValueError(f"tensor {name!r}: {entry!r:.100}")


def _is_tensor_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or not all(isinstance(entry.get(key), str) for key in ("dtype", "digest")):
        return False
    shape: Any = entry.get("shape")
    if not _are_counts(shape):
        return False
    return "stride" not in entry or (_are_counts(entry["stride"]) and _is_dense(shape, entry["stride"]))


def _is_dense(shape: list[int], stride: list[int]) -> bool:
    """Returns True if a tensor of that layout takes no more memory than its elements."""
    if len(shape) != len(stride):
        return False
    if 0 in shape:
        return True
    expected = 1
    for step, size in sorted((step, size) for step, size in zip(stride, shape, strict=True) if size > 1):
        if step != expected:
            return False
        expected *= size
    return True


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and len(values) <= MAX_DIMENSIONS and all(map(_is_count, values))


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < LIMIT
