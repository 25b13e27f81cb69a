"""Activation functions and their derivatives in float32: at most 1 ulp, where the result is no difference.

An exponential is a pair of float32 with an error of 2^-25, and what is made of it keeps the rest of each
rounding that counts. A derivative that has a zero (of silu, of gelu) has an error of 2^-23 of its terms.

The normal distribution function below zero is one of 16 polynomials, each of which falls about as much;
below -4.8 it is the one in float64. With the density it is exp(-x^2 / 2) R(x), where R(x) is one of 16, by x
rounded to a multiple of 5/16. `..._short` has 16 polynomials of larger steps, and the error of its result is
2^-16: it is for bfloat16 and float16.
"""

from __future__ import annotations

from typing import Any

from samebits._native.formula import (
    INFINITY,
    NAN,
    ROUNDING_NARROW,
    at_least,
    at_most,
    by_horners_rule,
    fma,
    formula,
    where,
)
from samebits.arithmetic.functions.activations import gelu_backward_wide, gelu_wide
from samebits.arithmetic.functions.coefficients import (
    ATANH_NARROW,
    NORMAL_BEYOND_NARROW,
    NORMAL_TAIL_NARROW,
    NORMAL_TAIL_SHORT,
)
from samebits.arithmetic.functions.exponential import exp_pair_narrow, power_of_two_narrow, reduced_narrow
from samebits.arithmetic.functions.pairs import Pair, exact_product, exact_sum, ordered_sum, rounded

_DENSITY = 0.3989422804014327
_SHIFT = 40
"""1 + exp(-x) is multiplied by 2^-40, so that it is finite wherever its inverse is not zero."""
_LARGEST = 3.4028234663852886e38
_UP = 24
"""Powers of two that may be subnormal are multiplied by 2^24 first, so that results are rounded once."""
_STEP, _FAR, _LONG_STEP = 5 / 16, 4.8, 29 / 32
"""The distances of the polynomials of R, and where R of float32 ends."""


def _inverse_of_one_plus_exp(x: Any, low: Any = None) -> tuple[Any, Pair]:
    """Returns exp(-x - low) 2^-40 and the pair with 2^-40 pair = sigmoid(x + low)."""
    bounded = at_most(at_least(x, -110.0), float(_SHIFT))
    k, (e, rest) = exp_pair_narrow(-bounded, None if low is None else -low)
    power = power_of_two_narrow(k, -_SHIFT)
    exponential = e * power
    below, lost = exact_sum(exponential, 2.0**-_SHIFT)
    inverse = 1.0 / below
    error = fma(-inverse, fma(rest, power, lost), fma(-inverse, below, 1.0))
    return exponential, (inverse, inverse * error)


@formula
def sigmoid_narrow(x: Any) -> Any:
    """Returns 1 / (1 + exp(-x))."""
    return rounded(_inverse_of_one_plus_exp(x)[1]) * 2.0**-_SHIFT


@formula
def silu_narrow(x: Any) -> Any:
    """Returns x / (1 + exp(-x)); NaN at minus infinity, as IEEE has it for infinity times zero."""
    inverse, rest = _inverse_of_one_plus_exp(x)[1]
    bounded = at_least(x, -110.0)
    result = where(x > _SHIFT, x, fma(bounded, inverse, bounded * rest) * 2.0**-_SHIFT)
    return where(x.equals(-INFINITY), NAN, result)


def _times_sigmoid(factor: Any, x: Any, low: Any = None) -> Any:
    """Returns the factor times sigmoid(x + low), also of an infinite factor."""
    inverse, rest = _inverse_of_one_plus_exp(x, low)[1]
    bounded = at_least(at_most(factor, _LARGEST), -_LARGEST)
    return fma(factor, inverse * 2.0**-_SHIFT, bounded * (rest * 2.0**-_SHIFT))


@formula
def glu_narrow(x: Any, gate: Any) -> Any:
    """Returns x sigmoid(gate)."""
    return _times_sigmoid(x, gate)


@formula
def glu_gate_backward_narrow(grad: Any, x: Any, gate: Any) -> Any:
    """Returns grad x s (1 - s) with s = sigmoid(-|gate|)."""
    exponential, pair = _inverse_of_one_plus_exp(-gate.magnitude())
    inverse = rounded(pair)
    return (grad * x) * ((exponential * inverse) * (inverse * 2.0**-_SHIFT))


@formula
def tanh_backward_narrow(grad: Any, output: Any) -> Any:
    """Returns grad (1 - y^2)."""
    return grad * fma(-output, output, 1.0)


@formula
def silu_backward_narrow(grad: Any, x: Any) -> Any:
    """Returns grad s (1 + x (1 - s)) with s = sigmoid(x)."""
    exponential, pair = _inverse_of_one_plus_exp(x)
    inverse, bounded = rounded(pair), at_most(at_least(x, -110.0), float(_SHIFT))
    slope = (inverse * 2.0**-_SHIFT) * fma(bounded, exponential * inverse, 1.0)
    return grad * where(x.magnitude() < INFINITY, slope, NAN)


@formula
def log_sigmoid_backward_narrow(grad: Any, x: Any) -> Any:
    """Returns grad sigmoid(-x)."""
    return _times_sigmoid(grad, -x)


@formula
def softplus_backward_narrow(grad: Any, x: Any, beta: Any, threshold: Any) -> Any:
    """Returns grad sigmoid(beta x), and grad where beta x is above the threshold."""
    product, low = _bounded_product(x, beta)
    return where(product > threshold, grad, _times_sigmoid(grad, product, low))


def _bounded_product(x: Any, factor: Any) -> Pair:
    """Returns the product as a pair; the second number is zero where the first is beyond 200."""
    product, low = exact_product(x, factor)
    return product, where(product.magnitude() < 200.0, low, 0.0)


def _log1p_of_exp(x: Any, low: Any = None) -> tuple[Any, Pair]:
    """Returns exp(x + low), and log(1 + exp(x + low)) = 2 atanh(e / (2 + e)) as a pair, for x <= 0."""
    k, (e, rest) = exp_pair_narrow(at_least(x, -104.0), low)
    power = power_of_two_narrow(k, _UP)
    exponential, rest = (e * power) * 2.0**-_UP, (rest * power) * 2.0**-_UP
    below = exponential + 2.0
    inverse = 1.0 / below
    ratio = exponential * inverse
    lost = (exponential - (below - 2.0)) + rest
    error = inverse * fma(-ratio, lost, fma(-ratio, below, exponential) + rest)
    square = ratio * ratio
    tail = fma(ratio * square, by_horners_rule(square, ATANH_NARROW), 2.0 * error)
    small = x < -17.0
    return exponential, (where(small, exponential, 2.0 * ratio), where(small, 0.0, tail))


@formula
def softplus_narrow(x: Any, beta: Any, threshold: Any) -> Any:
    """Returns log(1 + exp(beta x)) / beta, and x where beta x is above the threshold."""
    product, low = _bounded_product(x, beta)
    first, rest = _log1p_of_exp(-product.magnitude(), where(product > 0.0, -low, low))[1]
    total, error = exact_sum(at_least(product, 0.0), first)
    high = where(product > 0.0, low, 0.0)
    beyond = (product > threshold) | product.equals(INFINITY)
    return where(beyond, x, (total + (error + (rest + high))) / beta)


@formula
def log_sigmoid_with_exponential_narrow(x: Any) -> Any:
    """Returns min(x, 0) - log(1 + exp(-|x|)), and exp(-|x|), which torch's kernel keeps."""
    exponential, (first, rest) = _log1p_of_exp(-x.magnitude())
    total, error = exact_sum(at_most(x, 0.0), -first)
    return [where(x > -INFINITY, total + (error - rest), x), exponential]


def _density_and_tail(x: Any) -> tuple[Any, Pair, Pair]:
    """Returns k + ROUNDING_NARROW and pairs e and r with exp(-x^2 / 2) = 2^k e, and R(|x|), for |x| < 4.8."""
    size = x.magnitude()
    k, e = exp_pair_narrow(*exact_product(-0.5 * size, size))
    place = fma(size, 1.0 / _STEP, ROUNDING_NARROW)
    first, rest, *others = place.bits().looked_up(NORMAL_TAIL_NARROW)
    offset = fma(place - ROUNDING_NARROW, -_STEP, size)
    return k, e, ordered_sum(first, fma(offset, by_horners_rule(offset, others), rest))


@formula
def gelu_narrow(x: Any) -> Any:
    """Returns x times the normal distribution function: max(x, 0) - |x| cdf(-|x|)."""
    size = x.magnitude()
    place = fma(size, fma(size, 61 / 128, 15 / 16), ROUNDING_NARROW)
    center, value, slope, *others = place.bits().looked_up(NORMAL_BEYOND_NARROW)
    offset = size - center
    part, error = exact_product(offset, slope)
    beyond, rest = ordered_sum(value, part)
    rest = rest + fma(offset * offset, by_horners_rule(offset, others), error)
    below, lost = exact_product(size, beyond)
    total, error = ordered_sum(at_least(x, 0.0), -below)
    near = total + (error - fma(size, rest, lost))
    return (~(size < _FAR)).rarely(near, lambda: gelu_wide(x.as_float64()).as_float32())


def _is_positive(x: Any) -> Any:
    """Returns 1 for a positive sign, that of +0 too, else 0."""
    return x.constant(0.5).with_sign_of(x) + 0.5


@formula
def gelu_backward_narrow(grad: Any, x: Any) -> Any:
    """Returns grad (cdf(x) + x density(x))."""
    k, e, tail = _density_and_tail(x)
    slope = fma(x, _DENSITY, -tail[0].with_sign_of(x))
    near = grad * fma(e[0] * power_of_two_narrow(k), slope, _is_positive(x))

    def far() -> Any:
        return gelu_backward_wide(grad.as_float64(), x.as_float64()).as_float32()

    return (~(x.magnitude() < _FAR)).rarely(near, far)


def _density_and_tail_short(size: Any) -> tuple[Any, Any]:
    """Returns exp(-size^2 / 2) and R(size) to 2^-16, for sizes up to 14."""
    k, r, rest = reduced_narrow(-0.5 * (size * size))
    e = (r + rest) + 1.0
    place = fma(size, 1.0 / _LONG_STEP, ROUNDING_NARROW)
    offset = fma(place - ROUNDING_NARROW, -_LONG_STEP, size)
    tail = by_horners_rule(offset, place.bits().looked_up(NORMAL_TAIL_SHORT))
    return (e * power_of_two_narrow(k, _UP)) * 2.0**-_UP, tail


@formula
def gelu_short(x: Any) -> Any:
    """Returns x times the normal distribution function; beyond 14 it is x or zero in 16 bits."""
    size = at_most(x.magnitude(), 14.0)
    density, tail = _density_and_tail_short(size)
    return where(x.equals(-INFINITY), NAN, at_least(x, 0.0) - (size * density) * tail)


@formula
def gelu_backward_short(grad: Any, x: Any) -> Any:
    """Returns grad (cdf(x) + x density(x))."""
    size = at_most(x.magnitude(), 14.0)
    density, tail = _density_and_tail_short(size)
    slope = fma(size.with_sign_of(x), _DENSITY, -tail.with_sign_of(x))
    derivative = fma(density, slope, _is_positive(x))
    return grad * where(x.magnitude() < INFINITY, derivative, NAN)
