"""tanh, erf, sin and cos in float32: at most 0.75 ulp for the first two, 0.9 for the others.

tanh and erf have 16 intervals each, told apart by the bits of |x| + 9/16 down to the second of its mantissa.
In an interval the function is f(c) + t P(t), t = |x| - c, with a center c at which f(c) is next to a float32;
in the one at zero it is |x| + |x| P(|x|). From 9.1 on the result is that of 9.1, which is 1.

x = n pi / 2 + r with |r| <= pi / 4, r a pair of numbers: pi / 2 is taken in three parts. By n the result is
plus or minus the sine or the cosine of r, each a polynomial. From 2^17 on it is the function in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from samebits._native.formula import (
    ROUNDING_NARROW,
    at_least,
    at_most,
    by_horners_rule,
    fma,
    formula,
    where,
)
from samebits.arithmetic.functions.coefficients import (
    COS_NARROW,
    ERF_NARROW,
    HALF_PI_NARROW,
    SIN_NARROW,
    TANH_NARROW,
)
from samebits.arithmetic.functions.pairs import Pair, exact_product, ordered_sum
from samebits.arithmetic.functions.trigonometry import cos_wide, sin_wide


def _by_pieces(x: Any, pieces: Sequence[Sequence[float]]) -> Any:
    """Returns an odd function that is 1 from 9.1 on."""
    size = at_most(x.magnitude(), 9.1)
    place = at_least(size + 9 / 16, 5 / 8)
    center, value, *others = (place.bits() >> 21).looked_up(pieces)
    offset = size - center
    start = where(place < 3 / 4, size, value)
    return fma(offset, by_horners_rule(offset, others), start).with_sign_of(x)


@formula
def tanh_narrow(x: Any) -> Any:
    """Returns the hyperbolic tangent."""
    return _by_pieces(x, TANH_NARROW)


@formula
def erf_narrow(x: Any) -> Any:
    """Returns the error function."""
    return _by_pieces(x, ERF_NARROW)


_TWO_OVER_PI = 0.6366197723675814
_FAR = 2.0**17


def _less_quarters(x: Any) -> tuple[Any, Pair]:
    """Returns n + ROUNDING_NARROW and the pair r for x = n pi / 2 + r."""
    whole = fma(x, _TWO_OVER_PI, ROUNDING_NARROW)
    n = whole - ROUNDING_NARROW
    high, low = exact_product(n, HALF_PI_NARROW[1])
    # x - n pi / 2 is exact for the first part of pi: a multiple of 2^-24 below 1.
    first, lost = ordered_sum(fma(-n, HALF_PI_NARROW[0], x), -high)
    return whole, (first, lost - fma(n, HALF_PI_NARROW[2], low))


def _wave(x: Any, quarters: int) -> Any:
    """Returns the sine of x plus a number of quarters of a turn."""
    whole, (r, rest) = _less_quarters(x)
    bits = whole.bits() + quarters
    u, lost = exact_product(r, r)
    sine = fma(r * u, by_horners_rule(u, SIN_NARROW), rest)
    lost = fma(lost, -0.5, -(r * rest))
    cosine = fma(u, -0.5, fma(u * u, by_horners_rule(u, COS_NARROW), lost))
    odd = ((bits & 1) << 30).number() > 0.0
    result = where(odd, cosine, sine) + where(odd, 1.0, r)
    return (result.bits() + ((bits & 2) << 30)).number()


@formula
def sin_narrow(x: Any) -> Any:
    """Returns the sine; NaN for infinities."""
    # A zero keeps its sign.
    near = where(x.equals(0.0), x, _wave(x, 0))
    return (~(x.magnitude() < _FAR)).rarely(near, lambda: sin_wide(x.as_float64()).as_float32())


@formula
def cos_narrow(x: Any) -> Any:
    """Returns the cosine; NaN for infinities."""
    return (~(x.magnitude() < _FAR)).rarely(_wave(x, 1), lambda: cos_wide(x.as_float64()).as_float32())
