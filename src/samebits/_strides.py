"""Strides: of a contiguous tensor, and of one whose elements lie apart in memory."""

import math
from collections.abc import Sequence

import numpy as np
import torch


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the strides, in elements, of a tensor that torch makes with this shape.

    >>> contiguous_strides((2, 3, 5))
    (15, 5, 1)
    """
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


_GAPS, _ROOM = 64, 1 << 22


def reach(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Returns the distance from the first to the last element in memory, in the unit of the strides.

    >>> reach((2, 3), (6, 2))
    10
    """
    return sum(max(size - 1, 0) * abs(step) for size, step in zip(shape, strides, strict=True))


def span(value: torch.Tensor | np.ndarray) -> tuple[int, int]:
    """Returns where the memory of a dense tensor or an array begins and ends: bytes from its first element.

    >>> span(np.zeros((2, 3))[:, ::-1])
    (-16, 32)
    """
    if isinstance(value, np.ndarray):
        size, strides, item = value.size, value.strides, value.itemsize
    else:
        item = value.element_size()
        size, strides = value.numel(), [step * item for step in value.stride()]
    if not size:
        return 0, 0
    before = sum((n - 1) * min(step, 0) for n, step in zip(value.shape, strides, strict=True))
    return before, before + reach(value.shape, strides) + item


def are_near(shape: Sequence[int], strides: Sequence[int], unit: int = 1) -> bool:
    """Returns True if memory with these strides may be allocated: its gaps are not much larger than it.

    `unit`: the distance of two neighbours (1 for strides in elements, their size for strides in bytes).
    """
    if len(shape) != len(strides):
        return False
    return reach(shape, strides) // unit <= _GAPS * math.prod(shape) + _ROOM


def with_strides(array: np.ndarray, strides: Sequence[int]) -> np.ndarray:
    """Returns a copy of an array with these strides, in bytes, in memory of its own.

    Raises ValueError for strides that no array of its values has, or that lie far apart.
    """
    shape, item = array.shape, array.itemsize
    if not all(type(step) is int for step in strides) or not are_near(shape, strides, item):
        raise ValueError(f"strides {strides} of shape {shape}")
    begin = sum((size - 1) * max(-step, 0) for size, step in zip(shape, strides, strict=True))
    memory = np.zeros(reach(shape, strides) + item, np.uint8)
    copy = np.ndarray(shape, array.dtype, memory, begin, strides)
    copy[...] = array
    if copy.tobytes() != array.tobytes():
        raise ValueError(f"strides {strides}: places that share memory have different values")
    return copy
