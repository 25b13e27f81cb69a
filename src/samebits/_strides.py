"""The strides of a contiguous tensor, and of one without gaps."""

from collections.abc import Sequence
from typing import Any


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


def is_dense(tensor: Any) -> bool:
    """Returns True if the elements fill one run of memory, in any order of the dimensions."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True
