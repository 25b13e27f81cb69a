"""log, log2, log10 and log1p in float64 with an error of 2^-47 of the result: to be rounded once to float32.

x = 2^k (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2), and log(x) = k log(2) + log(1 + f), a polynomial in f. x
must be a normal float64 (every float32 is one). log(0) is minus infinity, of a negative number and of NaN it
is NaN. `log_narrow` is log of float32 in float32 itself.
"""

from __future__ import annotations

from typing import Any

from samebits._native.formula import (
    INFINITY,
    NAN,
    ROUNDING,
    ROUNDING_NARROW,
    by_horners_rule,
    fma,
    formula,
    polynomial,
    where,
)
from samebits.arithmetic.functions.coefficients import (
    LN2,
    LOG2_E_PAIR,
    LOG10_2_PAIR,
    LOG10_E_PAIR,
    LOG_ATANH,
    LOG_ATANH_LONG,
    LOG_TAIL,
    LOG_TAIL_NARROW,
    LOG_TAIL_SHORT,
)
from samebits.arithmetic.functions.exponential import LN2_OF_DOUBLE, LN2_OF_NARROW
from samebits.arithmetic.functions.pairs import (
    Pair,
    exact_product,
    exact_sum,
    ordered_sum,
    product_of_pairs,
    rounded,
)

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
    """Returns log(x) of positive normal float64 to 1 ulp, NaN of NaN: the series of 2 atanh(s)."""
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


def log_of_sum(total: Any, x: Any) -> Any:
    """Returns log(1 + x) from the sum, with f = x itself where it needs no scaling: small x lose nothing."""
    k, m = split(total)
    f = where(k.equals(0.0), x, m - 1.0)
    return fma(k, LN2[0] + LN2[1], log_near_one(f))


@formula
def log1p_wide(x: Any) -> Any:
    """Returns log(1 + x)."""
    total = x + 1.0
    return with_limits(total, log_of_sum(total, x).with_sign_of(x))


@formula
def log_narrow(x: Any) -> Any:
    """Returns log(x) of a float32, in float32, within 0.9 ulp; of subnormal numbers, that of float64.

    x = 2^k (1 + f) with 2/3 <= 1 + f < 4/3.
    """
    exponent = (x.bits() - 0x3F2AAAAB) & 0xFF800000
    k, f = exponent.converted() * 2.0**-23, (x.bits() - exponent).number() - 1.0
    tail = (f * f) * by_horners_rule(f, LOG_TAIL_NARROW)
    total, lost = ordered_sum(k * LN2_OF_NARROW[0], f)
    near = total + (lost + fma(k, LN2_OF_NARROW[1], tail))
    usual = (x >= 2.0**-126) & (x < INFINITY)
    return (~usual).rarely(near, lambda: log_wide(x.as_float64()).as_float32())


# Logarithms in float32, for bfloat16 and float16: to 2^-17.


def _split_short(x: Any) -> tuple[Any, Any]:
    """Returns k and 2^-k x - 1, of a positive float32."""
    small = x < 2.0**-126
    bits = where(small, x * 2.0**24, x).bits()
    shifted = bits + (0x3F800000 - 0x3F3504F3)
    k = ((shifted >> 23) + (0x4B400000 - 127)).number() - ROUNDING_NARROW
    f = (bits - ((shifted & 0xFF800000) - 0x3F800000)).number() - 1.0
    return where(small, k - 24.0, k), f


def _near_one_short(f: Any) -> Any:
    return fma(f * f, by_horners_rule(f, LOG_TAIL_SHORT), f)


def log_of_sum_short(total: Any, x: Any) -> Any:
    """Returns log(1 + x) from the sum."""
    k, f = _split_short(total)
    return fma(k, LN2[0], _near_one_short(where(k.equals(0.0), x, f)))


@formula
def log_short(x: Any) -> Any:
    """Returns log(x)."""
    k, f = _split_short(x)
    return with_limits(x, fma(k, LN2[0], _near_one_short(f)))


@formula
def log2_short(x: Any) -> Any:
    """Returns the logarithm to base 2; exactly, for powers of two."""
    k, f = _split_short(x)
    return with_limits(x, fma(_near_one_short(f), LOG2_E, k))


@formula
def log10_short(x: Any) -> Any:
    """Returns the logarithm to base 10."""
    k, f = _split_short(x)
    return with_limits(x, fma(k, LOG10_2, _near_one_short(f) * LOG10_E))


# Logarithms of float64, as pairs with an error of 2^-64 of the result; at most 0.51 ulp when rounded.
#
# log(m) = 2 s + 2/3 s^3 + s^5 Q(s^2) with s = (m - 1) / (m + 1), |s| < 0.172: the first two terms are
# pairs.


_TWO_THIRDS = (0.6666666666666666, 3.700743415417188e-17)
_SMALLEST_NORMAL = 2.0**-1022


def log_pair_near_one(f: Any, rest: Any) -> Pair:
    """Returns log(1 + f + rest) for sqrt(1/2) <= 1 + f < sqrt(2)."""
    total, lost = exact_sum(f, 2.0)
    s = f / total
    s_rest = (fma(-s, total, f) + fma(-s, lost, rest - s * rest)) / total
    u, u_rest = exact_product(s, s)
    u_rest = fma(2.0 * s, s_rest, u_rest)
    cube = product_of_pairs((u, u_rest), (s, s_rest))
    third, third_rest = product_of_pairs(cube, _TWO_THIRDS)
    last = (cube[0] * u) * polynomial(u, LOG_ATANH_LONG)
    first, error = ordered_sum(2.0 * s, third)
    return ordered_sum(first, error + (fma(2.0, s_rest, third_rest) + last))


def split_any(x: Any) -> tuple[Any, Any]:
    """Returns k and m for a positive number, which may be subnormal."""
    small = x < _SMALLEST_NORMAL
    k, m = split(where(small, x * 2.0**54, x))
    return where(small, k - 54.0, k), m


def _with_powers(k: Any, near: Pair, unit: Pair) -> Pair:
    """Returns k unit + near; k times the first part of the unit is exact."""
    first, error = exact_sum(k * unit[0], near[0])
    return ordered_sum(first, error + fma(k, unit[1], near[1]))


def log2_pair(x: Any) -> Pair:
    """Returns the logarithm to base 2 of a positive finite number."""
    k, m = split_any(x)
    near = product_of_pairs(log_pair_near_one(m - 1.0, 0.0 * m), LOG2_E_PAIR)
    first, error = exact_sum(k, near[0])
    return ordered_sum(first, error + near[1])


@formula
def log_double(x: Any) -> Any:
    """Returns log(x)."""
    k, m = split_any(x)
    return with_limits(x, rounded(_with_powers(k, log_pair_near_one(m - 1.0, 0.0 * m), LN2)))


@formula
def log2_double(x: Any) -> Any:
    """Returns the logarithm to base 2."""
    return with_limits(x, rounded(log2_pair(x)))


@formula
def log10_double(x: Any) -> Any:
    """Returns the logarithm to base 10."""
    k, m = split_any(x)
    near = product_of_pairs(log_pair_near_one(m - 1.0, 0.0 * m), LOG10_E_PAIR)
    return with_limits(x, rounded(_with_powers(k, near, LOG10_2_PAIR)))


def log1p_pair(x: Any, rest: Any) -> Pair:
    """Returns log(1 + x + rest) for 1 + x positive and finite."""
    total, lost = exact_sum(x, 1.0)
    lost = lost + rest
    k, m = split_any(total)
    # 2^-k is m / total, exactly.
    power = m / total
    f, f_rest = ordered_sum(m - 1.0, lost * power)
    is_near = k.equals(0.0)
    f, f_rest = where(is_near, x, f), where(is_near, rest, f_rest)
    return _with_powers(k, log_pair_near_one(f, f_rest), LN2)


@formula
def log1p_double(x: Any) -> Any:
    """Returns log(1 + x)."""
    valid = (x > -1.0) & (x < INFINITY)
    bounded = where(valid, x, 0.0)
    result = rounded(log1p_pair(bounded, 0.0 * bounded))
    tiny = x.magnitude() < 2.0**-54
    result = where(tiny, x, result)
    return where(valid, result, with_limits(x + 1.0, x))
