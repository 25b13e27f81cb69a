"""Digests of bits: equal digest, equal dtype, shape and bytes. NaN payloads and signed zeros count.

xxh3-128 (about 17 GB/s on one core) finds differences and flipped bytes; it does not resist an attacker.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import xxhash
from torch.utils.weak import WeakTensorKeyDictionary

from samebits._byte_digest import of_bytes
from samebits._dtensors import local

_LARGE = 1 << 24
"""Bytes of a state from which on threads pay off."""


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """Returns the bytes of any dense tensor on any device, as a C-contiguous array (a view if possible).

    Those of a DTensor are the bytes that this process has: no collective begins.
    """
    tensor = local(tensor)
    try:
        array = tensor.numpy(force=True)
        return array if array.flags.c_contiguous else array.copy()
    except TypeError:  # bfloat16, float8 and other types that NumPy does not know
        host = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        # (strided anew: torch calls one element of any stride contiguous, and then does not view its bytes)
        return host.reshape(-1).as_strided((host.numel(),), (1,)).view(torch.uint8).numpy()


def leaf(value: Any) -> int:
    """Returns a 64-bit hash of a leaf (a tensor, an array, a plain value); type, dtype and shape count."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            return leaf([value.layout.__repr__(), *_sparse_parts(value)])
        array = array_of(value)
        return xxhash.xxh3_64_intdigest(array, seed_of(value.dtype, value.shape))  # type: ignore[arg-type]
    if isinstance(value, np.ndarray) and value.dtype.kind != "O":
        array = np.ascontiguousarray(value)
        plain = array.view(np.uint8) if array.dtype.kind in "Mm" else array
        return xxhash.xxh3_64_intdigest(plain, _text(f"{value.dtype}{value.shape}"))  # type: ignore[arg-type]
    if isinstance(value, set | frozenset) or parts_of(value) is not None:
        return _text("".join(f"{path}={hashed:016x};" for path, hashed in leaves(value)))
    if isinstance(value, bytes | bytearray):
        return xxhash.xxh3_64_intdigest(bytes(value))
    if isinstance(value, float):
        value = value.hex()
    return _text(f"{type(value).__name__}:{value!r}")


Parts = Iterable[tuple[Any, Any]]
_ATOMS = frozenset({bool, int, float, str, bytes, type(None), torch.Tensor, torch.nn.Parameter, np.ndarray})
SAME_PATH = object()
"""The key of a part that has the path of its container."""


def parts_of(value: Any) -> Parts | None:
    """Returns keys and values of a mapping, indices and items of a sequence, fields; None for a leaf.

    What a `repr` would give of a deque or a dataclass instance leaves out the middle of a large tensor.
    """
    if type(value) in _ATOMS:  # nearly all are: the tests below cost more
        return None
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, deque):
        return [*enumerate(value), ("maxlen", value.maxlen)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
        return [(name, getattr(value, name)) for name in names]
    return enumerate(value) if isinstance(value, list | tuple) else None


def walk(
    value: Any, path: str = "", parts_of: Callable[[Any], Parts | None] = parts_of, levels: int = sys.maxsize
) -> Iterator[tuple[str, Any, Parts | None]]:
    """Yields (path, value, parts) for all of a nested state, containers before parts; for a leaf None.

    A path joins keys and indices by dots: `state.0.exp_avg`. Values at depth `levels` are leaves.

        >>> [path for path, _, parts in walk({"a": [1, 2]}) if parts is None]
        ['a.0', 'a.1']
    """
    parts = parts_of(value) if levels else None
    yield path, value, parts
    for key, item in parts or ():
        below = path if key is SAME_PATH else f"{path}.{key}" if path else str(key)
        yield from walk(item, below, parts_of, levels - 1)


def leaves(value: Any, path: str = "") -> list[tuple[str, int]]:
    """Returns (path, 64-bit hash) of every leaf of nested mappings and sequences, in order of the structure.

    A set is hashed sorted; an empty container is a leaf.
    """
    found: list[tuple[str, int]] = []
    _add_leaves(value, path, found)
    return found


def _add_leaves(value: Any, path: str, found: list[tuple[str, int]]) -> None:
    """Adds what `walk` would give; nested generators cost several times as much."""
    parts = parts_of(value)
    if parts is None or not value:
        found.append((path, _whole(value)))
    for key, item in parts or ():
        _add_leaves(item, f"{path}.{key}" if path else str(key), found)


def differing(now: Any, saved: Any, *, bits: bool = True) -> list[str]:
    """Returns the paths of the leaves of either state that the other lacks or has with other bits.

    Without `bits`, of tensors only dtype and shape are compared. A large state is hashed by several threads.
    """
    mine, theirs = (
        {path: one for path, one, parts in walk(value) if parts is None or not one} for value in (now, saved)
    )
    shared = [path for path in mine if path in theirs]
    with hash_threads() as pool:
        tensors = [one for one in mine.values() if isinstance(one, torch.Tensor)]
        size = sum(one.nbytes for one in tensors if one.layout is torch.strided)
        run = pool.map if size >= _LARGE else map
        same = run(lambda path: _are_equal(mine[path], theirs[path], bits), shared)
        equal = dict(zip(shared, same, strict=True))
    return [path for path in {**theirs, **mine} if not equal.get(path)]


def _are_equal(a: Any, b: Any, bits: bool) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        alike = (a.dtype, a.shape, a.layout) == (b.dtype, b.shape, b.layout)
        if not (alike and bits):
            return alike
        if (known := verified.get(b)) is not None:
            return of_bytes(array_of(a).reshape(-1).view(np.uint8)) == known
    return _whole(a) == _whole(b)


verified: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
"""`of_bytes` of tensors that nobody changes: views of a file that has just been verified."""


def hash_threads() -> ThreadPoolExecutor:
    """Returns threads that hash: one core does not use all of the memory's speed."""
    return ThreadPoolExecutor(min(4, os.cpu_count() or 1))


def _whole(value: Any) -> int:
    if isinstance(value, set | frozenset):
        return _text(json.dumps(sorted(map(repr, value))))
    if parts_of(value) is not None:
        return _text("{}" if isinstance(value, Mapping) else "[]")
    return leaf(value)


def of_value(value: Any) -> str:
    """Returns the digest of a tensor, an array, a plain value, or a nesting of them (mappings, sequences)."""
    return of_bytes("".join(f"{path}={hashed:016x};" for path, hashed in leaves(value)).encode())


@lru_cache(maxsize=4096)
def seed_of(dtype: torch.dtype, shape: torch.Size) -> int:
    """Returns the hash of a tensor's type and shape, from which the hash of its bytes starts."""
    return _text(f"{dtype}{tuple(shape)}")


def _text(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode())


def _sparse_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce()
        return [tensor.indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    return [tensor.to_dense()]
