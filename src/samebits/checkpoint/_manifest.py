"""The manifest of a commit: its content and the digest of every bit. Written last, it makes the commit real.

A reader checks that it holds only what samebits writes. Digests cannot show that: forgers compute them, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NoReturn

from samebits._byte_digest import of_bytes
from samebits._context import VERSION
from samebits._objects.memory import are_near
from samebits.checkpoint._codec import unsavable
from samebits.checkpoint._safetensors_file import FileLayout
from samebits.checkpoint._sharded_tensors import rows_of
from samebits.checkpoint._writer.commit_folder import TENSORS, Commit, ManifestTemplate, note_entry, signed
from samebits.errors import CorruptCommitError, NewerCommitError, UnsavableStateError

SCHEMA, IN_PARTS = 1, 2
"""Of a commit with one file of tensors, and of one with a file for each rank."""
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
    """Raises NewerCommitError for a later schema, CorruptCommitError for any other that is not read."""
    schema = values.get("schema")
    if type(schema) is int and schema in (SCHEMA, IN_PARTS):
        return
    kind = NewerCommitError if type(schema) is int and schema > IN_PARTS else CorruptCommitError
    raise kind(
        f"{file} has schema version {schema!r}, written by samebits {values.get('samebits')!r}; this "
        f"samebits {samebits_version()} reads versions up to {IN_PARTS}. Read it with the one that wrote it."
    )


def check_fields(values: Mapping[str, Any]) -> None:
    """Raises KeyError, TypeError or ValueError for a missing or wrong field, or a file outside the folder."""
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
    for name, kind in kinds.items():
        if not isinstance(values[name], kind):
            raise TypeError(f"{name} is a {type(values[name]).__name__}")
    if values["rolling"] is not None and not ROLLING.fullmatch(values["rolling"]):
        raise ValueError(f"rolling {values['rolling']!r:.100}")
    if isinstance(values["value"], int) and abs(values["value"]) >= LIMIT:
        raise ValueError("value is larger than any float")
    for name, entry in values["files"].items():
        if not FILE_NAME.fullmatch(name) or not isinstance(entry, dict) or not _is_count(entry.get("bytes")):
            raise ValueError(f"file {name!r}: {entry!r:.100}")
    for name, entry in values["tensors"].items():
        if not _is_tensor_entry(entry) or not _has_parts(entry, values):
            raise ValueError(f"tensor {name!r}: {entry!r:.100}")


def _is_tensor_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or not all(isinstance(entry.get(key), str) for key in ("dtype", "digest")):
        return False
    shape: Any = entry.get("shape")
    if not _are_counts(shape):
        return False
    return "stride" not in entry or (_are_counts(entry["stride"]) and are_near(shape, entry["stride"]))


def _has_parts(entry: Any, values: Mapping[str, Any]) -> bool:
    """Returns True for an entry whose parts have each row once and in order, or which needs none."""
    parts, blocks = entry.get("parts"), entry.get("blocks")
    if values["schema"] == SCHEMA:
        return parts is blocks is None
    if not isinstance(parts, list) or not isinstance(blocks, str) or not re.fullmatch("[0-9a-f]*", blocks):
        return False
    row = 0
    for part in parts:
        if not _are_counts(part) or len(part) != 3 or part[0] >= len(values["files"]):
            return False
        if part[1] != row or part[2] == 0:
            return False
        row += part[2]
    return row == rows_of(entry["shape"])


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and len(values) <= MAX_DIMENSIONS and all(map(_is_count, values))


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < LIMIT


MAX_MANIFEST_BYTES = 1 << 28


def marker_text() -> str:
    """Returns the content of the file that marks a run directory."""
    return json.dumps({"samebits": samebits_version()}) + "\n"


@dataclass(frozen=True)
class Manifest:
    """The content of one commit. Two manifests are equal exactly when their digests are."""

    step: int
    """Number of batches of the whole run before this commit."""
    position: Mapping[str, Any]
    finished: bool
    program: Mapping[str, Any]
    """The program that made the commit: objects, shapes, seed, pipeline."""
    environment: Mapping[str, Any]
    tree: Any
    """The plain half of the state, as `encode` returns it."""
    tensors: Mapping[str, Mapping[str, Any]]
    """Name -> dtype, shape, digest of the bytes, and stride where it is not the contiguous one.

    In a commit in parts: `parts` (number of the file, first row, rows), `blocks` (the digests of the blocks).
    """
    files: Mapping[str, Mapping[str, Any]]
    """Name -> bytes; of a part rank and host of its writer, too."""
    parent: str | None
    """Digest of the commit before this one."""
    samebits: str = ""
    """The version that wrote it."""
    schema: int = SCHEMA
    rolling: str | None = None
    """Rolling digest of the batches and losses of the run up to here."""
    value: float | None = None
    """The value that `keep_best` compares, smaller is better; None where this state was not measured."""
    note: str | None = field(default=None, compare=False)
    """The text that a resume compares besides the state; it has a digest of its own."""

    @cached_property
    def _body(self) -> bytes:
        return canonical_json(
            {one.name: getattr(self, one.name) for one in fields(self) if one.compare}
        ).encode()

    @cached_property
    def digest(self) -> str:
        """Digest of the canonical JSON (sorted keys, no spaces) of all fields."""
        return of_bytes(self._body)

    def to_bytes(self) -> bytes:
        """Returns the content of the file: canonical JSON of all fields and `digest`, which sorts first."""
        return signed(self.digest, note_entry(self.note), self._body)

    @property
    def in_parts(self) -> bool:
        """True if the tensors are in a file for each rank."""
        return self.schema == IN_PARTS

    @property
    def nbytes(self) -> int:
        return sum(entry["bytes"] for entry in self.files.values())

    @property
    def commit(self) -> Commit:
        """The facts that the next commit needs about this one."""
        return Commit(self.step, self.digest, replace(self, parent=None).digest)

    @classmethod
    def from_bytes(cls, data: bytes, file: object = "manifest.json") -> Manifest:
        """Returns the manifest that was written as `data`; `file` is named in errors.

        Raises CorruptCommitError if a bit differs from `to_bytes`, NewerCommitError for a later schema.
        """
        values = _parse(data, file)
        values.pop("digest", None)
        note = values.pop("note", None)
        text = note[1] if isinstance(note, list) and len(note) == 2 and isinstance(note[1], str) else None
        try:
            body = canonical_json(values).encode()
            whole = signed(of_bytes(body), note_entry(text), body)
        except (ValueError, RecursionError) as error:
            raise CorruptCommitError(f"{file} is no manifest: {error!r}") from error
        if whole != data:  # with a key twice, too
            raise CorruptCommitError(f"{file} does not have the digest it was written with")
        check_schema(values, file)
        try:
            check_fields(values)
            return cls(**values, note=text)
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise CorruptCommitError(f"{file} is no manifest: {error!r}") from error


def manifest_template(
    layout: FileLayout,
    *,
    step: int,
    finished: bool,
    tree: str,
    position: str,
    program: str,
    environment: str,
    rolling: str | None,
    value: float | None,
    note: str | None = None,
) -> ManifestTemplate:
    """Returns the manifest of tensors with this layout, without digests; texts are canonical JSON.

    Raises UnsavableStateError if the plain part of the state is too large.
    """
    template = ManifestTemplate(
        step,
        f'{{"environment":{environment},"files":{{"{TENSORS}":{{"bytes":{layout.size}}}}},'
        f'"finished":{"true" if finished else "false"},"parent":',
        f',"position":{position},"program":{program},"rolling":{canonical_json(rolling)},"samebits":'
        f'{canonical_json(samebits_version())},"schema":{SCHEMA},"step":{step},"tensors":',
        f',"tree":{tree},"value":{canonical_json(value)}}}',
        layout.pieces,
        layout.order,
        note_entry(note),
    )
    if template.size > MAX_MANIFEST_BYTES:
        raise UnsavableStateError(
            f"the plain part of the state takes {template.size} bytes, more than {MAX_MANIFEST_BYTES}. "
            "Keep long lists of numbers as tensors or NumPy arrays."
        )
    return template


def canonical_json(value: Any) -> str:
    """Returns the canonical JSON of a value: sorted keys, no spaces. Raises ValueError for NaN."""
    return _ENCODER.encode(value)


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def check_plain(value: Any, path: tuple[Any, ...]) -> None:
    """Raises UnsavableStateError unless `value` survives JSON and back: tuples, NaN and odd keys do not."""
    kind = type(value)
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise unsavable((*path, key), key, "a key that is not a string")
            check_plain(item, (*path, key))
    elif kind is list:
        for number, item in enumerate(value):
            check_plain(item, (*path, number))
    elif kind is float and value - value != 0:
        raise unsavable(path, value, f"the float {value}, which JSON does not have")
    elif kind not in (str, int, bool, float, type(None)):
        raise unsavable(path, value)


def _parse(data: bytes, file: object) -> dict[str, Any]:
    try:
        values = json.loads(data, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        raise CorruptCommitError(f"{file} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise CorruptCommitError(f"{file} is no manifest")
    return values


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number")
