"""float32 rounded in kernels by random bits: the rule, in integers, of the next number down or up.

A float32 is m 2**(e - 23) with an integer m < 2**24, a number of the smaller format n 2**(E - digits) with E
= max(e, least). So n is m shifted to the right by s = 23 - digits + E - e bits. The dropped bits are a
fraction f of the step, and n goes up by one where f + u >= 1, u being uniform in [0, 1): with probability f.
As consecutive numbers have consecutive codes, n + 1 is right at a power of two and where subnormals end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from samebits._native import inlined
from samebits._native.float_bits import bits_32

_HIDDEN, _MANTISSA = np.uint32(1 << 23), np.uint32((1 << 23) - 1)
_INFINITY = np.uint32(0x7F800000)
_32, _LONGEST = np.uint64(32), np.uint32(63)


# In this file, with the kernels, since the digest of the kernels' sources names their cache.
@dataclass(frozen=True)
class Format:
    """A floating-point format: a sign bit, exponents from `least`, `digits` digits after the point."""

    name: str
    digits: int
    least: int
    overflow: int
    """The largest code of a magnitude, for all above it: infinity, or the largest number without one."""
    nan: int
    """Bits of a NaN, besides its sign and as many upper bits of its payload as fit."""
    width: int
    """Random bytes for each element: a word decides about 32 dropped bits, half a word about 16."""

    @property
    def size(self) -> int:
        """Bytes of a number."""
        return 1 if self.name.startswith("float8") else 2


FORMATS = {
    torch.bfloat16: Format("bfloat16", 7, -126, 0x7F80, 0x7FC0, 2),
    torch.float16: Format("float16", 10, -14, 0x7C00, 0x7E00, 4),
    torch.float8_e4m3fn: Format("float8_e4m3fn", 3, -6, 0x7E, 0x7F, 4),
    torch.float8_e5m2: Format("float8_e5m2", 2, -14, 0x7C, 0x7E, 4),
}


@inlined
def bfloat16_by(x: Any, half: Any) -> Any:
    """Returns a bfloat16 next to the float32 x: adding 16 random bits carries into the upper half or not."""
    b = np.uint32(bits_32(x))
    rounded = np.uint32(b + np.uint32(half)) >> np.uint32(16)
    quiet = (b >> np.uint32(16)) | np.uint32(0x40)
    return np.uint16(rounded if x == x else quiet)  # noqa: PLR0124 (not a number)


def rounding_to(form: Format) -> Any:
    """Returns a function of a float32 and 32 random bits: the code of a number of the format next to it."""
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
