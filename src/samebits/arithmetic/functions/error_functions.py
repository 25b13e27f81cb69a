"""erfc and erfinv in float64 with an error of 2^-44 of the result: to be rounded once to float32.

erfc(x) = exp(-x^2) R(t) / (x + 3.5) with t = (x -
3.5) / (x + 3.5) for x >= 0, which is zero in float32 from 10.06 on, and 2 - erfc(-x) below. erfinv(x) = x
P(w) with w = -log(1 - x^2), and x P(sqrt(w)) for w > 6.25. The arguments are float32 numbers, as float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from samebits._native.formula import (
    INFINITY,
    NAN,
    at_most,
    fma,
    formula,
    polynomial,
    quotient,
    where,
)
from samebits.arithmetic.functions.coefficients import (
    ERF,
    ERFC,
    ERFC_LONG,
    ERFINV_CENTER,
    ERFINV_TAIL,
)
from samebits.arithmetic.functions.exponential import exp_of_minus
from samebits.arithmetic.functions.logarithm import log_wide

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
