"""The memory of tensors and arrays: the bytes that a value reaches, and strides with gaps."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from samebits._dtensors import local


def span(value: torch.Tensor | np.ndarray) -> tuple[int, int]:
    """Returns where the memory of a dense value begins and ends, in bytes from its first element.

    >>> span(np.zeros((2, 3))[:, ::-1])
    (-16, 32)
    """
    if isinstance(value, np.ndarray):
        size, strides, item = value.size, value.strides, value.itemsize
    else:
        item = value.element_size()
        size, strides = value.numel(), [step * item for step in value.stride()]
    before = sum((n - 1) * min(step, 0) for n, step in zip(value.shape, strides, strict=True))
    return (before, before + reach(value.shape, strides) + item) if size else (0, 0)


def reach(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Returns the distance from the first to the last element in memory, in the unit of the strides."""
    return sum(max(size - 1, 0) * abs(step) for size, step in zip(shape, strides, strict=True))


def are_near(shape: Sequence[int], strides: Sequence[int], unit: int = 1) -> bool:
    """Returns True if the gaps are not much larger than the value; `unit`: the stride of neighbours."""
    same = len(shape) == len(strides)
    return same and reach(shape, strides) // unit <= 64 * math.prod(shape) + (1 << 22)


def with_strides(array: np.ndarray, strides: Sequence[int]) -> np.ndarray:
    """Returns a copy with these strides, in bytes. Raises ValueError for those that it cannot have."""
    if not all(type(step) is int for step in strides) or not are_near(array.shape, strides, array.itemsize):
        raise ValueError(f"strides {strides} of shape {array.shape}")
    begin = sum((size - 1) * max(-step, 0) for size, step in zip(array.shape, strides, strict=True))
    memory = np.zeros(reach(array.shape, strides) + array.itemsize, np.uint8)
    copy = np.ndarray(array.shape, array.dtype, memory, begin, strides)
    copy[...] = array
    if copy.tobytes() != array.tobytes():
        raise ValueError(f"strides {strides}: places that share memory have different values")
    return copy


def fill_tensor(live: torch.Tensor, saved: Any) -> None:
    """Copies into a tensor, an expanded one, too, which torch does not write."""
    live, saved = local(live), local(saved) if isinstance(saved, torch.Tensor) else saved
    apart = tuple(slice(None) if step else slice(1) for step in live.stride())
    with torch.no_grad():
        live[apart].copy_(saved[apart])
