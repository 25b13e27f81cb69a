"""Losses whose elementwise part has a function or a hidden fused multiply-add; their sums are ops of their own."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from samebits.determinism._arithmetic.elementwise_functions import FUNCTIONS
from samebits.determinism._dispatcher import Kernel
from samebits.determinism._kernels.out_argument import into
from samebits.determinism._machine_invariant.elementwise.evaluation import Call, evaluate
from samebits.determinism._machine_invariant.elementwise.forms import Plan, forms
from samebits.determinism._replacement import Replacement

_NONE, _MEAN = 0, 1
"""torch's numbers of reductions; 2 is the sum."""
_REASON = "vector code and scalar tail round differently; ours is one sequence of IEEE operations"


def _binary_cross_entropy(kernel: Kernel) -> Kernel:
    def binary_cross_entropy(
        self: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = _MEAN
    ) -> Tensor:
        if self.shape != target.shape or self.dtype != target.dtype:
            return kernel(self, target, weight, reduction)  # raises
        loss = evaluate((FUNCTIONS["binary_cross_entropy"], (self, target), ()))
        # The logarithm of what is outside of 0 and 1 is NaN.
        if bool(loss.isnan().any()) and not bool(((self >= 0) & (self <= 1)).all()):
            return kernel(self, target, weight, reduction)  # raises
        if weight is not None:
            loss = loss.mul_(weight)
        if reduction == _NONE:
            return loss
        return torch.mean(loss) if reduction == _MEAN else torch.sum(loss)

    return binary_cross_entropy


def _binary_cross_entropy_out(kernel: Kernel) -> Kernel:
    def torchs(self: Tensor, target: Tensor, weight: Tensor | None, reduction: int) -> Tensor:
        return kernel(self, target, weight, reduction, out=self.new_empty(0))

    ours = _binary_cross_entropy(torchs)

    def binary_cross_entropy_out(
        self: Tensor,
        target: Tensor,
        weight: Tensor | None = None,
        reduction: int = _MEAN,
        *,
        out: Tensor,
    ) -> Tensor:
        return into(out, ours(self, target, weight, reduction))

    return binary_cross_entropy_out


def _backward_of(name: str) -> Plan:
    def backward(grad: Tensor, self: Tensor, target: Tensor, reduction: int, threshold: float) -> Call | None:
        # torch gives the result no broadcast shape but that of self and target.
        try:
            shape = torch.broadcast_shapes(self.shape, target.shape)
            if torch.broadcast_shapes(shape, grad.shape) != shape:
                return None
        except RuntimeError:
            return None
        norm = 1.0 / self.numel() if reduction == _MEAN and self.numel() else 1.0
        return (FUNCTIONS[name], (grad, self, target), (norm, threshold))

    return backward


def _replacements() -> Iterator[Replacement]:
    for name, make in (
        ("binary_cross_entropy", _binary_cross_entropy),
        ("binary_cross_entropy.out", _binary_cross_entropy_out),
    ):
        yield Replacement(f"aten::{name}", make, _REASON)
    yield from forms(
        _backward_of("smooth_l1_backward"), _REASON, "", "", "smooth_l1_loss_backward.grad_input"
    )
    yield from forms(_backward_of("huber_backward"), _REASON, "", "", "huber_loss_backward.out")


REPLACEMENTS = tuple(_replacements())
