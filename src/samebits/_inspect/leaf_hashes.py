"""Hashes of large values, which must cost little each time: by their ends, a sample, or torch's count of writes."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import torch
import xxhash

from samebits import _digest as digest
from samebits._inspect.tree import leaf, plain

ITEMS = 16
"""Items of a container that are followed one by one; of longer ones the length and both ends count."""
ENDS = 128
_LARGE = 1 << 16
"""Bytes from which on a tensor is hashed only when its version changed, and an array by a sample."""


def both_ends(value: Any) -> list[Any]:
    """The items of a sequence; of a long one the first and the last."""
    return list(value) if len(value) <= 2 * ENDS else [*value[:ENDS], *value[-ENDS:]]


def of_ends(value: Any) -> bytes:
    """Hash of a sequence of plain values."""
    return plain([len(value), type(value).__name__, *both_ends(value)])


def numbers(length: int) -> range | list[int]:
    """The items of a sequence that are followed."""
    return range(length) if length <= ITEMS else [*range(ITEMS // 2), *range(length - ITEMS // 2, length)]


_VERSIONS: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()
_HASHED: dict[int, tuple[int, int, bytes]] = {}


def of_tensor(value: torch.Tensor) -> bytes:
    """Hash of a tensor; of a large one again only when torch counted a write to it, or it moved."""
    if value.numel() * value.element_size() <= _LARGE or value.is_inference():
        return leaf(value)
    now = (value._version, value.data_ptr())
    if _VERSIONS.get(id(value)) is value and _HASHED[id(value)][:2] == now:
        return _HASHED[id(value)][2]
    hashed = leaf(value)
    _VERSIONS[id(value)] = value
    _HASHED[id(value)] = (*now, hashed)
    return hashed


def of_array(value: np.ndarray) -> bytes:
    """Hash of an array; of a large one of shape, type and 4,096 elements spread over it."""
    if value.nbytes <= _LARGE:
        return leaf(value)
    step = max(1, value.size // 4096)
    sample: Any = np.ascontiguousarray(
        value.reshape(-1)[::step] if value.flags.c_contiguous else value.flat[::step]
    )
    if sample.dtype.kind == "O":
        return plain(value.shape)
    return xxhash.xxh3_64_digest(sample.view(np.uint8), digest.leaf(f"{value.dtype}{value.shape}"))
