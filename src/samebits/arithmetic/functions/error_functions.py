"""erf, erfc, erfinv and the normal distribution function.

erf of float32 is computed in float32, with at most 0.75 ulp. The others (`..._wide`) are computed in float64
with an error of 2^-44 of the result, to be rounded once to float32; their arguments are float32 numbers, as
float64. `..._double` is for float64, with 1 to 4 ulp: the error of products and quotients.

erfc(x) = exp(-x^2) R(t) / (x + 3.5) with t = (x - 3.5) / (x + 3.5) for x >= 0, which is zero in float32 from
10.06 on, and 2 - erfc(-x) below. erfinv(x) = x P(w) with w = -log(1 - x^2), and x P(sqrt(w)) for w > 6.25.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from samebits._native.formula import (
    INFINITY,
    NAN,
    at_least,
    at_most,
    fma,
    formula,
    polynomial,
    quotient,
    where,
)
from samebits.arithmetic.functions.coefficients import (
    ERF,
    ERF_LONG,
    ERF_NARROW,
    ERFC,
    ERFC_LONG,
    ERFINV_CENTER,
    ERFINV_FAR,
    ERFINV_TAIL,
)
from samebits.arithmetic.functions.exponential import exp_double, exp_of_minus, exp_pair, scaled
from samebits.arithmetic.functions.hyperbolic import odd_by_pieces
from samebits.arithmetic.functions.logarithm import log_double, log_wide
from samebits.arithmetic.functions.pairs import exact_product, exact_sum

_BEYOND_ERFC = 10.6


def erfc_positive(x: Any, exponential: Any, coefficients: Sequence[float] = ERFC) -> Any:
    """Returns erfc(x) for 0 <= x <= 10.6, from exp(-x^2); with `ERFC_LONG`, up to 28."""
    factor = quotient(1.0, x + 3.5)
    return exponential * (factor * polynomial((x - 3.5) * factor, coefficients))


@formula
def erfc_wide(x: Any) -> Any:
    """Returns 1 - erf(x)."""
    size = at_most(x.magnitude(), _BEYOND_ERFC)
    positive = erfc_positive(size, exp_of_minus(size * size))
    return where(x < 0.0, 2.0 - positive, positive)


def _normal_cdf_far(x: Any) -> Any:
    """Returns the normal distribution function by erfc, with a small error relative to itself for any x."""
    size = at_most(x.magnitude(), 39.0)
    below = 0.5 * erfc_positive(size * 0.7071067811865476, exp_of_minus(0.5 * (size * size)), ERFC_LONG)
    return where(x > 0.0, 1.0 - below, below)


@formula
def normal_cdf_wide(x: Any) -> Any:
    """Returns erfc(-x / sqrt(2)) / 2: by erf for |x| < 4.5, where (1 + erf) / 2 is exact to 2^-32."""
    near = where(x.magnitude() < 4.5, x, 0.0)
    common = fma(near * 0.3535533905932738, polynomial(fma(near * near, 0.0625, -1.0), ERF), 0.5)
    return (~(x.magnitude() < 4.5)).rarely(common, lambda: _normal_cdf_far(x))


@formula
def erfinv_wide(x: Any) -> Any:
    """Returns the number whose erf is x; infinite at -1 and 1, NaN beyond."""
    rest = fma(-x, x, 1.0)
    w = -log_wide(rest)
    center = polynomial(fma(w, 0.32, -1.0), ERFINV_CENTER)
    tail = (w > 6.25).rarely(
        center, lambda: polynomial((w.square_root() - 3.35) * 1.1111111111111112, ERFINV_TAIL)
    )
    size = x.magnitude()
    return where(size < 1.0, x * tail, where(size.equals(1.0), x * INFINITY, NAN))


@formula
def erf_narrow(x: Any) -> Any:
    """Returns the error function."""
    return odd_by_pieces(x, ERF_NARROW)


# Of float64.


_ROOT_HALF = (0.7071067811865476, -4.833646656726457e-17)


@formula
def erfc_of_positive(x: Any, square: Any, square_rest: Any) -> Any:
    """Returns erfc(x) for 0 <= x <= 27.5, from x^2 as a pair."""
    k, e = exp_pair(-at_most(square, 746.0))
    below = x + 3.5
    ratio = polynomial((x - 3.5) / below, ERFC_LONG) / below
    return scaled(fma(-e[0], square_rest, e[0]) * ratio, k)


@formula
def erfc_double(x: Any) -> Any:
    """Returns 1 - erf(x)."""
    size = at_most(x.magnitude(), 27.5)
    far = erfc_of_positive(size, *exact_product(size, size))
    bounded = at_least(at_most(x, 0.5), -0.5)
    part = bounded * polynomial(bounded * bounded, ERF_LONG)
    total, error = exact_sum(-bounded, 1.0)
    near = total + (error - part)
    outer = where(x < 0.0, 2.0 - far, far)
    return where(
        x.magnitude() < 0.5, near, where(x.magnitude() > 27.5, where(x < 0.0, x.constant(2.0), 0.0), outer)
    )


@formula
def erf_double(x: Any) -> Any:
    """Returns the error function."""
    size = at_most(x.magnitude(), 6.5)
    near = fma(size, polynomial(size * size, ERF_LONG), size)
    far = 1.0 - erfc_of_positive(size, *exact_product(size, size))
    return where(size < 1.0, near, far).with_sign_of(x)


@formula
def erfinv_double(x: Any) -> Any:
    """Returns the number whose erf is x: a polynomial, and one Halley step, by erfc where x is large."""
    size = x.magnitude()
    inside = size < 1.0
    bounded = where(inside, size, 0.5)
    rest = 1.0 - bounded
    w = -log_double(rest * (1.0 + bounded))
    s = w.square_root()
    ratio = polynomial((s - 3.35) * 1.1111111111111112, ERFINV_TAIL)
    ratio = where(w > 17.0, polynomial((s - 5.15) * 0.9523809523809523, ERFINV_FAR), ratio)
    ratio = where(w > 6.25, ratio, polynomial(fma(w, 0.32, -1.0), ERFINV_CENTER))
    start = bounded * ratio
    square, lost = exact_product(start, start)
    error = where(bounded > 0.5, rest - erfc_of_positive(start, square, lost), erf_double(start) - bounded)
    step = error * (0.886226925452758 * exp_double(square))
    result = start - step / fma(start, step, 1.0)
    tiny = size < 2.0**-30
    result = where(tiny, size * 0.886226925452758, result)
    return where(inside, result, where(size.equals(1.0), size * INFINITY, NAN)).with_sign_of(x)


@formula
def normal_cdf_double(x: Any) -> Any:
    """Returns erfc(-x / sqrt(2)) / 2."""
    size = at_most(x.magnitude(), 38.5)
    square, rest = exact_product(size, size)
    below = 0.5 * erfc_of_positive(size * _ROOT_HALF[0], 0.5 * square, 0.5 * rest)
    below = where(size < 38.5, below, 0.0 * below)
    return where(x > 0.0, 1.0 - below, below)
