"""log, log2, log10 and log1p in float64 with an error of 2^-47 of the result: to be rounded once to float32.

x = 2^k (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2), and log(x) = k log(2) + log(1 + f), a polynomial in f. x must be a
normal float64 (every float32 is one). log(0) is minus infinity, of a negative number and of NaN it is NaN.
"""

from __future__ import annotations

from typing import Any

from samebits._native.formula import (
    INFINITY,
    NAN,
    ROUNDING,
    by_horners_rule,
    fma,
    formula,
    polynomial,
    where,
)
from samebits.arithmetic.functions.coefficients import LN2, LOG_ATANH, LOG_TAIL
from samebits.arithmetic.functions.exponential import LN2_OF_DOUBLE

_ROOT_HALF_BITS = 0x3FE6A09E667F3BCD
_ONE_BITS = 0x3FF0000000000000
_EXPONENT = 0xFFF0000000000000
_ROUNDING_BITS = 0x4338000000000000
LOG2_E, LOG10_E = 1.4426950408889634, 0.4342944819032518
LOG10_2 = 0.3010299956639812
ATANH_SERIES = tuple(1 / (2 * n + 3) for n in range(11))


def split(x: Any) -> tuple[Any, Any]:
    """Returns k and the number 2^-k x next to 1, for a positive normal x."""
    shifted = x.bits() + (_ONE_BITS - _ROOT_HALF_BITS)
    k = ((shifted >> 52) + (_ROUNDING_BITS - 1023)).number() - ROUNDING
    significand = x.bits() - ((shifted & _EXPONENT) - _ONE_BITS)
    return k, significand.number()


def log_near_one(f: Any) -> Any:
    """Returns log(1 + f) for sqrt(1/2) <= 1 + f < sqrt(2)."""
    return fma(f * f, polynomial(f, LOG_TAIL), f)


def with_limits(x: Any, result: Any) -> Any:
    """Returns the result for positive finite x, and the limits of every logarithm for the others."""
    usual = where(x < INFINITY, result, INFINITY)
    return where(x > 0.0, usual, where(x.equals(0.0), x.constant(-INFINITY), NAN))


@formula
def log_by_series(x: Any) -> Any:
    """Returns log(x) of a positive normal float64 within 1 ulp, and NaN of NaN: 2 atanh((m - 1) / (m + 1)) by its series."""
    k, m = split(x)
    s = (m - 1.0) / (m + 1.0)
    square = s * s
    tail = fma(2.0 * s * square, by_horners_rule(square, ATANH_SERIES), 2.0 * s)
    return where(x.equals(x), fma(k, LN2_OF_DOUBLE[0], fma(k, LN2_OF_DOUBLE[1], tail)), NAN)


@formula
def log_wide(x: Any) -> Any:
    """Returns log(x)."""
    k, m = split(x)
    return with_limits(x, fma(k, LN2[0] + LN2[1], log_near_one(m - 1.0)))


@formula
def log2_wide(x: Any) -> Any:
    """Returns the logarithm to base 2; exactly, for powers of two."""
    k, m = split(x)
    return with_limits(x, fma(log_near_one(m - 1.0), LOG2_E, k))


@formula
def log2_long(x: Any) -> Any:
    """Returns the logarithm to base 2 with an error of 2^-51: 2 atanh(s) log2(e), with s = f / (2 + f)."""
    k, m = split(x)
    f = m - 1.0
    s = f / (m + 1.0)
    u = s * s
    return with_limits(x, fma(fma(s * u, polynomial(u, LOG_ATANH), 2.0 * s), LOG2_E, k))


@formula
def log10_wide(x: Any) -> Any:
    """Returns the logarithm to base 10."""
    k, m = split(x)
    return with_limits(x, fma(k, LOG10_2, log_near_one(m - 1.0) * LOG10_E))


@formula
def log1p_wide(x: Any) -> Any:
    """Returns log(1 + x), with f = x itself where 1 + x needs no scaling, so that small x lose nothing."""
    total = x + 1.0
    k, m = split(total)
    f = where(k.equals(0.0), x, m - 1.0)
    return with_limits(total, fma(k, LN2[0] + LN2[1], log_near_one(f)).with_sign_of(x))
