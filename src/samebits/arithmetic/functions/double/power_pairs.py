"""pow of float64: 2^(y log2(x)), with the logarithm and its product with y as pairs; at most 0.6 ulp."""

from __future__ import annotations

from typing import Any

from samebits._native.formula import INFINITY, NAN, ROUNDING, fma, formula, where
from samebits.arithmetic.functions.coefficients import LN2_LONG
from samebits.arithmetic.functions.double.exponential_pairs import exp_of_reduced, scaled
from samebits.arithmetic.functions.double.logarithm_pairs import log2_pair
from samebits.arithmetic.functions.double.pairs import exact_sum

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


@formula
def number_pow_double(y: Any, x: Any) -> Any:
    """Returns x to the power of y."""
    return pow_double(x, y)
