"""The elementwise parts of losses in float64, to be rounded once to float32."""

from __future__ import annotations

from typing import Any

from samebits._native.formula import at_least, fma, formula, where
from samebits.arithmetic.functions.logarithm import log1p_wide, log_wide


@formula
def binary_cross_entropy_wide(x: Any, target: Any) -> Any:
    """Returns (t - 1) max(log(1 - x), -100) - t max(log(x), -100)."""
    other = at_least(log1p_wide(-x), -100.0)
    return fma(target - 1.0, other, -(target * at_least(log_wide(x), -100.0)))


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
