"""The strides of a contiguous tensor."""

from collections.abc import Sequence


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
