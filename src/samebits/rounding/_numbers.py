"""Numbers in kernels: what is stored, as float32, and float32 rounded to what is stored, given random bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from samebits.kernels import inlined
from samebits.random._elementary import bits_32
from samebits.rounding.formats import Format

_HIDDEN, _MANTISSA = np.uint32(1 << 23), np.uint32((1 << 23) - 1)
_INFINITY = np.uint32(0x7F800000)
_32, _LONGEST = np.uint64(32), np.uint32(63)


@inlined
def bfloat16_by(x: Any, half: Any) -> Any:
    """The code of a bfloat16 next to the float32 x: the sum with 16 random bits carries into the upper half, or not."""
    b = np.uint32(bits_32(x))
    rounded = np.uint32(b + np.uint32(half)) >> np.uint32(16)
    quiet = (b >> np.uint32(16)) | np.uint32(0x40)
    return np.uint16(rounded if x == x else quiet)  # noqa: PLR0124 (not a number)


def rounding_to(form: Format) -> Any:
    """A function of a float32 and 32 random bits: the code of a number of the format next to it."""
    dropped = np.uint32(23 - form.digits)
    digits, size = np.uint32(form.digits), np.uint32(8 * form.size)
    least = np.uint32(form.least + 127)
    overflow, nan = np.uint32(form.overflow), np.uint32(form.nan)
    code = np.uint8 if form.size == 1 else np.uint16

    @inlined
    def rounded_by(x: Any, word: Any) -> Any:
        b = np.uint32(bits_32(x))
        a = b & np.uint32(0x7FFFFFFF)
        exponent = a >> np.uint32(23)
        m = np.uint32((a & _MANTISSA) | (_HIDDEN if exponent != 0 else np.uint32(0)))
        exponent = max(exponent, np.uint32(1))
        below = np.uint32(least - exponent) if exponent < least else np.uint32(0)
        above = np.uint32(exponent - least) if exponent > least else np.uint32(0)
        shift = min(np.uint32(dropped + below), _LONGEST)
        n = ((np.uint64(m) << _32) >> np.uint64(shift)) + np.uint64(word)
        magnitude = min(np.uint32(np.uint32(n >> _32) + np.uint32(above << digits)), overflow)
        magnitude = magnitude if a <= _INFINITY else np.uint32(((a & _MANTISSA) >> dropped) | nan)
        sign = (b >> np.uint32(31)) << np.uint32(size - np.uint32(1))
        return code(magnitude | sign)

    return rounded_by
