"""asin, acos, atan and atan2 in float64 with an error of 2^-47 of the result: to be rounded once to float32.

asin(x) is a polynomial for |x| <= 1/2, and pi / 2 - 2 asin(sqrt((1 - |x|) / 2)) beyond. atan is one of the ratio that is
at most 1, and pi / 2 less of it beyond. The arguments are float32 numbers, as float64.
"""

from __future__ import annotations

from typing import Any

from samebits._native.formula import INFINITY, NAN, fma, formula, polynomial, where
from samebits.arithmetic.functions.coefficients import ASIN, ATAN, HALF_PI, PI


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
