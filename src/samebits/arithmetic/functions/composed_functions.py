"""Functions of float64 composed of the others, with 1 to 4 ulp: the error of products and quotients."""

from __future__ import annotations

from typing import Any

from samebits._native.formula import (
    INFINITY,
    NAN,
    ROUNDING,
    at_least,
    at_most,
    fma,
    formula,
    polynomial,
    where,
)
from samebits.arithmetic.functions.activations import sigmoid_double
from samebits.arithmetic.functions.coefficients import (
    ERF_LONG,
    ERFC_LONG,
    ERFINV_CENTER,
    ERFINV_FAR,
    ERFINV_TAIL,
)
from samebits.arithmetic.functions.exponential import (
    exp2_double,
    exp_double,
    exp_pair,
    expm1_double,
    expm1_pair,
    scaled,
)
from samebits.arithmetic.functions.logarithm import log1p_double, log1p_pair, log_double
from samebits.arithmetic.functions.pairs import (
    exact_product,
    exact_sum,
    ordered_sum,
    quotient_of_pairs,
    rounded,
)
from samebits.arithmetic.functions.trigonometry import sin_double

_TANH_SCALE, _TANH_CUBIC = 0.7978845608028654, 0.044715
PI, LOG2_E = 3.141592653589793, 1.4426950408889634
_DENSITY = 0.3989422804014327
_ROOT_HALF = (0.7071067811865476, -4.833646656726457e-17)


@formula
def sinh_double(x: Any) -> Any:
    """Returns the hyperbolic sine: (e + e / (e + 1)) / 2, e = exp(|x|) - 1; half of exp(|x|) from 40 on."""
    size = x.magnitude()
    e = expm1_pair(at_most(size, 41.0))
    below, lost = exact_sum(e[0], 1.0)
    ratio = quotient_of_pairs(e, ordered_sum(below, lost + e[1]))
    total, error = exact_sum(e[0], ratio[0])
    near = 0.5 * (total + (error + (e[1] + ratio[1])))
    k, far = exp_pair(at_most(size, 711.0))
    result = where(size > 40.0, scaled(far[0], k - 1.0), near)
    result = where(size < 2.0**-28, size, result)
    return where(size < INFINITY, result, size).with_sign_of(x)


@formula
def cosh_double(x: Any) -> Any:
    """Returns the hyperbolic cosine: (e + 1 / e) / 2 with e = exp(|x|)."""
    size = x.magnitude()
    k, pair = exp_pair(at_most(size, 711.0))
    near = where(size > 40.0, 0.0, k)
    e = scaled(pair[0], near), scaled(pair[1], near)
    inverse = quotient_of_pairs((e[0] * 0.0 + 1.0, 0.0 * e[0]), e)
    total, error = exact_sum(e[0], inverse[0])
    result = 0.5 * (total + (error + (e[1] + inverse[1])))
    return where(size < INFINITY, where(size > 40.0, scaled(pair[0], k - 1.0), result), size)


@formula
def erfc_of_positive(x: Any, square: Any, square_rest: Any) -> Any:
    """Returns erfc(x) for 0 <= x <= 27.5, from x^2 as a pair."""
    k, e = exp_pair(-at_most(square, 746.0))
    below = x + 3.5
    ratio = polynomial((x - 3.5) / below, ERFC_LONG) / below
    return scaled(fma(-e[0], square_rest, e[0]) * ratio, k)


@formula
def erfc_double(x: Any) -> Any:
    """Returns 1 - erf(x)."""
    size = at_most(x.magnitude(), 27.5)
    far = erfc_of_positive(size, *exact_product(size, size))
    bounded = at_least(at_most(x, 0.5), -0.5)
    part = bounded * polynomial(bounded * bounded, ERF_LONG)
    total, error = exact_sum(-bounded, 1.0)
    near = total + (error - part)
    outer = where(x < 0.0, 2.0 - far, far)
    return where(
        x.magnitude() < 0.5, near, where(x.magnitude() > 27.5, where(x < 0.0, x.constant(2.0), 0.0), outer)
    )


@formula
def erf_double(x: Any) -> Any:
    """Returns the error function."""
    size = at_most(x.magnitude(), 6.5)
    near = fma(size, polynomial(size * size, ERF_LONG), size)
    far = 1.0 - erfc_of_positive(size, *exact_product(size, size))
    return where(size < 1.0, near, far).with_sign_of(x)


@formula
def erfinv_double(x: Any) -> Any:
    """Returns the number whose erf is x: a polynomial, and one Halley step, by erfc where x is large."""
    size = x.magnitude()
    inside = size < 1.0
    bounded = where(inside, size, 0.5)
    rest = 1.0 - bounded
    w = -log_double(rest * (1.0 + bounded))
    s = w.square_root()
    ratio = polynomial((s - 3.35) * 1.1111111111111112, ERFINV_TAIL)
    ratio = where(w > 17.0, polynomial((s - 5.15) * 0.9523809523809523, ERFINV_FAR), ratio)
    ratio = where(w > 6.25, ratio, polynomial(fma(w, 0.32, -1.0), ERFINV_CENTER))
    start = bounded * ratio
    square, lost = exact_product(start, start)
    error = where(bounded > 0.5, rest - erfc_of_positive(start, square, lost), erf_double(start) - bounded)
    step = error * (0.886226925452758 * exp_double(square))
    result = start - step / fma(start, step, 1.0)
    tiny = size < 2.0**-30
    result = where(tiny, size * 0.886226925452758, result)
    return where(inside, result, where(size.equals(1.0), size * INFINITY, NAN)).with_sign_of(x)


@formula
def normal_cdf_double(x: Any) -> Any:
    """Returns erfc(-x / sqrt(2)) / 2."""
    size = at_most(x.magnitude(), 38.5)
    square, rest = exact_product(size, size)
    below = 0.5 * erfc_of_positive(size * _ROOT_HALF[0], 0.5 * square, 0.5 * rest)
    below = where(size < 38.5, below, 0.0 * below)
    return where(x > 0.0, 1.0 - below, below)


@formula
def gelu_double(x: Any) -> Any:
    """Returns x times the normal distribution function."""
    return x * normal_cdf_double(x)


@formula
def gelu_backward_double(grad: Any, x: Any) -> Any:
    """Returns grad (cdf(x) + x density(x))."""
    return grad * fma(x, _DENSITY * exp_double(-0.5 * (x * x)), normal_cdf_double(x))


@formula
def gelu_tanh_double(x: Any) -> Any:
    """Returns x sigmoid(2 t) with t = sqrt(2 / pi) (x + 0.044715 x^3)."""
    return x * sigmoid_double((2.0 * _TANH_SCALE) * (x * fma(x * x, _TANH_CUBIC, 1.0)))


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
def mish_double(x: Any) -> Any:
    """Returns x n / (n + 2) with n = e (e + 2), e = exp(x)."""
    e = exp_double(at_most(x, 40.0))
    n = e * (e + 2.0)
    return x * (n / (n + 2.0))


@formula
def mish_backward_double(grad: Any, x: Any) -> Any:
    """Returns grad (t + x s (1 - t^2)) with t = tanh(softplus(x)), s = sigmoid(x)."""
    e = exp_double(at_most(x, 40.0))
    n = e * (e + 2.0)
    inverse = 1.0 / (n + 2.0)
    slope = (4.0 * (e * (e + 1.0))) * (inverse * inverse)
    return grad * fma(x, where(x > 40.0, 0.0, slope), n * inverse)


@formula
def elu_double(x: Any, negative: Any, positive: Any, inner: Any) -> Any:
    """Returns x times one factor above zero, and expm1 of x times another, times the first, below."""
    return where(x <= 0.0, expm1_double(x * inner) * negative, x * positive)


@formula
def elu_backward_double(grad: Any, x: Any, negative: Any, positive: Any, inner: Any) -> Any:
    """Returns the derivative of elu from its input."""
    return where(x <= 0.0, grad * ((inner * negative) * exp_double(x * inner)), grad * positive)


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


@formula
def logit_clamped_double(x: Any, low: Any, high: Any) -> Any:
    """Returns the logit of x bounded to [low, high]."""
    return logit_double(where(x < low, low, where(x > high, high, x)))


@formula
def hypot_double(x: Any, y: Any) -> Any:
    """Returns sqrt(x^2 + y^2) without overflow, squares as pairs; infinite if one is, even beside NaN."""
    a, b = x.magnitude(), y.magnitude()
    larger, smaller = where(a >= b, a, b), where(a >= b, b, a)
    one = larger.constant(1.0)
    down = where(larger > 2.0**500, 2.0**-600, where(larger < 2.0**-400, 2.0**600, one))
    up = where(larger > 2.0**500, 2.0**600, where(larger < 2.0**-400, 2.0**-600, one))
    big, small = larger * down, smaller * down
    square, rest = exact_product(big, big)
    other, other_rest = exact_product(small, small)
    total, lost = ordered_sum(square, other)
    total = total + (lost + (rest + other_rest))
    result = total.square_root() * up
    result = where(larger.equals(0.0), larger, result)
    result = where(a.equals(a) & b.equals(b), result, NAN)
    return where(a.equals(INFINITY) | b.equals(INFINITY), x.constant(INFINITY), result)


@formula
def sinc_double(x: Any) -> Any:
    """Returns sin(pi x) / (pi x), and 1 at zero; x less an even number is exact."""
    half = 0.5 * where(x.magnitude() < 2.0**51, x, 0.0)
    rest = 2.0 * (half - ((half + ROUNDING) - ROUNDING))
    sine = sin_double(rest * PI)
    result = sine / (x * PI)
    result = where(x.magnitude() < 2.0**51, result, where(x.magnitude() < INFINITY, x.constant(0.0), NAN))
    return where(x.equals(0.0), x.constant(1.0), result)


@formula
def logaddexp2_double(x: Any, y: Any) -> Any:
    """Returns the larger one, plus log1p(2^(-difference)) log2(e)."""
    larger = where(x >= y, x, y)
    result = larger + log1p_double(exp2_double(-(x - y).magnitude())) * LOG2_E
    return where(x.equals(y) & x.magnitude().equals(INFINITY), x, result)


@formula
def logaddexp_double(x: Any, y: Any) -> Any:
    """Returns the larger one, plus log1p(exp(-difference))."""
    larger = where(x >= y, x, y)
    result = larger + log1p_double(exp_double(-(x - y).magnitude()))
    return where(x.equals(y) & x.magnitude().equals(INFINITY), x, result)


@formula
def xlogy_double(x: Any, y: Any) -> Any:
    """Returns x log(y), and zero for x = 0 unless y is NaN."""
    return where(y.equals(y), where(x.equals(0.0), x.constant(0.0), x * log_double(y)), NAN)


@formula
def xlog1py_double(x: Any, y: Any) -> Any:
    """Returns x log(1 + y), and zero for x = 0 unless y is NaN."""
    return where(y.equals(y), where(x.equals(0.0), x.constant(0.0), x * log1p_double(y)), NAN)


@formula
def entr_double(x: Any) -> Any:
    """Returns -x log(x), zero at zero, minus infinity below."""
    result = where(x > 0.0, -x * log_double(x), where(x.equals(0.0), x.constant(0.0), -INFINITY))
    return where(x.equals(x), result, NAN)


@formula
def binary_cross_entropy_double(x: Any, target: Any) -> Any:
    """Returns (t - 1) max(log(1 - x), -100) - t max(log(x), -100)."""
    other = at_least(log1p_double(-x), -100.0)
    return fma(target - 1.0, other, -(target * at_least(log_double(x), -100.0)))
