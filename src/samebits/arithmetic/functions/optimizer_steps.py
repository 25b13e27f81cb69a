"""One step of an optimizer for one element, in the type of the parameters (bfloat16 and float16: in float32).

Each is, operation by operation, the step that torch's single-tensor and foreach implementations take through
our `lerp`, `addcmul`, `addcdiv` and `add`, so that all three give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from samebits._native.formula import fma, formula, where

# Sums of products, each with one fused multiply-add, in the type of the operands: what a compiler may
# contract is said here.


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
    """Returns x + weight (y - x) if |weight| < 1/2, else y - (y - x) (1 - weight); an fma is the end."""
    difference = y - x
    return where(weight.magnitude() < 0.5, fma(weight, difference, x), fma(-difference, 1.0 - weight, y))


def adam_step(*, decoupled: bool, decay: bool, amsgrad: bool) -> Callable[..., Any]:
    """Returns the step of Adam; with `decoupled`, of AdamW.

    It takes parameter, gradient, both averages (and the largest second one), and the numbers `sign` of the
    gradient, the factor of the decay (AdamW: 1 - lr * weight_decay), 1 - beta1, beta2, 1 - beta2, the square
    root of the second bias correction, eps, and minus the step size; it returns what it was given without the
    gradient.
    """

    def step(x: Any, grad: Any, average: Any, square: Any, *rest: Any) -> list[Any]:
        largest, rest = (rest[0], rest[1:]) if amsgrad else (square, rest)
        sign, decay_factor, rest_1, beta_2, rest_2, root, eps, step_size = rest
        grad = grad * sign
        if decoupled:
            x = x * decay_factor
        elif decay:
            grad = fma(decay_factor, x, grad)
        average = lerp_narrow(average, grad, rest_1)
        square = addcmul_narrow(square * beta_2, grad, grad, rest_2)
        largest = where(largest > square, largest, square) if amsgrad else square
        divisor = largest.square_root() / root + eps
        x = addcdiv_narrow(x, average, divisor, step_size)
        return [x, average, square, largest] if amsgrad else [x, average, square]

    return step


def sgd_step(*, decay: bool, momentum: bool, first: bool, nesterov: bool) -> Callable[..., Any]:
    """Returns the step of SGD; with momentum, of parameter, gradient and buffer, else of the first two.

    Its numbers are the gradient's sign, weight decay, momentum, 1 - dampening and minus the learning rate.
    """

    def step(x: Any, grad: Any, *rest: Any) -> list[Any]:
        sign, weight_decay, factor, rest_of_dampening, step_size = rest[-5:]
        grad = grad * sign
        if decay:
            grad = fma(weight_decay, x, grad)
        if not momentum:
            return [fma(step_size, grad, x)]
        buffer = grad if first else fma(rest_of_dampening, grad, rest[0] * factor)
        grad = fma(factor, buffer, grad) if nesterov else buffer
        return [fma(step_size, grad, x), buffer]

    return step


def adagrad_step(*, decay: bool) -> Callable[..., Any]:
    """Returns Adagrad's step: parameter, gradient, sum; sign, weight decay, eps and minus the step size."""

    def step(
        x: Any, grad: Any, total: Any, sign: Any, weight_decay: Any, eps: Any, step_size: Any
    ) -> list[Any]:
        grad = grad * sign
        if decay:
            grad = fma(weight_decay, x, grad)
        total = fma(grad, grad, total)
        return [x + (step_size * grad) / (total.square_root() + eps), total]

    return step
