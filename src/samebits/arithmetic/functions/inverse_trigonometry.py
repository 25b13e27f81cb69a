"""asin, acos, atan and atan2 in float64 with an error of 2^-47 of the result: to be rounded once to float32.

asin(x) is a polynomial for |x| <= 1/2, and pi / 2 - 2 asin(sqrt((1 - |x|) / 2)) beyond. atan is one of the
ratio that is at most 1, and pi / 2 less of it beyond. The arguments are float32 numbers, as float64.
"""

from __future__ import annotations

from typing import Any

from samebits._native.formula import INFINITY, NAN, fma, formula, polynomial, where
from samebits.arithmetic.functions.coefficients import ASIN, ASIN_LONG, ATAN, ATAN_LONG, HALF_PI, PI
from samebits.arithmetic.functions.pairs import (
    Pair,
    exact_sum,
    ordered_sum,
    quotient_of_pairs,
    root_of_pair,
    rounded,
)


def _asin_parts(x: Any) -> tuple[Any, Any]:
    """Returns a truth, that |x| is more than 1/2, and asin of |x| or, there, of sqrt((1 - |x|) / 2)."""
    size = x.magnitude()
    large = size > 0.5
    rest = fma(-0.5, size, 0.5)
    u = where(large, rest, size * size)
    root = where(large, rest.square_root(), size)
    return large, fma(root * u, polynomial(u, ASIN), root)


@formula
def asin_wide(x: Any) -> Any:
    """Returns the arc sine; NaN beyond 1."""
    large, part = _asin_parts(x)
    return where(large, fma(-2.0, part, HALF_PI[0]), part).with_sign_of(x)


@formula
def acos_wide(x: Any) -> Any:
    """Returns the arc cosine; NaN beyond 1."""
    large, part = _asin_parts(x)
    near_one = 2.0 * part
    outer = where(x < 0.0, PI[0] - near_one, near_one)
    return where(large, outer, HALF_PI[0] - part.with_sign_of(x))


def _atan_of_ratio(ratio: Any) -> Any:
    """Returns atan for 0 <= ratio <= 1."""
    u = ratio * ratio
    return fma(ratio * u, polynomial(u, ATAN), ratio)


@formula
def atan_wide(x: Any) -> Any:
    """Returns the arc tangent."""
    size = x.magnitude()
    large = size > 1.0
    part = _atan_of_ratio(where(large, 1.0 / size, size))
    return where(large, HALF_PI[0] - part, part).with_sign_of(x)


@formula
def atan2_wide(y: Any, x: Any) -> Any:
    """Returns the angle of the point (x, y), with the signs of C's atan2."""
    height, width = y.magnitude(), x.magnitude()
    steep = height > width
    smaller, larger = where(steep, width, height), where(steep, height, width)
    equal = height.equals(width)
    ratio = smaller / larger
    # 0 / 0 and infinity / infinity
    ratio = where(equal, where(larger.equals(0.0), larger.constant(0.0), 1.0), ratio)
    part = _atan_of_ratio(ratio)
    part = where(steep, HALF_PI[0] - part, part)
    negative = larger.constant(1.0).with_sign_of(x) < 0.0
    angle = where(negative, PI[0] - part, part).with_sign_of(y)
    known = (height <= INFINITY) & (width <= INFINITY)
    return where(known, angle, NAN)


# Inverse functions of float64: asin, acos, atan, atan2, asinh, acosh and atanh, with square roots and
# quotients as pairs.


_TAN_PI_8 = 0.41421356237309503
_QUARTER_PI = (HALF_PI[0] / 2, HALF_PI[1] / 2)


def _asin_parts_double(x: Any) -> tuple[Any, Any, Any]:
    """Returns the truth of |x| > 1/2, and asin of |x| or, there, of sqrt((1 - |x|) / 2), as a sum."""
    size = x.magnitude()
    large = size > 0.5
    rest = fma(-0.5, size, 0.5)
    u = where(large, rest, size * size)
    root, lost = root_of_pair((where(large, rest, 1.0), 0.0 * rest))
    first = where(large, root, size)
    return large, first, fma(first * u, polynomial(u, ASIN_LONG), where(large, lost, 0.0))


@formula
def asin_double(x: Any) -> Any:
    """Returns the arc sine; NaN beyond 1."""
    large, first, tail = _asin_parts_double(x)
    total, error = exact_sum(-2.0 * first, HALF_PI[0])
    outer = total + (error + fma(-2.0, tail, HALF_PI[1]))
    result = where(large, outer, first + tail).with_sign_of(x)
    return where(x.magnitude() <= 1.0, result, NAN)


@formula
def acos_double(x: Any) -> Any:
    """Returns the arc cosine; NaN beyond 1."""
    large, first, tail = _asin_parts_double(x)
    total, error = exact_sum(-2.0 * first, PI[0])
    outer = where(x < 0.0, total + (error + fma(-2.0, tail, PI[1])), 2.0 * (first + tail))
    total, error = exact_sum(-first.with_sign_of(x), HALF_PI[0])
    sign = x.constant(1.0).with_sign_of(x)
    inner = total + (error + fma(-sign, tail, HALF_PI[1]))
    return where(x.magnitude() <= 1.0, where(large, outer, inner), NAN)


def _atan_of_ratio_double(ratio: Pair) -> Pair:
    """Returns atan of a ratio of 0 to 1: beyond tan(pi / 8) pi / 4 + atan((ratio - 1) / (ratio + 1))."""
    large = ratio[0] > _TAN_PI_8
    above, above_lost = exact_sum(ratio[0], -1.0)
    below, below_lost = exact_sum(ratio[0], 1.0)
    turned = quotient_of_pairs(
        ordered_sum(above, above_lost + ratio[1]), ordered_sum(below, below_lost + ratio[1])
    )
    t, lost = where(large, turned[0], ratio[0]), where(large, turned[1], ratio[1])
    u = t * t
    tail = fma(t * u, polynomial(u, ATAN_LONG), fma(-lost, u, lost))
    start = where(large, t.constant(_QUARTER_PI[0]), 0.0)
    total, error = exact_sum(start, t)
    return ordered_sum(total, error + (tail + where(large, t.constant(_QUARTER_PI[1]), 0.0)))


def _quarter_less(a: Pair, whole: tuple[float, ...]) -> Pair:
    total, error = exact_sum(-a[0], whole[0])
    return ordered_sum(total, error + (whole[1] - a[1]))


@formula
def atan_double(x: Any) -> Any:
    """Returns the arc tangent."""
    size = x.magnitude()
    large = size > 1.0
    bounded = where(size < 1e300, size, 1e300)
    one = bounded * 0.0 + 1.0
    first, rest = quotient_of_pairs((one, 0.0 * one), (where(large, bounded, 1.0), 0.0 * one))
    part = _atan_of_ratio_double((where(large, first, size), where(large, rest, 0.0)))
    result = where(large, rounded(_quarter_less(part, HALF_PI)), rounded(part))
    tiny = size < 2.0**-28
    return where(x.equals(x), where(tiny, x, result.with_sign_of(x)), NAN)


@formula
def atan2_double(y: Any, x: Any) -> Any:
    """Returns the angle of the point (x, y), with the signs of C's atan2."""
    height, width = y.magnitude(), x.magnitude()
    steep = height > width
    smaller, larger = where(steep, width, height), where(steep, height, width)
    # Both are scaled by one power of two, so that no rest is subnormal.
    up = where(larger > 2.0**400, 2.0**-500, larger.constant(1.0))
    up = where(larger < 2.0**-400, 2.0**500, up)
    small, large = smaller * up, larger * up
    usual = (large > 0.0) & (large < INFINITY)
    first, rest = quotient_of_pairs((small, 0.0 * small), (where(usual, large, 1.0), 0.0 * small))
    tiny = first < 2.0**-300
    direct = smaller / where(usual, larger, 1.0)
    equal = height.equals(width)
    one = where(equal & ~usual & (larger > 0.0), larger.constant(1.0), 0.0)
    first = where(usual, first, one)
    part = _atan_of_ratio_double((first, where(usual & ~tiny, rest, 0.0)))
    turned = _quarter_less(part, HALF_PI)
    part = where(steep, turned[0], part[0]), where(steep, turned[1], part[1])
    negative = larger.constant(1.0).with_sign_of(x) < 0.0
    angle = where(negative, rounded(_quarter_less(part, PI)), rounded(part))
    angle = where(tiny & usual & ~steep & ~negative, direct, angle).with_sign_of(y)
    return where((height <= INFINITY) & (width <= INFINITY), angle, NAN)
