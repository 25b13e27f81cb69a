"""Leaves of a component: names, and one 8-byte hash for each, of tensors, arrays, plain and nested values."""

from __future__ import annotations

import dataclasses
import decimal
import enum
import fractions
import marshal
import pathlib
import re
import uuid
from collections.abc import Iterator, Mapping
from datetime import date, time, timedelta
from typing import Any, NamedTuple

import numpy as np
import torch
import xxhash

from samebits import _digest as digest
from samebits._byte_digest import of_bytes
from samebits._context import process
from samebits._dtensors import local

PLAIN = frozenset({int, float, bool, str, bytes, complex, type(None)})
CONSTANTS = (
    *(enum.Enum, pathlib.PurePath, decimal.Decimal, fractions.Fraction, uuid.UUID, re.Pattern, range, slice),
    *(date, time, timedelta),
)
"""Classes of values without parts that never change; a variable may come to hold another one."""
_DEPTH = 6


class Leaves(NamedTuple):
    """The leaves of one component: `hashes` has 8 bytes for each of `names`."""

    names: tuple[str, ...]
    hashes: bytes

    def digest(self) -> str:
        return of_bytes("\n".join(self.names).encode(), self.hashes)

    def by_name(self) -> dict[str, bytes]:
        return {name: self.hashes[8 * at : 8 * (at + 1)] for at, name in enumerate(self.names)}


def plain(value: Any) -> bytes:
    """Returns the hash of a plain value, or of sequences of them (marshal 2: no back references)."""
    return xxhash.xxh3_64_digest(marshal.dumps(_without_folders(value), 2))


def _without_folders(value: Any) -> Any:
    """Returns a plain value, or a sequence of them, as it is wherever a check has put the folders."""
    folders = process.overrides.folders
    if folders is None:
        return value
    if type(value) is str:
        return folders.sub("", value)
    return type(value)(map(_without_folders, value)) if type(value) in (list, tuple) else value


def leaf(value: Any) -> bytes:
    """Returns the hash of a plain value, constant, tensor or array; others count by type, not by address."""
    if type(value) in PLAIN:
        return plain(value)
    if isinstance(value, CONSTANTS):
        text = value._name_ if isinstance(value, enum.Enum) else repr(value)
        return plain([type(value).__qualname__, text])
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, np.ndarray | np.generic):
        return digest.leaf(np.asarray(value) if isinstance(value, np.generic) else value).to_bytes(8, "big")
    return plain(f"{type(value).__module__}.{type(value).__qualname__}")


def _tensor(value: torch.Tensor) -> bytes:
    """Returns `digest.leaf`, with a shortcut for dense, contiguous CPU tensors of a type NumPy has.

    A tensor on the meta device has no bytes: only type and shape count. Of a DTensor
    the bytes count that this process has.
    """
    value = local(value)
    if value.is_meta:
        return plain(("meta", str(value.dtype), tuple(value.shape)))
    try:
        array: Any = value.detach().numpy()
        if array.flags.c_contiguous:
            return xxhash.xxh3_64_digest(array, digest.seed_of(value.dtype, value.shape))
    except (TypeError, RuntimeError):
        pass
    return digest.leaf(value).to_bytes(8, "big")


class _Hash(bytes):
    """The hash of a part that is not taken apart."""

    __slots__ = ()


def nested(value: Any, path: str = "") -> Iterator[tuple[str, bytes]]:
    """Yields (path, hash) of every leaf of mappings, sequences, dataclasses and plain objects' attributes."""
    for name, one, parts in digest.walk(value, path, _parts_of, _DEPTH):
        if parts is None:
            yield _without_folders(name), one if type(one) is _Hash else leaf(one)


def _parts_of(value: Any) -> digest.Parts | None:
    if type(value) in _WHOLE or isinstance(value, _TENSORS):
        return None
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, list | tuple):
        if len(value) > 8 and set(map(type, value)) <= PLAIN:
            return [(digest.SAME_PATH, _Hash(plain(list(value))))]
        return enumerate(value)
    if isinstance(value, set | frozenset):
        return [(digest.SAME_PATH, _Hash(plain(sorted(leaf(item) for item in value))))]
    if dataclasses.is_dataclass(value) or (hasattr(value, "__dict__") and not callable(value)):
        return [(digest.SAME_PATH, dict(vars(value)))]
    return None


_WHOLE = PLAIN | {_Hash}
_TENSORS = torch.Tensor, np.ndarray, np.generic


def of_nested(value: Any, path: str = "") -> Leaves:
    """Returns `nested` as one component."""
    found = list(nested(value, path))
    return Leaves(tuple(name for name, _ in found), b"".join(hashed for _, hashed in found))
