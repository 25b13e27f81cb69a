"""Elementwise functions of one tensor (exp, log, sin, ...), activation functions and their derivatives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from samebits.arithmetic.elementwise_functions import FUNCTIONS, UNARY
from samebits.determinism._ops.elementwise import (
    Call,
    Plan,
    evaluate,
    evaluate_all,
    forms,
    of_operands,
    unary_forms,
)
from samebits.determinism._replacement import Replacement, or_torchs, replacements

_REASON = "vector code and scalar tail round differently; ours is one sequence of IEEE operations"


def _gelu(self: Tensor, *, approximate: str = "none") -> Call | None:
    function = _GELU.get(approximate)
    return None if function is None else (function, (self,), ())


def _gelu_backward(grad: Tensor, self: Tensor, *, approximate: str = "none") -> Call | None:
    function = _GELU_BACKWARD.get(approximate)
    return None if function is None else (function, (grad, self), ())


_GELU = {"none": FUNCTIONS["gelu"], "tanh": FUNCTIONS["gelu_tanh"]}
_GELU_BACKWARD = {"none": FUNCTIONS["gelu_backward"], "tanh": FUNCTIONS["gelu_tanh_backward"]}


def _softplus(self: Tensor, beta: float = 1, threshold: float = 20) -> Call:
    return (FUNCTIONS["softplus"], (self,), (beta, threshold))


def _softshrink(self: Tensor, lambd: float = 0.5) -> Call | None:
    if not self.is_floating_point() or not lambd >= 0:
        return None
    return FUNCTIONS["softshrink"], (self,), (lambd,)


def _softplus_backward(grad: Tensor, self: Tensor, beta: float, threshold: float) -> Call:
    return (FUNCTIONS["softplus_backward"], (grad, self), (beta, threshold))


def elu_factors(
    dtype: torch.dtype, alpha: float, scale: float, input_scale: float
) -> tuple[float, float, float]:
    """Returns the factors below zero, above zero, and of the input; products are rounded as torch's."""
    if dtype == torch.float64:
        return alpha * scale, scale, input_scale
    kind = torch.float32
    product = torch.tensor(alpha, dtype=kind) * torch.tensor(scale, dtype=kind) if scale != 1 else alpha
    return float(product), scale, input_scale


def _elu(self: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Call | None:
    if not self.is_floating_point():
        return None
    return (FUNCTIONS["elu"], (self,), elu_factors(self.dtype, alpha, scale, input_scale))


def _elu_backward(
    grad: Tensor, alpha: float, scale: float, input_scale: float, is_result: bool, self_or_result: Tensor
) -> Call | None:
    if is_result and alpha < 0:
        return None
    function = FUNCTIONS["elu_backward_of_result" if is_result else "elu_backward"]
    factors = elu_factors(grad.dtype, alpha, scale, input_scale)
    return (function, (grad, self_or_result), factors)


def _bounds(dtype: torch.dtype, eps: float) -> tuple[float, float]:
    if dtype == torch.float64:
        return eps, 1.0 - eps
    low = torch.tensor(eps, dtype=torch.float32)
    return float(low), float(1.0 - low)


def _logit(self: Tensor, eps: float | None = None) -> Call:
    if eps is None or eps < 0:
        return (FUNCTIONS["logit"], (self,), ())
    return (FUNCTIONS["logit_clamped"], (self,), _bounds(self.dtype, eps))


def _logit_backward(grad: Tensor, self: Tensor, eps: float | None = None) -> Call:
    if eps is None or eps < 0:
        return (FUNCTIONS["logit_backward"], (grad, self), ())
    return (FUNCTIONS["logit_backward_clamped"], (grad, self), _bounds(grad.dtype, eps))


def _log_sigmoid_forward(self: Tensor, **_out: Tensor) -> tuple[Tensor, Tensor]:
    contiguous = self.contiguous()  # as torch's results are
    result, exponential = evaluate_all((FUNCTIONS["log_sigmoid"], (contiguous,), ()))
    return result, exponential


def _log_sigmoid_backward(grad: Tensor, self: Tensor, _buffer: Tensor) -> Call:
    return (FUNCTIONS["log_sigmoid_backward"], (grad, self), ())


def _halves(self: Tensor, dim: int) -> tuple[Tensor, Tensor] | None:
    """Returns the halves of glu's operand; invalid ones are torch's to refuse."""
    if self.dim() == 0 or not -self.dim() <= dim < self.dim() or self.shape[dim] % 2:
        return None
    half = self.shape[dim] // 2
    return self.narrow(dim, 0, half), self.narrow(dim, half, half)


def _glu(self: Tensor, dim: int = -1) -> Call | None:
    halves = _halves(self, dim)
    return None if halves is None else (FUNCTIONS["glu"], halves, ())


def _glu_gradient(grad: Tensor, self: Tensor, dim: int, *, grad_input: Tensor | None = None) -> Tensor | None:
    halves = _halves(self, dim)
    if halves is None:
        return None
    x, gate = halves
    result = torch.empty(self.shape, dtype=self.dtype)
    half = x.shape[dim]
    result.narrow(dim, 0, half).copy_(evaluate((FUNCTIONS["glu"], (grad, gate), ())))
    below = evaluate((FUNCTIONS["glu_gate_backward"], (grad, x, gate), ()))
    result.narrow(dim, half, half).copy_(below)
    return result


def _backward(plan: Plan, op: str) -> Iterator[Replacement]:
    return forms(plan, _REASON, f"{op}_backward", "", f"{op}_backward.grad_input")


def _replacements() -> Iterator[Replacement]:
    plans: dict[str, Any] = {"gelu": _gelu, "softplus": _softplus, "elu": _elu, "logit": _logit, "glu": _glu}
    for op, plan in plans.items():
        yield from forms(plan, _REASON, op, f"{op}_", f"{op}.out")
    yield from forms(_softshrink, _REASON, "softshrink", "", "softshrink.out")
    yield from forms(of_operands(FUNCTIONS["hardswish_backward"]), _REASON, "hardswish_backward")
    for op in ("sigmoid", "tanh", "silu", "mish"):
        yield from _backward(of_operands(FUNCTIONS[f"{op}_backward"]), op)
    yield from _backward(_gelu_backward, "gelu")
    yield from _backward(_softplus_backward, "softplus")
    yield from _backward(_elu_backward, "elu")
    yield from _backward(_logit_backward, "logit")
    yield from _backward(_log_sigmoid_backward, "log_sigmoid")
    names = ("log_sigmoid_forward", "log_sigmoid_forward.output")
    yield from replacements(names, or_torchs(_log_sigmoid_forward, ("output", "buffer")), _REASON)
    names = ("glu_backward", "glu_backward.grad_input")
    yield from replacements(names, or_torchs(_glu_gradient, ("grad_input",)), _REASON)


_ACTIVATIONS = tuple(_replacements())


# Functions of one tensor: exp, log, sin, sqrt and the rest.


_REASON_UNARY = (
    "a vendor's function, or vector code and scalar tail that round differently; ours is one sequence of "
    "IEEE operations"
)


_UNARY = (it for op, function in UNARY.items() for it in unary_forms(function, _REASON_UNARY, op))

REPLACEMENTS = (*_UNARY, *_ACTIVATIONS)
