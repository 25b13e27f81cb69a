"""The manifest of a commit: its content and the digest of every bit. Written last, it makes the commit real."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NoReturn

from samebits import _digest as digests
from samebits.checkpoint._manifest_checks import SCHEMA, check_fields, check_schema, samebits_version
from samebits.checkpoint._tensor_layout import FileLayout
from samebits.checkpoint._unsavable import unsavable
from samebits.checkpoint._writer.commit_folder import TENSORS
from samebits.checkpoint._writer.manifest_template import Commit, ManifestTemplate
from samebits.errors import CorruptCommitError, UnsavableStateError

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
    """Name -> dtype, shape, digest of the bytes, and stride where it is not the contiguous one."""
    files: Mapping[str, Mapping[str, int]]
    parent: str | None
    """Digest of the commit before this one."""
    samebits: str = ""
    """The version that wrote it."""
    schema: int = SCHEMA
    rolling: str | None = None
    """Rolling digest of the batches and losses of the run up to here."""
    value: float | None = None
    """The value that `keep_best` compares, smaller is better; None where this state was not measured."""

    @cached_property
    def _body(self) -> bytes:
        return canonical_json({field.name: getattr(self, field.name) for field in fields(self)}).encode()

    @cached_property
    def digest(self) -> str:
        """Digest of the canonical JSON (sorted keys, no spaces) of all fields."""
        return digests.of_bytes(self._body)

    def to_bytes(self) -> bytes:
        """Returns the content of the file: the canonical JSON of all fields and `digest`, which sorts first."""
        return _file(self.digest, self._body)

    @property
    def commit(self) -> Commit:
        """The facts that the next commit needs about this one."""
        return Commit(self.step, self.digest, replace(self, parent=None).digest)

    @classmethod
    def from_bytes(cls, data: bytes, file: object = "manifest.json") -> Manifest:
        """Returns the manifest that was written as `data`; `file` is named in errors.

        Raises:
            CorruptCommitError: a bit differs from the output of `to_bytes`.
            NewerCommitError: it is whole, and of a later schema.
        """
        values = _parse(data, file)
        values.pop("digest", None)
        try:
            body = canonical_json(values).encode()
        except (ValueError, RecursionError) as error:
            raise CorruptCommitError(f"{file} is no manifest: {error!r}") from error
        if _file(digests.of_bytes(body), body) != data:  # with a key twice, too
            raise CorruptCommitError(f"{file} does not have the digest it was written with")
        check_schema(values, file)
        try:
            check_fields(values)
            return cls(**values)
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise CorruptCommitError(f"{file} is no manifest: {error!r}") from error


def _file(digest: str, body: bytes) -> bytes:
    return b'{"digest":"' + digest.encode() + b'",' + body[1:]


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
) -> ManifestTemplate:
    """Returns the manifest of tensors with this layout, without digests; texts are canonical JSON.

    Raises:
        UnsavableStateError: the plain part of the state is too large.
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
    """Raises UnsavableStateError unless `value` survives a round trip through JSON: tuples, NaN and odd keys do not."""
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
