"""Logarithms of float64, as pairs with an error of 2^-64 of the result; at most 0.51 ulp when rounded.

log(m) = 2 s + 2/3 s^3 + s^5 Q(s^2) with s = (m - 1) / (m + 1), |s| < 0.172: the first two terms are pairs.
"""

from __future__ import annotations

from typing import Any

from samebits._native.formula import INFINITY, fma, formula, polynomial, where
from samebits.arithmetic.functions.coefficients import (
    LN2,
    LOG2_E,
    LOG10_2,
    LOG10_E,
    LOG_ATANH_LONG,
)
from samebits.arithmetic.functions.double.pairs import (
    Pair,
    exact_product,
    exact_sum,
    ordered_sum,
    product_of_pairs,
    rounded,
)
from samebits.arithmetic.functions.logarithm import split, with_limits

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
    near = product_of_pairs(log_pair_near_one(m - 1.0, 0.0 * m), LOG2_E)
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
    near = product_of_pairs(log_pair_near_one(m - 1.0, 0.0 * m), LOG10_E)
    return with_limits(x, rounded(_with_powers(k, near, LOG10_2)))


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
