"""sinh, cosh, tanh and their inverses.

tanh of float32 is computed in float32, with at most 0.75 ulp. The others (`..._wide`) are computed in float64
to 2^-44 of the result, to be rounded once to float32; their arguments are float32 numbers, as float64.
`..._double` is for float64: 1 to 4 ulp for sinh and cosh, at most 0.6 for the others.

With |x| = k log(2) + r, 2 sinh and 2 cosh are sums of 2^k exp(r) and 2^-k exp(-r), and exp(r) = cosh(r) +
sinh(r) has one even and one odd polynomial. The inverses are log1p of what it needs.

tanh of float32 has 16 intervals, told apart by the bits of |x| + 9/16 down to the second of its mantissa. In
an interval the function is f(c) + t P(t), t = |x| - c, with a center c at which f(c) is next to a float32; in
the one at zero it is |x| + |x| P(|x|). From 9.1 on the result is that of 9.1, which is 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from samebits._native.formula import (
    INFINITY,
    NAN,
    ROUNDING,
    at_least,
    at_most,
    by_horners_rule,
    fma,
    formula,
    polynomial,
    where,
)
from samebits.arithmetic.functions.coefficients import COSH_TAIL, LN2, SINH_TAIL, TANH_NARROW
from samebits.arithmetic.functions.exponential import exp_pair, expm1_pair, power_of_two, reduced, scaled
from samebits.arithmetic.functions.logarithm import log1p_pair, log1p_wide
from samebits.arithmetic.functions.pairs import (
    Pair,
    exact_product,
    exact_sum,
    ordered_sum,
    quotient_of_pairs,
    root_of_pair,
    rounded,
)


def _parts(size: Any) -> tuple[Any, Any, Any, Any]:
    """Returns sinh(r), cosh(r), 2^(k - 1) and 2^(-k - 1)."""
    rounded, r = reduced(size)
    u = r * r
    sine = fma(r * u, polynomial(u, SINH_TAIL), r)
    cosine = fma(u, polynomial(u, COSH_TAIL), 1.0)
    negative = 2.0 * ROUNDING - rounded
    return sine, cosine, 0.5 * power_of_two(rounded), 0.5 * power_of_two(negative)


@formula
def sinh_wide(x: Any) -> Any:
    """Returns the hyperbolic sine; of arguments beyond 100, what float32 takes for infinite."""
    sine, cosine, up, down = _parts(at_most(x.magnitude(), 100.0))
    return fma(cosine, up - down, sine * (up + down)).with_sign_of(x)


@formula
def cosh_wide(x: Any) -> Any:
    """Returns the hyperbolic cosine; of arguments beyond 100, what float32 takes for infinite."""
    sine, cosine, up, down = _parts(at_most(x.magnitude(), 100.0))
    return fma(sine, up - down, cosine * (up + down))


@formula
def asinh_wide(x: Any) -> Any:
    """Returns the inverse of sinh: log1p(x + x^2 / (1 + sqrt(1 + x^2))) of |x|."""
    size = x.magnitude()
    bounded = at_most(size, 1e39)
    square = bounded * bounded
    result = log1p_wide(bounded + square / ((square + 1.0).square_root() + 1.0))
    return where(size < INFINITY, result, size).with_sign_of(x)


@formula
def acosh_wide(x: Any) -> Any:
    """Returns the inverse of cosh: log1p(t + sqrt(2 t + t^2)) of t = x - 1; NaN below 1."""
    t = x - 1.0
    result = log1p_wide(t + fma(t, t, 2.0 * t).square_root())
    return where(x >= 1.0, where(x < INFINITY, result, INFINITY), NAN)


@formula
def atanh_wide(x: Any) -> Any:
    """Returns the inverse of tanh: log1p(2 |x| / (1 - |x|)) / 2; infinite at 1, NaN beyond."""
    size = x.magnitude()
    result = 0.5 * log1p_wide((2.0 * size) / (1.0 - size))
    return where(size < 1.0, result, where(size.equals(1.0), size * INFINITY, NAN)).with_sign_of(x)


def odd_by_pieces(x: Any, pieces: Sequence[Sequence[float]]) -> Any:
    """Returns an odd function that is 1 from 9.1 on: tanh, or erf."""
    size = at_most(x.magnitude(), 9.1)
    place = at_least(size + 9 / 16, 5 / 8)
    center, value, *others = (place.bits() >> 21).looked_up(pieces)
    offset = size - center
    start = where(place < 3 / 4, size, value)
    return fma(offset, by_horners_rule(offset, others), start).with_sign_of(x)


@formula
def tanh_narrow(x: Any) -> Any:
    """Returns the hyperbolic tangent."""
    return odd_by_pieces(x, TANH_NARROW)


# Of float64.


@formula
def tanh_double(x: Any) -> Any:
    """Returns e / (e + 2) with e = exp(2 |x|) - 1."""
    e = expm1_pair(2.0 * at_most(x.magnitude(), 25.0))
    below, lost = exact_sum(e[0], 2.0)
    result = rounded(quotient_of_pairs(e, ordered_sum(below, lost + e[1])))
    return where(x.magnitude() < 2.0**-28, x, result).with_sign_of(x)


@formula
def sinh_double(x: Any) -> Any:
    """Returns the hyperbolic sine: (e + e / (e + 1)) / 2, e = exp(|x|) - 1; half of exp(|x|) from 40 on."""
    size = x.magnitude()
    e = expm1_pair(at_most(size, 41.0))
    below, lost = exact_sum(e[0], 1.0)
    ratio = quotient_of_pairs(e, ordered_sum(below, lost + e[1]))
    total, error = exact_sum(e[0], ratio[0])
    near = 0.5 * (total + (error + (e[1] + ratio[1])))
    k, far = exp_pair(at_most(size, 711.0))
    result = where(size > 40.0, scaled(far[0], k - 1.0), near)
    result = where(size < 2.0**-28, size, result)
    return where(size < INFINITY, result, size).with_sign_of(x)


@formula
def cosh_double(x: Any) -> Any:
    """Returns the hyperbolic cosine: (e + 1 / e) / 2 with e = exp(|x|)."""
    size = x.magnitude()
    k, pair = exp_pair(at_most(size, 711.0))
    near = where(size > 40.0, 0.0, k)
    e = scaled(pair[0], near), scaled(pair[1], near)
    inverse = quotient_of_pairs((e[0] * 0.0 + 1.0, 0.0 * e[0]), e)
    total, error = exact_sum(e[0], inverse[0])
    result = 0.5 * (total + (error + (e[1] + inverse[1])))
    return where(size < INFINITY, where(size > 40.0, scaled(pair[0], k - 1.0), result), size)


_BIG = 2.0**40


def _log1p_of_half(a: Pair, is_big: Any, big: Any) -> Any:
    """Returns log(1 + a), or log(2 big) where that is big."""
    first = where(is_big, big - 1.0, a[0])
    rest = where(is_big, (big - (big - 1.0)) - 1.0, a[1])
    result = log1p_pair(first, rest)
    total, error = exact_sum(result[0], LN2[0])
    doubled = total + (error + (result[1] + LN2[1]))
    return where(is_big, doubled, rounded(result))


@formula
def asinh_double(x: Any) -> Any:
    """Returns the inverse of sinh: log1p(a + a^2 / (1 + sqrt(1 + a^2))) of a = |x|."""
    size = x.magnitude()
    is_big = size > _BIG
    a = where(is_big, 1.0, size)
    square = exact_product(a, a)
    total, lost = exact_sum(square[0], 1.0)
    root = root_of_pair(ordered_sum(total, lost + square[1]))
    below, lost = exact_sum(root[0], 1.0)
    ratio = quotient_of_pairs(square, ordered_sum(below, lost + root[1]))
    total, lost = exact_sum(a, ratio[0])
    bounded = where(size < INFINITY, size, 1.0)
    result = _log1p_of_half(ordered_sum(total, lost + ratio[1]), is_big, bounded)
    result = where(size < INFINITY, result, size)
    return where(size < 2.0**-28, x, result).with_sign_of(x)


@formula
def acosh_double(x: Any) -> Any:
    """Returns the inverse of cosh: log1p(t + sqrt(2 t + t^2)) of t = x - 1; NaN below 1."""
    valid = (x >= 1.0) & (x < INFINITY)
    is_big = x > _BIG
    t = where(valid & ~is_big, x - 1.0, 1.0)
    square = exact_product(t, t)
    total, lost = exact_sum(2.0 * t, square[0])
    root = root_of_pair(ordered_sum(total, lost + square[1]))
    total, lost = exact_sum(t, root[0])
    bounded = where(valid, x, 1.0)
    result = _log1p_of_half(ordered_sum(total, lost + root[1]), is_big & valid, bounded)
    return where(valid, result, where(x > 1.0, x, NAN))


@formula
def atanh_double(x: Any) -> Any:
    """Returns the inverse of tanh: log1p(2 |x| / (1 - |x|)) / 2; infinite at 1, NaN beyond."""
    size = x.magnitude()
    inside = size < 1.0
    a = where(inside, size, 0.0)
    below = exact_sum(-a, 1.0)
    ratio = quotient_of_pairs((2.0 * a, 0.0 * a), below)
    result = 0.5 * rounded(log1p_pair(*ratio))
    result = where(size < 2.0**-28, size, result)
    return where(inside, result, where(size.equals(1.0), size * INFINITY, NAN)).with_sign_of(x)
