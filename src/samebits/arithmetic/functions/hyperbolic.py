"""sinh, cosh, asinh, acosh and atanh in float64 to 2^-44 of the result: to be rounded once to float32.

With |x| = k log(2) + r, 2 sinh and 2 cosh are sums of 2^k exp(r) and 2^-k exp(-r), and exp(r) = cosh(r) +
sinh(r) has one even and one odd polynomial. The inverses are log1p of what it needs. The arguments are
float32 numbers, as float64.
"""

from __future__ import annotations

from typing import Any

from samebits._native.formula import (
    INFINITY,
    NAN,
    ROUNDING,
    at_most,
    fma,
    formula,
    polynomial,
    where,
)
from samebits.arithmetic.functions.coefficients import COSH_TAIL, SINH_TAIL
from samebits.arithmetic.functions.exponential import power_of_two, reduced
from samebits.arithmetic.functions.logarithm import log1p_wide


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
