"""Leaves of a component: names, and one 8-byte hash for each, of tensors, arrays, plain and nested values."""

from __future__ import annotations

import dataclasses
import marshal
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
import xxhash

from samebits import digest

PLAIN = frozenset({int, float, bool, str, bytes, complex, type(None)})
_DEPTH = 6


class Leaves(NamedTuple):
    """The leaves of one component: `hashes` has 8 bytes for each of `names`."""

    names: tuple[str, ...]
    hashes: bytes

    def digest(self) -> str:
        """One digest of names and hashes."""
        return digest.of_bytes("\n".join(self.names).encode(), self.hashes)


def plain(value: Any) -> bytes:
    """Hash of a plain value, or of sequences of them: by marshal's version 2, which has no back references."""
    return xxhash.xxh3_64_digest(marshal.dumps(value, 2))


def leaf(value: Any) -> bytes:
    """Hash of one leaf. What is neither plain nor a tensor nor an array counts by its type only: never by `repr`,
    which often holds an address.
    """
    if type(value) in PLAIN:
        return plain(value)
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, np.ndarray | np.generic):
        return digest.leaf(np.asarray(value) if isinstance(value, np.generic) else value).to_bytes(8, "big")
    return plain(f"{type(value).__module__}.{type(value).__qualname__}")


def _tensor(value: torch.Tensor) -> bytes:
    """`digest.leaf`, without a detour for what is usual: dense, contiguous, on the CPU, of a type NumPy has.

    A tensor on the meta device has no bytes: type and shape are all there is.
    """
    if value.is_meta:
        return plain(("meta", str(value.dtype), tuple(value.shape)))
    try:
        array: Any = value.detach().numpy()
        if array.flags.c_contiguous:
            return xxhash.xxh3_64_digest(array, digest.seed_of(value.dtype, value.shape))
    except (TypeError, RuntimeError):
        pass
    return digest.leaf(value).to_bytes(8, "big")


def nested(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, bytes]]:
    """(path, hash) of every leaf of mappings, sequences, dataclasses and plain objects' attributes."""
    if type(value) in PLAIN or isinstance(value, torch.Tensor | np.ndarray | np.generic) or depth == _DEPTH:
        yield path, leaf(value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from nested(item, f"{path}.{key}" if path else str(key), depth + 1)
    elif isinstance(value, list | tuple):
        if len(value) > 8 and set(map(type, value)) <= PLAIN:
            yield path, plain(list(value))
        else:
            for number, item in enumerate(value):
                yield from nested(item, f"{path}.{number}" if path else str(number), depth + 1)
    elif isinstance(value, set | frozenset):
        yield path, plain(sorted(leaf(item) for item in value))
    elif dataclasses.is_dataclass(value) or (hasattr(value, "__dict__") and not callable(value)):
        yield from nested(dict(vars(value)), path, depth + 1)
    else:
        yield path, leaf(value)


def of_nested(value: Any, path: str = "") -> Leaves:
    """`nested` as one component."""
    found = list(nested(value, path))
    return Leaves(tuple(name for name, _ in found), b"".join(hashed for _, hashed in found))
