"""Products, quotients and exponentials of complex numbers, and what is made of them.

With x = a + bi and y = c + di, and each operation rounded:

    x y       (a c - b d) + (a d + b c) i
    x / y     with |c| >= |d|: r = d / c, s = c + d r, and (a + b r) / s, (b - a r) / s; else r = c / d,
              s = d + c r, and (a r + b) / s, (b r - a) / s (Smith, 1962); r = 0 for y = 0; of complex64 in
              float64, rounded once
    exp(x)    exp(a) cos(b), exp(a) sin(b) by the functions for float64, each product rounded; b = +-0 stays

A sum is of both parts. No operation is fused with another one, whatever the CPU has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from samebits._native import inlined
from samebits._native.kernel_threads import float32_at, float64_at, on_team
from samebits._native.vectors import magnitude
from samebits.arithmetic.elementwise_functions import ElementwiseFunction
from samebits.arithmetic.functions.exponential import exp_double, exp_wide
from samebits.arithmetic.functions.trigonometry import cos_double, cos_wide, sin_double, sin_wide

_PIECE = 8192
"""Elements of a chunk."""
_OPERANDS = 4
"""A function takes as many at most; where it has fewer, the first one is given again."""
_READS = {torch.complex64: float32_at, torch.complex128: float64_at}


class ComplexFunction(ElementwiseFunction):
    """A function of complex numbers, each a pair (real, imaginary), with a kernel for both types."""

    __slots__ = ()

    def __init__(self, name: str, inputs: int, define: Callable[..., Any], double: Any = None) -> None:
        super().__init__(name, inputs=inputs)
        for dtype, one in ((torch.complex64, define), (torch.complex128, double or define)):
            self.kernels[dtype] = _kernel(name, one, dtype, inputs)


def _kernel(name: str, define: Callable[..., Any], dtype: torch.dtype, inputs: int) -> Any:
    """Returns a kernel that is called as an `ElementwiseKernel` is.

    args: 1 number of elements, 2 address of the results, 3 is 1 if all steps are; 4-11 addresses and steps.
    """
    one, at = inlined(define), _READS[dtype]

    @inlined
    def loop(args: Any, start: Any, stop: Any, steps: Any) -> None:
        out, x, y, z, w = at(args[2]), at(args[4]), at(args[6]), at(args[8]), at(args[10])
        for i in range(start, stop):
            j, k, m, n = 2 * i * steps[0], 2 * i * steps[1], 2 * i * steps[2], 2 * i * steps[3]
            re, im = one((x[j], x[j + 1]), (y[k], y[k + 1]), (z[m], z[m + 1]), (w[n], w[n + 1]))
            out[2 * i] = re
            out[2 * i + 1] = im

    def piece(chunk: int, args: Any) -> None:
        start, stop = chunk * _PIECE, min(args[1], (chunk + 1) * _PIECE)
        if args[3]:
            loop(args, start, stop, (1, 1, 1, 1))
        else:
            loop(args, start, stop, (args[5], args[7], args[9], args[11]))

    run = on_team(piece, name=f"complex_{name}_{dtype}")

    def kernel(elements: int, *args: int) -> None:
        operands, out = args[:-1], args[-1]
        padded = operands + operands[:2] * (_OPERANDS - inputs)
        run(-(-elements // _PIECE), elements, out, int(all(padded[1::2])), *padded)

    return kernel


@inlined
def _quotient(x: Any, y: Any) -> Any:
    a, b, c, d = np.float64(x[0]), np.float64(x[1]), np.float64(y[0]), np.float64(y[1])
    is_flat = magnitude(c) >= magnitude(d)
    long, short = (c, d) if is_flat else (d, c)
    r = 0.0 if long == 0.0 else short / long
    s = long + short * r
    return ((a + b * r) / s, (b - a * r) / s) if is_flat else ((a * r + b) / s, (b * r - a) / s)


@inlined
def _sum(x: Any, y: Any) -> Any:
    return x[0] + y[0], x[1] + y[1]


@inlined
def _product(x: Any, y: Any) -> Any:
    return x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]


def _mul(x: Any, y: Any, _z: Any, _w: Any) -> Any:
    return _product(x, y)


def _div(x: Any, y: Any, _z: Any, _w: Any) -> Any:
    return _quotient(x, y)


def _add_scaled(x: Any, y: Any, alpha: Any, _w: Any) -> Any:
    return _sum(x, _product(alpha, y))


def _addcmul(x: Any, y: Any, z: Any, value: Any) -> Any:
    return _sum(x, _product(_product(value, y), z))


def _addcdiv(x: Any, y: Any, z: Any, value: Any) -> Any:
    return _sum(x, _quotient(_product(value, y), z))


def _lerp(x: Any, end: Any, weight: Any, _w: Any) -> Any:
    return _sum(x, _product(weight, (end[0] - x[0], end[1] - x[1])))


def _exp(functions: tuple[Any, Any, Any]) -> Callable[..., Any]:
    exp, cos, sin = functions

    def complex_exp(x: Any, _y: Any, _z: Any, _w: Any) -> Any:
        a, b = np.float64(x[0]), np.float64(x[1])
        size = exp(a)
        return size * cos(b), b if b == 0.0 else size * sin(b)

    return complex_exp


COMPLEX = {
    one.name: one
    for one in (
        ComplexFunction("mul", 2, _mul),
        ComplexFunction("div", 2, _div),
        ComplexFunction("add_scaled", 3, _add_scaled),
        ComplexFunction("addcmul", 4, _addcmul),
        ComplexFunction("addcdiv", 4, _addcdiv),
        ComplexFunction("lerp", 3, _lerp),
        ComplexFunction(
            "exp", 1, _exp((exp_wide, cos_wide, sin_wide)), _exp((exp_double, cos_double, sin_double))
        ),
    )
}
"""x y, x / y, x + (alpha y), x + ((value y) z), x + (value y) / z, x + (weight (end - x)), exp(x)."""
