"""The dtypes that numbers are rounded to, and the rule, in integers, of the next number down or up.

A float32 is m 2**(e - 23) with an integer m < 2**24, a number of the smaller format n 2**(E - digits) with E = max(e, least).
So n is m shifted to the right by s = 23 - digits + E - e bits. What falls out is a fraction f of the step, and n goes up by one
where f + u >= 1, u being uniform in [0, 1): with probability f. As consecutive numbers have consecutive codes, n + 1 is
right at a power of two, and where the subnormal numbers end, too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Format:
    """A floating-point format with a sign bit, exponents from `least`, and `digits` digits after the point."""

    name: str
    digits: int
    least: int
    overflow: int
    """The first code (of a magnitude) past the largest finite number, which all that is larger becomes too."""
    nan: int
    """Bits that a NaN has, besides its sign and as many upper bits of its payload as there is room for."""
    width: int
    """Random bytes for each element: a word decides about 32 bits that fall out, a half of it about 16."""

    @property
    def size(self) -> int:
        """Bytes of a number."""
        return 1 if self.name.startswith("float8") else 2


FORMATS = {
    torch.bfloat16: Format("bfloat16", 7, -126, 0x7F80, 0x7FC0, 2),
    torch.float16: Format("float16", 10, -14, 0x7C00, 0x7E00, 4),
    torch.float8_e4m3fn: Format("float8_e4m3fn", 3, -6, 0x7F, 0x7F, 4),
    torch.float8_e5m2: Format("float8_e5m2", 2, -14, 0x7C, 0x7E, 4),
}
