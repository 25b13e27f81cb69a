"""sigmoid, tanh and what is made of them, of float64, from exponentials as pairs; at most 0.6 ulp."""

from __future__ import annotations

from typing import Any

from samebits._native.formula import INFINITY, at_most, fma, formula, where
from samebits.arithmetic.functions.double.exponential_pairs import exp_pair, expm1_pair, scaled
from samebits.arithmetic.functions.double.logarithm_pairs import log1p_pair
from samebits.arithmetic.functions.double.pairs import (
    Pair,
    exact_sum,
    ordered_sum,
    quotient_of_pairs,
    rounded,
)


def sigmoid_pair(x: Any) -> Pair:
    """Returns 1 / (1 + exp(-x)), from e = exp(-|x|): 1 / (1 + e) or e / (1 + e)."""
    k, e = exp_pair(-at_most(x.magnitude(), 745.5))
    small = scaled(e[0], k), scaled(e[1], k)
    below, lost = exact_sum(small[0], 1.0)
    below = ordered_sum(below, lost + small[1])
    one = small[0] * 0.0 + 1.0
    negative = x < 0.0
    top = where(negative, e[0], one), where(negative, e[1], 0.0)
    first, rest = quotient_of_pairs(top, below)
    k = where(negative, k, 0.0)
    return scaled(first, k), scaled(rest, k)


@formula
def sigmoid_double(x: Any) -> Any:
    """Returns 1 / (1 + exp(-x))."""
    return rounded(sigmoid_pair(x))


@formula
def silu_double(x: Any) -> Any:
    """Returns x sigmoid(x)."""
    first, rest = sigmoid_pair(x)
    return fma(x, first, where(x.magnitude() < INFINITY, x * rest, 0.0))


@formula
def tanh_double(x: Any) -> Any:
    """Returns e / (e + 2) with e = exp(2 |x|) - 1."""
    e = expm1_pair(2.0 * at_most(x.magnitude(), 25.0))
    below, lost = exact_sum(e[0], 2.0)
    result = rounded(quotient_of_pairs(e, ordered_sum(below, lost + e[1])))
    return where(x.magnitude() < 2.0**-28, x, result).with_sign_of(x)


@formula
def softplus_double(x: Any, beta: Any, threshold: Any) -> Any:
    """Returns log(1 + exp(beta x)) / beta, and x where beta x is above the threshold; beta x and the quotient round."""
    product = x * beta
    k, e = exp_pair(where(product < -745.5, -745.5, at_most(product, 700.0)))
    first, rest = scaled(e[0], k), scaled(e[1], k)
    result = where(product < -40.0, first, rounded(log1p_pair(first, rest)))
    return where(product > threshold, x, result / beta)


@formula
def log_sigmoid_with_exponential_double(x: Any) -> Any:
    """Returns min(x, 0) - log(1 + exp(-|x|)), and exp(-|x|)."""
    k, e = exp_pair(-at_most(x.magnitude(), 745.5))
    first, rest = scaled(e[0], k), scaled(e[1], k)
    logarithm = log1p_pair(first, rest)
    small = x.magnitude() > 40.0
    high = where(small, first, logarithm[0])
    low = where(small, 0.0, logarithm[1])
    total, error = exact_sum(at_most(x, 0.0), -high)
    finite = where(x.magnitude() < INFINITY, total + (error - low), at_most(x, 0.0))
    return [where(x.equals(x), finite, x), first]
