"""Powers, roots and sums of exponentials in float64, to be rounded once to float32.

x^y = 2^(y log2|x|) to 2^-42 of the result. Where it is that close to a number of 26 bits it becomes that number: powers
that float32 holds, and those halfway between two float32, are exact then, and round correctly.
"""

from __future__ import annotations

from typing import Any

from samebits._native.formula import INFINITY, NAN, ROUNDING, fma, formula, where
from samebits.arithmetic.functions.exponential import exp2_wide, exp_wide
from samebits.arithmetic.functions.logarithm import LOG2_E, log1p_wide, log2_long, log_wide

_TO_26_BITS = 134217729.0
"""2^27 + 1: Veltkamp's splitting, which leaves 26 bits."""


def _snapped(value: Any) -> Any:
    """Returns the nearest number of 26 bits if that is nearer than 2^-40 of it; the value is below 2^200."""
    scaled = value * _TO_26_BITS
    near = scaled - (scaled - value)
    return where((value - near).magnitude() <= value.magnitude() * 2.0**-41, near, value)


@formula
def pow_wide(x: Any, y: Any) -> Any:
    """Returns x to the power of y, with the special cases of C's pow."""
    size = x.magnitude()
    exponent = y * log2_long(size)
    bounded = where(exponent > 190.0, 190.0, where(exponent < -190.0, -190.0, exponent))
    power = _snapped(exp2_wide(bounded))
    power = where(exponent > 150.0, INFINITY, where(exponent < -160.0, 0.0, power))
    half = 0.5 * y.magnitude()
    # Every float32 from 2^24 on is even; rounding needs |y| < 2^51.
    small = half < 2.0**30
    bounded_half = where(small, half, 0.0)
    half_is_whole = ((bounded_half + ROUNDING) - ROUNDING).equals(bounded_half)
    doubled = 2.0 * bounded_half
    whole = ((doubled + ROUNDING) - ROUNDING).equals(doubled)
    odd = whole & ~half_is_whole
    negative = x.constant(1.0).with_sign_of(x) < 0.0
    signed = where(negative & odd, -power, power)
    signed = where((x < 0.0) & (size < INFINITY) & ~whole, NAN, signed)
    one = x.equals(1.0) | y.equals(0.0) | (size.equals(1.0) & y.magnitude().equals(INFINITY))
    return where(one, x.constant(1.0), signed)


@formula
def sqrt_narrow(x: Any) -> Any:
    """Returns the square root, rounded correctly; NaN by choice, since LLVM takes no root for one and drops a later check."""
    return where(x >= 0.0, x.square_root(), NAN)


@formula
def rsqrt_wide(x: Any) -> Any:
    """Returns 1 / sqrt(x): in float32, and a Newton step."""
    start = x.float32_reciprocal_root()
    result = fma(0.5 * start, fma(-(x * start), start, 1.0), start)
    return where((x > 0.0) & (x < INFINITY), result, start)


@formula
def rsqrt_double(x: Any) -> Any:
    """Returns 1 / sqrt(x) of float64: each rounded, and a Newton step with the rest of both; at most 0.6 ulp."""
    start = 1.0 / x.square_root()
    square = start * start
    rest = fma(-x, square, 1.0) - x * fma(start, start, -square)
    result = fma(0.5 * start, rest, start)
    return where((x > 2.0**-1000) & (x < 2.0**1000), result, start)


@formula
def number_pow_wide(y: Any, x: Any) -> Any:
    """Returns x to the power of y."""
    return pow_wide(x, y)


@formula
def square_narrow(x: Any) -> Any:
    """Returns x^2, rounded once."""
    return x * x


@formula
def cube_wide(x: Any) -> Any:
    """Returns x^3; in float64 it is rounded twice."""
    return (x * x) * x


@formula
def reciprocal_square_wide(x: Any) -> Any:
    """Returns 1 / x^2."""
    return 1.0 / (x * x)


@formula
def hypot_wide(x: Any, y: Any) -> Any:
    """Returns sqrt(x^2 + y^2), whose squares are exact; infinite if one is, even beside NaN."""
    result = fma(x, x, y * y).square_root()
    infinite = x.magnitude().equals(INFINITY) | y.magnitude().equals(INFINITY)
    return where(infinite, x.constant(INFINITY), result)


@formula
def logaddexp_wide(x: Any, y: Any) -> Any:
    """Returns log(exp(x) + exp(y)): the larger one, plus log1p(exp(-difference))."""
    larger = where(x >= y, x, y)
    difference = (x - y).magnitude()
    result = larger + log1p_wide(exp_wide(-difference))
    return where(x.equals(y) & (x.magnitude().equals(INFINITY)), x, result)


@formula
def logaddexp2_wide(x: Any, y: Any) -> Any:
    """Returns log2(2^x + 2^y)."""
    larger = where(x >= y, x, y)
    difference = (x - y).magnitude()
    result = larger + log1p_wide(exp2_wide(-difference)) * LOG2_E
    return where(x.equals(y) & (x.magnitude().equals(INFINITY)), x, result)


@formula
def xlogy_wide(x: Any, y: Any) -> Any:
    """Returns x log(y), and zero for x = 0 unless y is NaN."""
    return where(y.equals(y), where(x.equals(0.0), x.constant(0.0), x * log_wide(y)), NAN)


@formula
def xlog1py_wide(x: Any, y: Any) -> Any:
    """Returns x log(1 + y), and zero for x = 0 unless y is NaN."""
    return where(y.equals(y), where(x.equals(0.0), x.constant(0.0), x * log1p_wide(y)), NAN)


@formula
def entr_wide(x: Any) -> Any:
    """Returns -x log(x), zero at zero, minus infinity below."""
    result = where(x > 0.0, -x * log_wide(x), where(x.equals(0.0), x.constant(0.0), -INFINITY))
    return where(x.equals(x), result, NAN)
