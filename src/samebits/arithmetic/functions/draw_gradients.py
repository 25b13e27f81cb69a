"""Gradients of gamma and Dirichlet draws by their parameters, in float64.

For a draw x with the distribution function F(x; a) and the density f the implicit gradient is -(dF/da) / f
(Figurnov, Mohamed, Mnih, 2018). The approximations and the regions in which they hold are those of torch
(ATen/native/Distributions.h; relative error about 5e-4), with x^a / x^(a - 1) written as x.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from samebits._native.formula import NAN, by_horners_rule, formula, where
from samebits.arithmetic.functions.exponential import exp_wide
from samebits.arithmetic.functions.gamma_functions import digamma_of_positive
from samebits.arithmetic.functions.logarithm import log1p_wide, log_wide

_GAMMA = (
    (0.16009398, -0.094634809, 0.025146376, -0.0030648343, 1.0, 0.32668115, 0.10406089, 0.0014179084),
    (
        0.53487893, 0.1298071, 0.065735949, -0.0015649758,
        0.16639465, 0.020070113, -0.0035938915, -0.00058392623,
    ),
    (
        0.040121004, -0.0065914022, -0.0026286047, -0.0013441777,
        0.017050642, -0.0021309326, 0.00085092367, -1.5247877e-07,
    ),
)  # fmt: skip
_BETA_NUMERATOR = (
    (
        (1.003668233, -0.01061107488, -0.0657888334, 0.01201642863),
        (0.6336835991, -0.3557432599, 0.05486251648, -0.001465281033),
        (-0.03276231906, 0.004474107445, 0.002429354597, -0.0001557569013),
    ),
    (
        (0.221950385, -0.3187676331, 0.01799915743, 0.01074823814),
        (-0.2951249643, 0.06219954479, 0.01535556598, 0.001550077057),
        (0.02155310298, 0.004170831599, 0.001292462449, 6.976601077e-05),
    ),
    (
        (-0.05980841433, 0.008441916499, 0.01085618172, 0.002319392565),
        (0.02911413504, 0.01400243777, -0.002721828457, 0.000751041181),
        (0.005900514878, -0.001936558688, -9.495446725e-06, 5.385558597e-05),
    ),
)
_BETA_DENOMINATOR = (
    (
        (1.0, -0.02924021934, -0.04438342661, 0.007285809825),
        (0.6357567472, -0.3473456711, 0.05454656494, -0.002407477521),
        (-0.03301322327, 0.004845219414, 0.00231480583, -0.0002307248149),
    ),
    (
        (0.5925320577, -0.1757678135, 0.01505928619, 0.000564515273),
        (0.1014815858, -0.06589186703, 0.01272886114, -0.0007316646956),
        (-0.007258481865, 0.001096195486, 0.0003934994223, -4.12701925e-05),
    ),
    (
        (0.06469649321, -0.0236701437, 0.002902096474, -5.896963079e-05),
        (0.001925008108, -0.002869809258, 0.0008000589141, -6.063713228e-05),
        (-0.0003477407336, 6.959756487e-05, 1.097287507e-05, -1.650964693e-06),
    ),
)
"""Cubic polynomials in b, for each power of a (inner) and of u (outer)."""


def _digamma(x: Any) -> Any:
    return where(x > 0.0, digamma_of_positive(x), NAN)


def _to_minus_three_halves(x: Any) -> Any:
    return 1.0 / (x * x.square_root())


@formula
def standard_gamma_grad_wide(a: Any, x: Any) -> Any:
    """Returns the gradient of the draw x of a gamma distribution by its shape a."""
    logarithm = log_wide(x)
    of_ratio, of_shape = log_wide(x / a), log_wide(a)
    u, v = of_ratio, of_shape
    c = [first + u * (second + u * third) for first, second, third in zip(*_GAMMA, strict=True)]
    fitted = exp_wide(by_horners_rule(v, c[:4]) / by_horners_rule(v, c[4:]))
    near = (0.9 * a <= x) & (x <= 1.1 * a)
    large = where(near, _gamma_near_mean(a, x), _gamma_saddle_point(a, x, of_ratio))
    return where(x < 0.8, _gamma_series(a, x, logarithm), where(a > 8.0, large, fitted))


def _gamma_series(a: Any, x: Any, logarithm: Any) -> Any:
    numerator = x.constant(1.0)
    first, second = 1.0 / a, 1.0 / (a * a)
    for i in range(1, 6):
        numerator = numerator * x / -i
        first, second = first + numerator / (a + i), second + numerator / ((a + i) * (a + i))
    result = x * exp_wide(x) * (second - (logarithm - _digamma(a)) * first)
    return where(result.equals(result), result, 0.0)


def _gamma_near_mean(a: Any, x: Any) -> Any:
    square = a * a
    second = 1440 * square + 6 * x * (53 - 120 * x) - 65 * x * x / a + a * (107 + 3600 * x)
    return (1 + 24 * a * (1 + 12 * a)) * second / (1244160 * square * square)


def _gamma_saddle_point(a: Any, x: Any, of_ratio: Any) -> Any:
    root, distance = (8 * a).square_root(), a - x
    power = _to_minus_three_halves(x - a - a * of_ratio)
    both = root / distance + where(x < a, -power, power)
    term = of_ratio * both - (2 / a).square_root() * (a + x) / (distance * distance)
    return -(1 + 1 / (12 * a) * (1 + 1 / (24 * a))) * x * term / root


@formula
def dirichlet_grad_wide(x: Any, a: Any, total: Any) -> Any:
    """Returns that of a Beta(a, total - a) draw x by a, divided by 1 - x."""
    b, rest = total - a, 1 - x
    boundary = total * x * rest
    of_x, of_a, of_total = log_wide(x), _digamma(a), _digamma(total)
    u = of_x
    v = log_wide(a) - u
    w = log_wide(total) - v
    fitted = _surface(_BETA_NUMERATOR, u, v, w) / _surface(_BETA_DENOMINATOR, u, v, w)
    fitted = fitted * x * (of_total - of_a) / b
    large = where((a > 6.0) & (b > 6.0), _beta_mid(x, a, b, of_x), fitted)
    high = (x >= 0.5) & (boundary < 0.75)
    low = (x <= 0.5) & (boundary < 2.5)
    near_one = -_beta_by_second(rest, b, a, of_total - of_a, of_x)
    return where(low, _beta_by_first(x, a, b, of_a - of_total - of_x), where(high, near_one, large))


def _surface(table: Sequence[Sequence[Sequence[float]]], u: Any, v: Any, w: Any) -> Any:
    return by_horners_rule(
        u, [by_horners_rule(v, [by_horners_rule(w, row) for row in rows]) for rows in table]
    )


def _beta_by_first(x: Any, a: Any, b: Any, factor: Any) -> Any:
    """Returns the gradient by a for x near 0."""
    numerator, series = x.constant(1.0), (factor + 1 / a) / a
    for i in range(1, 11):
        numerator = numerator * (i - b) * x / i
        series = series + numerator / (a + i) * (factor + 1 / (a + i))
    result = x * exp_wide(-b * log1p_wide(-x)) * series
    return where(result.equals(result), result, 0.0)


def _beta_by_second(x: Any, a: Any, b: Any, factor: Any, of_rest: Any) -> Any:
    """Returns the gradient by b for x near 0, divided by 1 - x, whose logarithm is `of_rest`."""
    numerator, powers, slopes = x.constant(1.0), x.constant(1.0), x.constant(0.0)
    series = factor / a
    for i in range(1, 9):
        numerator = -numerator * x / i
        slopes = slopes * (b - i) + powers
        powers = powers * (b - i)
        series = series + numerator / (a + i) * (slopes + factor * powers)
    result = -exp_wide((1 - b) * of_rest) * series
    return where(result.equals(result), result, 0.0)


def _beta_mid(x: Any, a: Any, b: Any, of_x: Any) -> Any:
    """Returns the gradient by a for large a and b: a saddle point, and a polynomial next to the mean."""
    total, rest = a + b, 1 - x
    mean = a / total
    deviation = (a * b / (total + 1)).square_root() / total
    near = (mean - 0.1 * deviation <= x) & (x <= mean + 0.1 * deviation)
    b_2 = b * b
    polynomial = 47 * x * b_2 * b_2 + a * (
        (43 + 20 * (16 + 27 * b) * x) * b_2 * b
        + a
        * (
            3 * (59 + 180 * b - 90 * x) * b_2
            + a * ((453 + 1620 * b * rest - 455 * x) * b + a * (8 * rest * (135 * b - 11)))
        )
    )
    factor = (1 + 12 * a) * (1 + 12 * b) / (total * total)
    at_mean = factor / rest * polynomial / (12960 * a * a * a * b_2 * (1 + 12 * total))

    stirling = _stirling(a) * _stirling(b) / _stirling(total)
    across = b * x - a * rest
    first = (2 * a * a * -rest - a * b * rest - x * b_2) / (
        (2 * a / b).square_root() * total * total.square_root() * across * across
    )
    of_mean = log_wide(a / total) - of_x
    power = _to_minus_three_halves(b * log_wide(b / (total * rest)) + a * of_mean)
    third = (8 * a * b / total).square_root() / across
    sum_of_terms = first + 0.5 * of_mean * (third + where(x < mean, power, -power))
    away = stirling * (-x / (2 * a * b / total).square_root()) * sum_of_terms
    return where(near, at_mean, away)


def _stirling(a: Any) -> Any:
    return 1 + 1 / (12 * a) + 1 / (288 * a * a)
