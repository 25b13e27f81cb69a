"""Powers, roots and sums of exponentials in float64, to be rounded once to float32.

x^y = 2^(y log2|x|) to 2^-42 of the result. Where it is that close to a number of 26 bits it becomes that
number: powers that float32 holds, and those halfway between two float32, are exact then, and round correctly.
`..._double` is for float64: roots and pow have at most 0.6 ulp, the others 1 to 4.
"""

from __future__ import annotations

from typing import Any

from samebits._native.formula import INFINITY, NAN, ROUNDING, fma, formula, in_each_precision, where
from samebits.arithmetic.functions.coefficients import LN2_LONG
from samebits.arithmetic.functions.exponential import (
    exp2_double,
    exp2_wide,
    exp_double,
    exp_of_reduced,
    exp_wide,
    scaled,
)
from samebits.arithmetic.functions.logarithm import (
    LOG2_E,
    log1p_double,
    log1p_wide,
    log2_long,
    log2_pair,
    log_double,
    log_wide,
)
from samebits.arithmetic.functions.pairs import exact_product, exact_sum, ordered_sum

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
    """Returns the square root, rounded correctly; NaN by choice, as LLVM takes no root to be NaN."""
    return where(x >= 0.0, x.square_root(), NAN)


@formula
def rsqrt_narrow(x: Any) -> Any:
    """Returns 1 / sqrt(x) in float32: each rounded, and a Newton step with both rests; NaN by choice."""
    small = x < 2.0**-100
    bounded = where(small, x * 2.0**48, x)  # so that the rest of the root is no subnormal
    root = bounded.square_root()
    start = 1.0 / root
    rest = fma(-root, start, 1.0) - (start * fma(-root, root, bounded)) * (0.5 * start)
    result = where((x > 0.0) & (x < INFINITY), fma(start, rest, start), start)
    return where(x >= 0.0, where(small, result * 2.0**24, result), NAN)


@formula
def rsqrt_double(x: Any) -> Any:
    """Returns 1 / sqrt(x) of float64: each rounded, and a Newton step with both rests; at most 0.6 ulp."""
    start = 1.0 / x.square_root()
    square = start * start
    rest = fma(-x, square, 1.0) - x * fma(start, start, -square)
    result = fma(0.5 * start, rest, start)
    return where((x > 2.0**-1000) & (x < 2.0**1000), result, start)


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


def _logaddexp(exp: Any, log1p: Any, x: Any, y: Any) -> Any:
    """Returns log(exp(x) + exp(y)): the larger one, plus log1p(exp(-difference))."""
    larger = where(x >= y, x, y)
    difference = (x - y).magnitude()
    result = larger + log1p(exp(-difference))
    return where(x.equals(y) & (x.magnitude().equals(INFINITY)), x, result)


logaddexp_wide, logaddexp_double = in_each_precision(
    _logaddexp, (exp_wide, log1p_wide), (exp_double, log1p_double)
)


def _logaddexp2(exp2: Any, log1p: Any, x: Any, y: Any) -> Any:
    """Returns log2(2^x + 2^y)."""
    larger = where(x >= y, x, y)
    difference = (x - y).magnitude()
    result = larger + log1p(exp2(-difference)) * LOG2_E
    return where(x.equals(y) & (x.magnitude().equals(INFINITY)), x, result)


logaddexp2_wide, logaddexp2_double = in_each_precision(
    _logaddexp2, (exp2_wide, log1p_wide), (exp2_double, log1p_double)
)


def _xlogy(log: Any, x: Any, y: Any) -> Any:
    """Returns x log(y), and zero for x = 0 unless y is NaN."""
    return where(y.equals(y), where(x.equals(0.0), x.constant(0.0), x * log(y)), NAN)


def _xlog1py(log1p: Any, x: Any, y: Any) -> Any:
    """Returns x log(1 + y), and zero for x = 0 unless y is NaN."""
    return where(y.equals(y), where(x.equals(0.0), x.constant(0.0), x * log1p(y)), NAN)


def _entr(log: Any, x: Any) -> Any:
    """Returns -x log(x), zero at zero, minus infinity below."""
    result = where(x > 0.0, -x * log(x), where(x.equals(0.0), x.constant(0.0), -INFINITY))
    return where(x.equals(x), result, NAN)


xlogy_wide, xlogy_double = in_each_precision(_xlogy, (log_wide,), (log_double,))
xlog1py_wide, xlog1py_double = in_each_precision(_xlog1py, (log1p_wide,), (log1p_double,))
entr_wide, entr_double = in_each_precision(_entr, (log_wide,), (log_double,))


@formula
def hypot_double(x: Any, y: Any) -> Any:
    """Returns sqrt(x^2 + y^2) without overflow, squares as pairs; infinite if one is, even beside NaN."""
    a, b = x.magnitude(), y.magnitude()
    larger, smaller = where(a >= b, a, b), where(a >= b, b, a)
    one = larger.constant(1.0)
    down = where(larger > 2.0**500, 2.0**-600, where(larger < 2.0**-400, 2.0**600, one))
    up = where(larger > 2.0**500, 2.0**600, where(larger < 2.0**-400, 2.0**-600, one))
    big, small = larger * down, smaller * down
    square, rest = exact_product(big, big)
    other, other_rest = exact_product(small, small)
    total, lost = ordered_sum(square, other)
    total = total + (lost + (rest + other_rest))
    result = total.square_root() * up
    result = where(larger.equals(0.0), larger, result)
    result = where(a.equals(a) & b.equals(b), result, NAN)
    return where(a.equals(INFINITY) | b.equals(INFINITY), x.constant(INFINITY), result)


# pow of float64: 2^(y log2(x)), with the logarithm and its product with y as pairs; at most 0.6 ulp.


_WHOLE = 2.0**52
"""Every number from here on is an integer; adding it to one below rounds to an integer."""


def _is_whole(size: Any) -> Any:
    """Returns the truth that a number which is not negative is an integer."""
    return (size >= _WHOLE) | ((size + _WHOLE) - _WHOLE).equals(size)


@formula
def pow_double(x: Any, y: Any) -> Any:
    """Returns x to the power of y, with the special cases of C's pow."""
    size = x.magnitude()
    ordinary = (size > 0.0) & (size < INFINITY)
    first, rest = log2_pair(where(ordinary, size, 1.0))
    # A larger |y| has the same result, and no overflow of products.
    bounded = where(y > 1e30, 1e30, where(y < -1e30, -1e30, y))
    product = bounded * first
    error = fma(bounded, first, -product)
    k = where(product > 1025.0, 1025.0, where(product < -1078.0, -1078.0, product))
    k = (k + ROUNDING) - ROUNDING
    part = where((product > 1025.0) | (product < -1078.0), 0.0, product - k)
    part_rest = where(part.equals(0.0) & ~(product.equals(k)), 0.0, fma(bounded, rest, error))
    part, part_rest = exact_sum(part, part_rest)
    r = part * LN2_LONG[0]
    r_rest = fma(part_rest, LN2_LONG[0], fma(part, LN2_LONG[1], fma(part, LN2_LONG[0], -r)))
    power = scaled(exp_of_reduced(r, r_rest)[1][0], k)
    # 0 and infinity to a power
    grows = (size.equals(0.0) & (y < 0.0)) | (size.equals(INFINITY) & (y > 0.0))
    power = where(ordinary, power, where(grows, power.constant(INFINITY), 0.0))
    power = where(x.equals(x) & y.equals(y), power, NAN)
    height = y.magnitude()
    whole = _is_whole(height)
    odd = whole & ~_is_whole(0.5 * height)
    negative = x.constant(1.0).with_sign_of(x) < 0.0
    signed = where(negative & odd, -power, power)
    signed = where((x < 0.0) & (size < INFINITY) & ~whole, NAN, signed)
    one = x.equals(1.0) | y.equals(0.0) | (size.equals(1.0) & height.equals(INFINITY))
    return where(one, x.constant(1.0), signed)


def _number_pow(power: Any, y: Any, x: Any) -> Any:
    """Returns x to the power of y."""
    return power(x, y)


number_pow_wide, number_pow_double = in_each_precision(_number_pow, (pow_wide,), (pow_double,))


# fmod and remainder in float64: exact, before the one rounding that the remainder's sum may need.
#
# With a quotient below 2^50 that is rounded to an integer q, x - q y is exact. Larger ones, which are rare,
# are reduced by multiples 2^(28 k) y (2^(48 k) y for float64) first, from the largest on.


_WIDE = (2.0**28, 10)
_DOUBLE = (2.0**48, 43)
"""The largest quotient of a step, and the steps: float32 have quotients below 2^278, float64 below 2^2099."""


def _less_multiples(x: Any, y: Any) -> Any:
    """Returns x modulo y for positive numbers; x where y is larger, and also infinite."""
    q = ((x / y) + ROUNDING) - ROUNDING
    rest = fma(-q, y, x)
    return where(y <= x, where(rest < 0.0, rest + y, rest), x)


def _fmod_of_sizes(x: Any, y: Any, steps: tuple[float, int]) -> Any:
    """Returns x modulo y for positive finite numbers."""
    largest, count = steps
    far = x >= y * largest
    common = _less_multiples(where(far, 0.0 * y, x), y)

    def distant() -> Any:
        rest = x
        multiples = [y]
        for _ in range(count):
            multiples.append(multiples[-1] * largest)
        for multiple in reversed(multiples):
            rest = _less_multiples(rest, multiple)
        return rest

    return far.rarely(common, distant)


def _fmod(x: Any, y: Any, steps: tuple[float, int]) -> Any:
    """Returns x - n y, n the truncated quotient; with the sign of x; NaN for y = 0 or infinite x."""
    size, divisor = x.magnitude(), y.magnitude()
    valid = (size < INFINITY) & (divisor > 0.0)
    usual = valid & (divisor < INFINITY)
    rest = _fmod_of_sizes(where(usual, size, 0.0), where(usual, divisor, 1.0), steps)
    return where(valid, where(usual, rest.with_sign_of(x), x), NAN)


def _remainder(fmod: Any, x: Any, y: Any) -> Any:
    """Returns Python's remainder: what fmod leaves, plus y if the signs of the two differ."""
    rest = fmod(x, y)
    differ = ((rest > 0.0) & (y < 0.0)) | ((rest < 0.0) & (y > 0.0))
    return where(differ, rest + y, rest)


@formula
def fmod_wide(x: Any, y: Any) -> Any:
    """Returns C's fmod, of float32 numbers."""
    return _fmod(x, y, _WIDE)


@formula
def fmod_double(x: Any, y: Any) -> Any:
    """Returns C's fmod."""
    return _fmod(x, y, _DOUBLE)


remainder_wide, remainder_double = in_each_precision(_remainder, (fmod_wide,), (fmod_double,))
