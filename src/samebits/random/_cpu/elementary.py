"""Logarithm, cosine and sine in float64 and float32 for kernels, from IEEE operations only.

The bits of the float32 forms are those of every device: they use +, -, *, and bit operations, each rounded
separately. Nothing in them may be fused (a compiler for another device needs an option for that), and a sign
is flipped as a bit, so that zeros have theirs.

Coefficients of the float64 forms: Taylor series. Coefficients of the float32 forms: minimax for the relative
error of the result (Remez's exchange on 1,500 Chebyshev points in long double); the first ones rounded to
float32 before the rest was fitted again. Error of the polynomials before rounding: log 2**-27.3, cosine
2**-31, sine 2**-25.1.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from samebits._native import inlined
from samebits._native.float_bits import bits_32, bits_64, from_bits_32, from_bits_64

_0, _1, _2 = np.uint64(0), np.uint64(1), np.uint64(2)
_MANTISSA = np.uint64(2**52 - 1)
_SQRT_HALF_BITS = np.uint64(0x3FE6A09E667F3BCD)
_ROUND_BIT = 1.5 * 2.0**52  # adding it rounds to an integer, which is then in the low bits
_LN2 = math.log(2.0)
# Taylor series: atanh(s) / s in s**2, cos(2 pi r) and sin(2 pi r) / r in r**2; highest term first. The first
# terms left out are below 2**-55 for s <= 0.172 and r <= 1/8.
_ATANH = tuple(1.0 / k for k in range(21, 0, -2))
_COS = tuple((-1) ** k * math.tau ** (2 * k) / math.factorial(2 * k) for k in range(8, -1, -1))
_SIN = tuple((-1) ** k * math.tau ** (2 * k + 1) / math.factorial(2 * k + 1) for k in range(8, -1, -1))

MANTISSA_32, SQRT_HALF_BITS_32 = np.int32(2**23 - 1), np.int32(0x3F3504F3)
ROUND_BIT_32 = np.float32(1.5 * 2.0**23)
# ln 2 in two parts; the first has nine bits, so that its product with an exponent is exact.
LN2_HIGH_32, LN2_LOW_32 = np.float32(0.693359375), np.float32(-2.12194440e-4)
# (log(1 + f) - f + f**2 / 2) / f**3 on sqrt(1/2) <= 1 + f <= sqrt(2); highest term first.
LOG_32 = tuple(
    map(
        np.float32,
        (
            -0.0764431282877922, 0.12767741084098816, -0.13159553706645966, 0.14200900985168457,
            -0.16623330116271973, 0.20001260936260223, -0.250008225440979, 0.3333333134651184,
        ),
    )
)  # fmt: skip
# cos(2 pi r) and sin(2 pi r) / r in r**2 on r <= 1/8; highest term first.
COS_32 = tuple(
    map(np.float32, (58.62105941772461, -85.42452239990234, 64.93914794921875, -19.739208221435547, 1.0))
)
SIN_32 = tuple(
    map(np.float32, (-76.77495574951172, 81.62562561035156, -41.34186553955078, 6.2831854820251465))
)
_MINUS_2, _HALF, _QUARTER, _ONE, _FOUR = (np.float32(number) for number in (-2.0, 0.5, 0.25, 1.0, 4.0))


@inlined
def log_64(u: Any) -> Any:
    """Returns log(u) = e ln 2 + 2 atanh((m - 1) / (m + 1)), with u = m 2**e and sqrt(1/2) <= m < sqrt(2)."""
    above = bits_64(u) - _SQRT_HALF_BITS
    exponent = np.float64(np.int64(above) >> 52)
    m = from_bits_64((above & _MANTISSA) + _SQRT_HALF_BITS)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    series = _ATANH[0]
    for k in range(1, 11):
        series = series * z + _ATANH[k]
    return exponent * _LN2 + 2.0 * s * series


@inlined
def cos_sin_64(turns: Any) -> Any:
    """Returns cosine and sine of 2 pi turns: reduced exactly to an eighth, then rotated by quarters."""
    shifted = 4.0 * turns + _ROUND_BIT
    quarter = bits_64(shifted)
    r = turns - 0.25 * (shifted - _ROUND_BIT)
    z = r * r
    c = _COS[0]
    s = _SIN[0]
    for k in range(1, 9):
        c = c * z + _COS[k]
        s = s * z + _SIN[k]
    s *= r
    odd = (quarter & _1) != _0
    cos = s if odd else c
    sin = c if odd else s
    cos = -cos if ((quarter + _1) & _2) != _0 else cos
    sin = -sin if (quarter & _2) != _0 else sin
    return cos, sin


@inlined
def box_muller_64(u: Any, v: Any) -> Any:
    """Returns two independent standard normals from uniforms 0 < u, v <= 1 (Box and Muller 1958)."""
    radius = math.sqrt(-2.0 * log_64(u))
    cos, sin = cos_sin_64(v)
    return radius * cos, radius * sin


@inlined
def log_32(u: Any) -> Any:
    """Returns the natural logarithm of a normal positive float32: e ln 2 + log(1 + f) with u = (1 + f) 2**e.

    The casts keep the integers in 32 bits, in which they are vectorised.
    """
    above = np.int32(bits_32(u) - SQRT_HALF_BITS_32)
    exponent = np.float32(np.int32(above >> 23))
    f = from_bits_32(np.int32((above & MANTISSA_32) + SQRT_HALF_BITS_32)) - _ONE
    z = f * f
    series = LOG_32[0]
    for k in range(1, 8):
        series = series * f + LOG_32[k]
    rest = (series * f) * z + exponent * LN2_LOW_32 - _HALF * z
    return (f + rest) + exponent * LN2_HIGH_32


@inlined
def cos_sin_32(turns: Any) -> Any:
    """Returns cosine and sine of 2 pi turns, |turns| < 2**20; the reduction to an eighth is exact."""
    shifted = _FOUR * turns + ROUND_BIT_32
    quarter = bits_32(shifted)
    r = turns - _QUARTER * (shifted - ROUND_BIT_32)
    z = r * r
    c = COS_32[0]
    for k in range(1, 5):
        c = c * z + COS_32[k]
    s = SIN_32[0]
    for k in range(1, 4):
        s = s * z + SIN_32[k]
    s = s * r
    odd = (quarter & 1) != 0
    cos = s if odd else c
    sin = c if odd else s
    cos_sign = np.int32((np.int32(quarter + 1) & 2) << 30)
    sin_sign = np.int32((quarter & 2) << 30)
    return from_bits_32(np.int32(bits_32(cos) ^ cos_sign)), from_bits_32(np.int32(bits_32(sin) ^ sin_sign))


@inlined
def box_muller_32(u: Any, v: Any) -> Any:
    """Returns `box_muller_64` in float32; u is at least the smallest normal number."""
    radius = np.float32(math.sqrt(_MINUS_2 * log_32(u)))
    cos, sin = cos_sin_32(v)
    return radius * cos, radius * sin
