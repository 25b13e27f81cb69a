"""Activation functions and their derivatives in float64, to be rounded once to float32.

The error is 2^-44 of the result. `grad` is a float32 number, and the numbers that torch takes (alpha, beta,
...) are those of float32, as float64. `..._double` is for float64: sigmoid, silu, softplus and log_sigmoid
have at most 0.6 ulp, what is composed of them 1 to 4, the error of products and quotients.
"""

from __future__ import annotations

import operator
from typing import Any

from samebits._native.formula import (
    INFINITY,
    NAN,
    at_least,
    at_most,
    fma,
    formula,
    in_each_precision,
    quotient,
    where,
)
from samebits.arithmetic.functions.error_functions import normal_cdf_double, normal_cdf_wide
from samebits.arithmetic.functions.exponential import (
    exp_double,
    exp_of_minus,
    exp_pair,
    exp_wide,
    expm1_double,
    expm1_wide,
    scaled,
)
from samebits.arithmetic.functions.logarithm import (
    log1p_double,
    log1p_pair,
    log1p_wide,
    log_double,
    log_of_sum,
    log_of_sum_short,
    log_wide,
    with_limits,
)
from samebits.arithmetic.functions.pairs import Pair, exact_sum, ordered_sum, quotient_of_pairs, rounded

_TANH_SCALE, _TANH_CUBIC = 0.7978845608028654, 0.044715
_DENSITY = 0.3989422804014327
"""sqrt(2 / pi) and 1 / sqrt(2 pi)."""


@formula
def sigmoid_wide(x: Any) -> Any:
    """Returns 1 / (1 + exp(-x)), from the exponential of -|x|, which never overflows."""
    e = exp_of_minus(x.magnitude())
    upper = quotient(1.0, 1.0 + e)
    return where(x < 0.0, e * upper, upper)


def _mish(exp: Any, divided: Any, x: Any) -> Any:
    """Returns x tanh(log(1 + e)) = x n / (n + 2) with n = e (e + 2), e = exp(x)."""
    e = exp(at_most(x, 40.0))
    n = e * (e + 2.0)
    return x * divided(n, n + 2.0)


mish_wide, mish_double = in_each_precision(_mish, (exp_wide, quotient), (exp_double, operator.truediv))


def _gelu(cdf: Any, x: Any) -> Any:
    """Returns x times the normal distribution function."""
    return x * cdf(x)


gelu_wide, gelu_double = in_each_precision(_gelu, (normal_cdf_wide,), (normal_cdf_double,))


def _elu(expm1: Any, x: Any, negative: Any, positive: Any, inner: Any) -> Any:
    """Returns x times one factor above zero, and expm1 of x times another, times the first, below."""
    return where(x <= 0.0, expm1(x * inner) * negative, x * positive)


elu_wide, elu_double = in_each_precision(_elu, (expm1_wide,), (expm1_double,))


@formula
def logit_wide(x: Any) -> Any:
    """Returns log(x / (1 - x)); near 1/2, the quotient is 1 + (2 x - 1) / (1 - x)."""
    inverse = quotient(1.0, 1.0 - x)
    odds = where(x.equals(1.0), x.constant(INFINITY), x * inverse)
    return with_limits(odds, log_of_sum(odds, fma(2.0, x, -1.0) * inverse))


@formula
def logit_short(x: Any) -> Any:
    """Returns log(x / (1 - x)) in float32, for bfloat16 and float16."""
    odds = x / (1.0 - x)
    return with_limits(odds, log_of_sum_short(odds, fma(2.0, x, -1.0) / (1.0 - x)))


@formula
def sigmoid_backward_wide(grad: Any, output: Any) -> Any:
    """Returns grad y (1 - y)."""
    return grad * ((1.0 - output) * output)


sigmoid_backward_short = sigmoid_backward_wide
"""In float32, three roundings are still far below one of bfloat16 or float16."""


@formula
def mish_backward_wide(grad: Any, x: Any) -> Any:
    """Returns grad (t + x s (1 - t^2)) with t = tanh(softplus(x)), s = sigmoid(x)."""
    e = exp_wide(at_most(x, 40.0))
    n = e * (e + 2.0)
    inverse = quotient(1.0, n + 2.0)
    t = n * inverse
    # s (1 - t^2) = e / (1 + e) * 4 (n + 1) / (n + 2)^2, with n + 1 = (1 + e)^2
    slope = (4.0 * (e * (e + 1.0))) * (inverse * inverse)
    return grad * fma(x, where(x > 40.0, 0.0, slope), t)


def _gelu_backward(exp: Any, cdf: Any, grad: Any, x: Any) -> Any:
    """Returns grad (cdf(x) + x density(x))."""
    density = _DENSITY * exp(-0.5 * (x * x))
    return grad * fma(x, density, cdf(x))


gelu_backward_wide, gelu_backward_double = in_each_precision(
    _gelu_backward, (exp_wide, normal_cdf_wide), (exp_double, normal_cdf_double)
)


@formula
def gelu_tanh_backward_wide(grad: Any, x: Any) -> Any:
    """Returns grad (s + 2 x s (1 - s) t') with s = sigmoid(2 t), t' = sqrt(2 / pi) (1 + 3 * 0.044715 x^2)."""
    square = x * x
    scaled = (2.0 * _TANH_SCALE) * (x * fma(square, _TANH_CUBIC, 1.0))
    e = exp_of_minus(scaled.magnitude())
    upper = quotient(1.0, 1.0 + e)
    lower = e * upper
    s = where(scaled < 0.0, lower, upper)
    inner = (2.0 * _TANH_SCALE) * fma(square, 3.0 * _TANH_CUBIC, 1.0)
    return grad * fma(x * inner, upper * lower, s)


def _elu_backward(exp: Any, grad: Any, x: Any, negative: Any, positive: Any, inner: Any) -> Any:
    """Returns the derivative of elu from its input."""
    return where(x <= 0.0, grad * ((inner * negative) * exp(x * inner)), grad * positive)


elu_backward_wide, elu_backward_double = in_each_precision(_elu_backward, (exp_wide,), (exp_double,))


@formula
def elu_backward_of_result_wide(grad: Any, y: Any, negative: Any, positive: Any, inner: Any) -> Any:
    """Returns the derivative of elu from its result."""
    return where(y <= 0.0, grad * (inner * (y + negative)), grad * positive)


@formula
def logit_backward_wide(grad: Any, x: Any) -> Any:
    """Returns grad / (x (1 - x)), NaN outside of 0 and 1."""
    inside = (x >= 0.0) & (x <= 1.0)
    return where(inside, grad / (x * (1.0 - x)), NAN)


@formula
def logit_backward_clamped_wide(grad: Any, x: Any, low: Any, high: Any) -> Any:
    """Returns grad / (x (1 - x)), and zero outside of [low, high]."""
    outside = (x < low) | (x > high)
    return where(outside, 0.0, grad / (x * (1.0 - x)))


# Of float64, from exponentials as pairs.


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


def _gelu_tanh(sigmoid: Any, x: Any) -> Any:
    """Returns x (1 + tanh(t)) / 2 = x sigmoid(2 t) with t = sqrt(2 / pi) (x + 0.044715 x^3)."""
    return x * sigmoid((2.0 * _TANH_SCALE) * (x * fma(x * x, _TANH_CUBIC, 1.0)))


gelu_tanh_wide, gelu_tanh_double = in_each_precision(_gelu_tanh, (sigmoid_wide,), (sigmoid_double,))


@formula
def softplus_double(x: Any, beta: Any, threshold: Any) -> Any:
    """Returns log(1 + exp(beta x)) / beta, or x if beta x is above the threshold; beta x and / beta round."""
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


@formula
def gelu_tanh_backward_double(grad: Any, x: Any) -> Any:
    """Returns grad (s + 2 x s (1 - s) t') with s = sigmoid(2 t), t' = sqrt(2 / pi) (1 + 3 * 0.044715 x^2)."""
    square = x * x
    scaled_x = (2.0 * _TANH_SCALE) * (x * fma(square, _TANH_CUBIC, 1.0))
    s, rest = sigmoid_double(scaled_x), sigmoid_double(-scaled_x)
    inner = (2.0 * _TANH_SCALE) * fma(square, 3.0 * _TANH_CUBIC, 1.0)
    return grad * fma(x * inner, s * rest, s)


@formula
def silu_backward_double(grad: Any, x: Any) -> Any:
    """Returns grad s (1 + x (1 - s)) with s = sigmoid(x)."""
    return grad * (sigmoid_double(x) * fma(x, sigmoid_double(-x), 1.0))


@formula
def softplus_backward_double(grad: Any, x: Any, beta: Any, threshold: Any) -> Any:
    """Returns grad sigmoid(beta x), and grad where beta x is above the threshold."""
    product = x * beta
    return where(product > threshold, grad, grad * sigmoid_double(product))


@formula
def mish_backward_double(grad: Any, x: Any) -> Any:
    """Returns grad (t + x s (1 - t^2)) with t = tanh(softplus(x)), s = sigmoid(x)."""
    e = exp_double(at_most(x, 40.0))
    n = e * (e + 2.0)
    inverse = 1.0 / (n + 2.0)
    slope = (4.0 * (e * (e + 1.0))) * (inverse * inverse)
    return grad * fma(x, where(x > 40.0, 0.0, slope), n * inverse)


@formula
def log_sigmoid_backward_double(grad: Any, x: Any) -> Any:
    """Returns grad sigmoid(-x)."""
    return grad * sigmoid_double(-x)


@formula
def glu_double(x: Any, gate: Any) -> Any:
    """Returns x sigmoid(gate)."""
    return x * sigmoid_double(gate)


@formula
def glu_gate_backward_double(grad: Any, x: Any, gate: Any) -> Any:
    """Returns grad x s (1 - s) with s = sigmoid(gate)."""
    return (grad * x) * (sigmoid_double(gate) * sigmoid_double(-gate))


@formula
def logit_double(x: Any) -> Any:
    """Returns log(x / (1 - x)), from a quotient as a pair: log1p((2 x - 1) / (1 - x)) near 1/2."""
    near = (x > 0.25) & (x < 0.75)
    bounded = where(near, x, 0.5)
    ratio = quotient_of_pairs(exact_sum(2.0 * bounded, -1.0), exact_sum(-bounded, 1.0))
    inner = rounded(log1p_pair(*ratio))
    outer = where(x.equals(1.0), x.constant(INFINITY), log_double(x / (1.0 - x)))
    return where(near, inner, outer)


def _logit_clamped(logit: Any, x: Any, low: Any, high: Any) -> Any:
    """Returns the logit of x bounded to [low, high]."""
    return logit(where(x < low, low, where(x > high, high, x)))


logit_clamped_wide, logit_clamped_double = in_each_precision(_logit_clamped, (logit_wide,), (logit_double,))


# The elementwise parts of losses in float64, to be rounded once to float32.


def _binary_cross_entropy(log: Any, log1p: Any, x: Any, target: Any) -> Any:
    """Returns (t - 1) max(log(1 - x), -100) - t max(log(x), -100)."""
    other = at_least(log1p(-x), -100.0)
    return fma(target - 1.0, other, -(target * at_least(log(x), -100.0)))


binary_cross_entropy_wide, binary_cross_entropy_double = in_each_precision(
    _binary_cross_entropy, (log_wide, log1p_wide), (log_double, log1p_double)
)


@formula
def smooth_l1_backward_wide(grad: Any, x: Any, target: Any, norm: Any, beta: Any) -> Any:
    """Returns norm grad d / beta where |d| < beta, d = x - t, else norm grad with the sign of d."""
    difference = x - target
    size = difference.magnitude()
    inside = size < beta
    slope = difference / where(inside, beta, 1.0)
    outside = where(size > 0.0, difference.constant(1.0).with_sign_of(difference), difference)
    return norm * (grad * where(inside, slope, outside))


@formula
def huber_backward_wide(grad: Any, x: Any, target: Any, norm: Any, delta: Any) -> Any:
    """Returns norm grad d where |d| < delta, d = x - t, else norm grad delta with the sign of d."""
    difference = x - target
    outside = where(difference > 0.0, delta, where(difference < 0.0, -delta, difference))
    return norm * (grad * where(difference.magnitude() < delta, difference, outside))
