"""exp, exp2 and expm1 of float64: exp(r) = 1 + r + tail, with 1 + r and the rest of r kept apart; at most 0.6 ulp.

A power of two beyond float64's exponents is applied in two halves, so that subnormal results are rounded once more.
"""

from __future__ import annotations

from typing import Any

from samebits._native.formula import (
    INFINITY,
    ROUNDING,
    at_least,
    at_most,
    fma,
    formula,
    polynomial,
    where,
)
from samebits.arithmetic.functions.coefficients import EXP_TAIL_LONG, LN2, LN2_LONG
from samebits.arithmetic.functions.double.pairs import Pair, exact_sum, ordered_sum, rounded

_LOG2_E = 1.4426950408889634
_LOWEST, _HIGHEST = -746.0, 710.0


def _power(k: Any) -> Any:
    """Returns 2^k for an integer between -1022 and 1023."""
    return (((k + ROUNDING).bits() + 1023) << 52).number()


def scaled(number: Any, k: Any) -> Any:
    """Returns 2^k times the number, for an integer k between -1078 and 1025, rounded once where it is subnormal."""
    half = (0.5 * k + ROUNDING) - ROUNDING
    return (number * _power(half)) * _power(k - half)


def exp_of_reduced(r: Any, rest: Any) -> tuple[Any, Pair]:
    """Returns the tail r^2 / 2 + ..., plus `rest`, and exp(r + rest) as a pair."""
    tail = fma(r * r, polynomial(r, EXP_TAIL_LONG), rest)
    total, error = ordered_sum(r * 0.0 + 1.0, r)
    return tail, ordered_sum(total, error + tail)


def reduced_pair(x: Any) -> tuple[Any, Any, Any]:
    """Returns k, r and its rest for x = k log(2) + r + rest."""
    k = fma(x, _LOG2_E, ROUNDING) - ROUNDING
    part = fma(-k, LN2[0], x)
    r = fma(-k, LN2[1], part)
    return k, r, fma(-k, LN2[1], part - r)


def exp_pair(x: Any) -> tuple[Any, Pair]:
    """Returns k and the pair with exp(x) = 2^k pair, for x between -746 and 710."""
    k, r, rest = reduced_pair(x)
    return k, exp_of_reduced(r, rest)[1]


@formula
def exp_double(x: Any) -> Any:
    """Returns exp(x)."""
    k, pair = exp_pair(at_least(at_most(x, _HIGHEST), _LOWEST))
    return scaled(pair[0], k)


@formula
def exp2_double(x: Any) -> Any:
    """Returns 2^x."""
    bounded = at_least(at_most(x, 1025.0), -1078.0)
    k = (bounded + ROUNDING) - ROUNDING
    part = bounded - k
    r = part * LN2_LONG[0]
    rest = fma(part, LN2_LONG[1], fma(part, LN2_LONG[0], -r))
    return scaled(exp_of_reduced(r, rest)[1][0], k)


def expm1_pair(x: Any) -> Pair:
    """Returns exp(x) - 1 for x between -60 and 700: 2^k - 1 exactly, and 2^k (exp(r) - 1), which is r itself for k = 0."""
    k, r, rest = reduced_pair(x)
    tail = fma(r * r, polynomial(r, EXP_TAIL_LONG), rest)
    power = _power(k)
    whole, lost = exact_sum(power, -1.0)
    total, error = exact_sum(whole, power * r)
    return ordered_sum(total, (error + lost) + power * tail)


@formula
def expm1_double(x: Any) -> Any:
    """Returns exp(x) - 1."""
    near = rounded(expm1_pair(at_least(at_most(x, 60.0), -60.0)))
    result = where(x > 50.0, exp_double(x), near).with_sign_of(x)
    return where(x < INFINITY, result, x)
