"""Sums of products, each with one fused multiply-add, in the type of the operands: what a compiler may contract is said here."""

from __future__ import annotations

from typing import Any

from samebits._native.formula import fma, formula, where


@formula
def add_scaled_narrow(x: Any, y: Any, alpha: Any) -> Any:
    """Returns x + alpha y, rounded once."""
    return fma(alpha, y, x)


@formula
def add_number_narrow(x: Any, alpha: Any, number: Any) -> Any:
    """Returns x + alpha times a number, rounded once."""
    return fma(alpha, number, x)


@formula
def number_add_narrow(x: Any, alpha: Any, number: Any) -> Any:
    """Returns a number + alpha x, rounded once."""
    return fma(alpha, x, number)


@formula
def softshrink_narrow(x: Any, bound: Any) -> Any:
    """Returns x less or plus the bound where it is beyond it, else a zero with the sign of x; NaN stays."""
    return where(x > bound, x - bound, where(x < -bound, x + bound, x * 0.0))


@formula
def hardswish_backward_narrow(grad: Any, x: Any) -> Any:
    """Returns grad (x / 3 + 1 / 2) between -3 and 3, zero below, grad above."""
    middle = grad * (x / 3.0 + 0.5)
    return where(x < -3.0, 0.0, where(x > 3.0, grad, middle))


@formula
def addcmul_narrow(x: Any, y: Any, z: Any, value: Any) -> Any:
    """Returns x + (value y) z: the first product is rounded, the second not."""
    return fma(value * y, z, x)


@formula
def addcdiv_narrow(x: Any, y: Any, z: Any, value: Any) -> Any:
    """Returns x + (value y) / z, each rounded."""
    return x + (value * y) / z


@formula
def lerp_narrow(x: Any, y: Any, weight: Any) -> Any:
    """Returns x + weight (y - x) where |weight| < 1/2, else y - (y - x) (1 - weight); the last two steps are one fma."""
    difference = y - x
    return where(weight.magnitude() < 0.5, fma(weight, difference, x), fma(-difference, 1.0 - weight, y))
