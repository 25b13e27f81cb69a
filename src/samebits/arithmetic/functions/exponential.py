"""Exponentials, for float32 and (`..._double`, in pairs of numbers) for float64.

exp2, expm1 and, for other functions, exp in float64 have an error of 2^-44 of the result: they are
rounded once to float32.

exp(x) = 2^k exp(r), with k the integer next to x / log(2) and r = x - k log(2), |r| <= log(2) / 2; exp(r) is
a polynomial. Results above 2^1023 are infinite, below 2^-1022 zero; NaN stays.

exp of float32 is computed in float32, with a Taylor polynomial and log(2) in two parts, within 1 ulp. Softmax
and its like compute the same, and in float64 its counterpart `exp_bounded_double`.
"""

from __future__ import annotations

import math
from typing import Any

from samebits._native.formula import (
    INFINITY,
    ROUNDING,
    ROUNDING_NARROW,
    at_least,
    at_most,
    by_horners_rule,
    fma,
    formula,
    polynomial,
    where,
)
from samebits.arithmetic.functions.coefficients import (
    EXP2_TAIL,
    EXP2_TAIL_NARROW,
    EXP_TAIL,
    EXP_TAIL_LONG,
    EXP_TAIL_NARROW,
    LN2,
    LN2_LONG,
)
from samebits.arithmetic.functions.pairs import Pair, exact_sum, ordered_sum, rounded

LOG2_E = 1.4426950408889634
LARGEST, SMALLEST = 709.7, -709.0
"""Beyond these, k is 1024 (an infinite power of two) and -1023 (zero)."""
LN2_OF_NARROW = (0.693145751953125, 1.42860682030941723212e-6)
LN2_OF_DOUBLE = (0.6931471803691238, 1.9082149292705877e-10)
"""log(2) as two numbers, of which k times the first is exact."""
TAYLOR = tuple(1 / math.factorial(n) for n in range(14))


def power_of_two(rounded: Any) -> Any:
    """Returns 2^k for k + ROUNDING; zero for k = -1023, infinite for k = 1024."""
    return ((rounded.bits() + 1023) << 52).number()


def reduced(x: Any) -> tuple[Any, Any]:
    """Returns k + ROUNDING and r for x = k log(2) + r."""
    rounded = fma(x, LOG2_E, ROUNDING)
    k = rounded - ROUNDING
    return rounded, fma(-k, LN2[0] + LN2[1], x)


def exp_bounded(x: Any) -> Any:
    """Returns exp(x) for x between SMALLEST and LARGEST."""
    rounded, r = reduced(x)
    return polynomial(r, (1.0, 1.0, *EXP_TAIL)) * power_of_two(rounded)


def exp_of_minus(size: Any) -> Any:
    """Returns exp(-size) for a number that is not negative."""
    return exp_bounded(-at_most(size, -SMALLEST))


def _times_powers(p: Any, k: Any, rounding: float, bias: int, places: int) -> Any:
    """Returns p 2^k, by two factors: rounded once where it is subnormal."""
    half = fma(k, 0.5, rounding)
    rest = (k - (half - rounding)) + rounding
    for factor in (half, rest):
        p = p * ((factor.bits() + bias) << places).number()
    return p


def _by_taylor(x: Any, ln2: tuple[float, float], terms: int, rounding: float, bias: int, places: int) -> Any:
    k = fma(x, LOG2_E, rounding) - rounding
    r = fma(k, -ln2[1], fma(k, -ln2[0], x))
    return _times_powers(by_horners_rule(r, TAYLOR[:terms]), k, rounding, bias, places)


@formula
def _exp_of_any(x: Any) -> Any:
    """Returns exp(x) of a float32, in float32, where it may be zero, subnormal or infinite."""
    return _by_taylor(at_least(at_most(x, 89.0), -104.0), LN2_OF_NARROW, 8, ROUNDING_NARROW, 127, 23)


@formula
def exp_narrow(x: Any) -> Any:
    """Returns exp(x) of a float32, in float32: with one power of two, where that is exact."""
    rounded = fma(x, LOG2_E, ROUNDING_NARROW)
    k = rounded - ROUNDING_NARROW
    r = fma(k, -LN2_OF_NARROW[1], fma(k, -LN2_OF_NARROW[0], x))
    near = by_horners_rule(r, TAYLOR[:8]) * power_of_two_narrow(rounded)
    return (~(x.magnitude() < 87.0)).rarely(near, lambda: _exp_of_any(x))


@formula
def exp2_narrow(x: Any) -> Any:
    """Returns 2^x of a float32, in float32; exactly, for integers."""
    bounded = at_least(at_most(x, 129.0), -151.0)
    k = (bounded + ROUNDING_NARROW) - ROUNDING_NARROW
    r = bounded - k
    p = fma(r, by_horners_rule(r, EXP2_TAIL_NARROW), 1.0)
    return _times_powers(p, k, ROUNDING_NARROW, 127, 23)


def power_of_two_narrow(rounded: Any, more: int = 0) -> Any:
    """Returns the float32 2^(k + more) for k + ROUNDING_NARROW; k + more is between -126 and 128."""
    return ((rounded.bits() + (127 + more)) << 23).number()


def reduced_narrow(x: Any, low: Any = None) -> tuple[Any, Any, Any]:
    """Returns k + ROUNDING_NARROW, r, and exp(r) - 1 - r for x + low = k log(2) + r, in float32."""
    rounded = fma(x, LOG2_E, ROUNDING_NARROW)
    k = rounded - ROUNDING_NARROW
    part = fma(-k, LN2_OF_NARROW[0], x)
    r = fma(-k, LN2_OF_NARROW[1], part) if low is None else part + fma(-k, LN2_OF_NARROW[1], low)
    return rounded, r, (r * r) * by_horners_rule(r, EXP_TAIL_NARROW)


def exp_pair_narrow(x: Any, low: Any = None) -> tuple[Any, Pair]:
    """Returns k + ROUNDING_NARROW and a pair of float32 with exp(x + low) = 2^k pair, to 2^-25."""
    rounded, r, tail = reduced_narrow(x, low)
    first = r + 1.0
    return rounded, ordered_sum(first, (r - (first - 1.0)) + tail)


@formula
def exp_bounded_double(x: Any) -> Any:
    """Returns exp(x) of a float64 that is at most 709."""
    return _by_taylor(at_least(x, -746.0), LN2_OF_DOUBLE, 14, ROUNDING, 1023, 52)


@formula
def exp_wide(x: Any) -> Any:
    """Returns exp(x)."""
    return exp_bounded(at_least(at_most(x, LARGEST), SMALLEST))


@formula
def exp2_wide(x: Any) -> Any:
    """Returns 2^x; exactly, for integers."""
    bounded = at_least(at_most(x, 1024.0), -1023.0)
    rounded = bounded + ROUNDING
    r = bounded - (rounded - ROUNDING)
    return polynomial(r, (1.0, *EXP2_TAIL)) * power_of_two(rounded)


@formula
def expm1_wide(x: Any) -> Any:
    """Returns exp(x) - 1 with a small relative error: 2^k (exp(r) - 1) + (2^k - 1); at most exp(709)."""
    rounded, r = reduced(at_least(at_most(x, 709.0), SMALLEST))
    power = power_of_two(rounded)
    return fma(power, fma(r * r, polynomial(r, EXP_TAIL), r), power - 1.0).with_sign_of(x)


# exp, exp2 and expm1 of float64: exp(r) = 1 + r + tail, with 1 + r and the rest of r kept apart; at most
# 0.6 ulp.
#
# A power of two beyond float64's exponents is applied in two halves, so that subnormal results are rounded
# once more.


_LOG2_E = 1.4426950408889634
_LOWEST, _HIGHEST = -746.0, 710.0


def _power(k: Any) -> Any:
    """Returns 2^k for an integer between -1022 and 1023."""
    return (((k + ROUNDING).bits() + 1023) << 52).number()


def scaled(number: Any, k: Any) -> Any:
    """Returns 2^k times the number, for an integer k of -1078 to 1025, rounded once where it is subnormal."""
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
    """Returns exp(x) - 1 for x of -60 to 700: 2^k - 1 exactly, and 2^k (exp(r) - 1), r itself for k = 0."""
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
