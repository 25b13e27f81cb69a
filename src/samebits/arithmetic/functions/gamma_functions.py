"""log gamma and its first two derivatives, in float64.

With |t| <= 1/2 and an integer n, log gamma(2 + t + n) = S(t) + log((2 + t) ... (1 + t + n)), S being the
power series of log gamma at 2. Below 1.5 it is the power series at 1, from 9.5 on Stirling's series. The
derivatives are computed by their recurrences to 10, then by their series. Negative numbers are reflected:
next to a zero there the error is that of the terms, some 2^-52, not of the result.
"""

from __future__ import annotations

import math
from typing import Any

from samebits._native.formula import INFINITY, NAN, ROUNDING, by_horners_rule, fma, in_each_precision, where
from samebits.arithmetic.functions.logarithm import log_double, log_wide
from samebits.arithmetic.functions.trigonometry import cos_double, cos_wide, sin_double, sin_wide

_EULER = 0.5772156649015329


def _zeta_less_one(k: int) -> float:
    """Returns 2^-k + 3^-k + ... for k >= 2: 398 terms, and the rest by Euler and Maclaurin."""
    n = 400
    rest = n ** (1 - k) / (k - 1) + n**-k / 2 + k * n ** (-k - 1) / 12
    rest -= k * (k + 1) * (k + 2) * n ** (-k - 3) / 720
    return math.fsum([*(float(i) ** -k for i in range(2, n)), rest])


_AT_2 = (0.0, 1 - _EULER, *((-1) ** k * _zeta_less_one(k) / k for k in range(2, 29)))
"""Coefficients of S(t)."""
_AT_1 = (0.0, -_EULER, *((-1) ** k * (1 + _zeta_less_one(k)) / k for k in range(2, 54)))
"""Those of log gamma(1 + t)."""
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)
_STIRLING = tuple(b / ((2 * k + 1) * (2 * k + 2)) for k, b in enumerate(_BERNOULLI))
_DIGAMMA = tuple(b / (2 * k + 2) for k, b in enumerate(_BERNOULLI))
_HALF_LOG_TAU, _LOG_PI = 0.5 * math.log(math.tau), math.log(math.pi)


def _fraction(x: Any) -> Any:
    """Returns x less the integer next to it; 0 of numbers that have no fraction."""
    whole = where(x.magnitude() < 2.0**51, (x + ROUNDING) - ROUNDING, x)
    return x - whole


def _log_gamma_of_positive(z: Any, log: Any) -> Any:
    """Returns log gamma of a number above 1/2."""
    small = where(z < 9.5, z, 2.0)
    t, below = _fraction(small), small < 1.5
    product = small.constant(1.0)
    for i in range(1, 8):
        factor = small - float(i)
        product = where(factor > 1.5 + t, product * factor, product)
    near = where(below, by_horners_rule(t, _AT_1), by_horners_rule(t, _AT_2) + log(product))
    inverse = 1.0 / z
    series = by_horners_rule(inverse * inverse, _STIRLING) * inverse
    far = fma(z - 0.5, log(z), -z) + (_HALF_LOG_TAU + series)
    return where(z < 9.5, near, where(z < INFINITY, far, z))


def _log_gamma(log: Any, sin: Any, x: Any) -> Any:
    """Returns log |gamma(x)|."""
    size = x.magnitude()
    tiny = size <= 0.5
    of_size = _log_gamma_of_positive(where(tiny, 1.0 + size, size), log) - where(tiny, log(size), 0.0)
    turn = sin(math.pi * _fraction(size)).magnitude()
    reflected = _LOG_PI - (log(size) + log(turn)) - of_size
    result = where(x < 0.0, where(size < INFINITY, reflected, INFINITY), of_size)
    return where(x.equals(0.0), INFINITY, result)


def digamma_of_positive(x: Any, log: Any = log_wide) -> Any:
    """Returns the derivative of log gamma of a positive number."""
    result, shifted = x.constant(0.0), x
    for _ in range(10):
        small = shifted < 10.0
        result = where(small, result - 1.0 / shifted, result)
        shifted = where(small, shifted + 1.0, shifted)
    z = 1.0 / (shifted * shifted)
    return result + (log(shifted) - 0.5 / shifted - z * by_horners_rule(z, _DIGAMMA))


def _digamma(log: Any, sin: Any, cos: Any, x: Any) -> Any:
    """Returns the derivative of log gamma."""
    size, negative = x.magnitude(), x < 0.0
    turn = math.pi * _fraction(size)
    of_size = digamma_of_positive(where(negative, 1.0 + size, x), log)
    reflected = where(turn.equals(0.0), NAN, of_size + math.pi * (cos(turn) / sin(turn)))
    return where(negative, reflected, of_size)


def _trigamma(sin: Any, x: Any) -> Any:
    """Returns the second derivative of log gamma."""
    size, negative = x.magnitude(), x < 0.0
    shifted, result = where(negative, 1.0 + size, x), x.constant(0.0)
    for _ in range(10):
        small = shifted < 10.0
        result = where(small, result + 1.0 / (shifted * shifted), result)
        shifted = where(small, shifted + 1.0, shifted)
    inverse = 1.0 / shifted
    z = inverse * inverse
    result = result + (inverse + 0.5 * z + z * inverse * by_horners_rule(z, _BERNOULLI))
    turned = math.pi / sin(math.pi * _fraction(size))
    return where(negative, turned * turned - result, result)


log_gamma_wide, log_gamma_double = in_each_precision(
    _log_gamma, (log_wide, sin_wide), (log_double, sin_double)
)
digamma_wide, digamma_double = in_each_precision(
    _digamma, (log_wide, sin_wide, cos_wide), (log_double, sin_double, cos_double)
)
trigamma_wide, trigamma_double = in_each_precision(_trigamma, (sin_wide,), (sin_double,))
