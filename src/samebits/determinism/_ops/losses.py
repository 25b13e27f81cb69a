"""Losses (nll_loss, ctc_loss, elementwise ones), logcumsumexp and weight_norm.

Torch computes these with the system's exp and log, or with sums of the machine's lanes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from samebits.arithmetic.elementwise_functions import FUNCTIONS
from samebits.arithmetic.losses import NONE, alphas, gradients, likelihood
from samebits.arithmetic.reductions import MEMORY, lanes_type, logcumsumexp
from samebits.determinism._dispatcher import Kernel
from samebits.determinism._ops.elementwise import Call, Plan, evaluate, forms
from samebits.determinism._ops.operands import takes
from samebits.determinism._replacement import Replacement, always, or_torchs, replacements


class _CtcItems:
    """The arguments of a loss as the kernels take them."""

    def __init__(self, log_probs: Tensor, targets: Tensor, inputs: Any, lengths: Any) -> None:
        self.times, self.batch, self.classes = log_probs.shape
        self.p = log_probs.double().contiguous()
        self.targets = targets.to(torch.int64).contiguous()
        self.lengths, self.inputs = (_integers(each) for each in (lengths, inputs))
        sizes = self.lengths.tolist()
        if targets.dim() == 1:
            starts = list(itertools.accumulate([0, *sizes[:-1]]))
        else:
            starts = [row * targets.shape[1] for row in range(self.batch)]
        self.starts = torch.tensor(starts, dtype=torch.int64)
        self.places = 2 * max(sizes, default=0) + 1

    def addresses(self) -> tuple[int, ...]:
        """Returns the first five arguments of the kernels."""
        tensors = (self.p, self.targets, self.starts, self.lengths, self.inputs)
        return tuple(tensor.data_ptr() for tensor in tensors)


def _integers(lengths: Any) -> Tensor:
    made = lengths if isinstance(lengths, Tensor) else torch.tensor(lengths, dtype=torch.int64)
    return made.to(torch.int64).contiguous()


def _ctc(kernel: Kernel) -> Kernel:
    def loss(
        log_probs: Tensor,
        targets: Tensor,
        input_lengths: Any,
        target_lengths: Any,
        blank: int = 0,
        zero_infinity: bool = False,
    ) -> Any:
        takes("_ctc_loss", log_probs.dtype)
        torchs = kernel(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity)  # its checks
        if not log_probs.numel():
            return torchs
        items = _CtcItems(log_probs, targets, input_lengths, target_lengths)
        alpha = torch.empty((items.batch, items.times, items.places), dtype=torch.float64)
        losses = torch.empty(items.batch, dtype=torch.float64)
        sizes = (items.batch, items.times, items.classes, items.places, blank)
        alphas()(items.batch, *items.addresses(), alpha.data_ptr(), losses.data_ptr(), *sizes)
        return losses.to(log_probs.dtype), alpha.to(log_probs.dtype)

    return loss


def _ctc_gradient(
    grad: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    neg_log_likelihood: Tensor,
    log_alpha: Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> Tensor:
    takes("_ctc_loss_backward", log_probs.dtype)
    items = _CtcItems(log_probs, targets, input_lengths, target_lengths)
    alpha, losses = log_alpha.double().contiguous(), neg_log_likelihood.double().contiguous()
    beta, made, factors = torch.empty_like(alpha), torch.zeros_like(items.p), grad.double().contiguous()
    gradients()(
        items.batch,
        *items.addresses(),
        *(each.data_ptr() for each in (alpha, losses, beta, made, factors)),
        *(items.batch, items.times, items.classes, items.places, blank, int(zero_infinity)),
    )
    return made.to(log_probs.dtype)


def _logcumsumexp(self: Tensor, dim: int, *, out: Tensor | None = None) -> Tensor | None:
    rank = max(1, self.dim())
    return logcumsumexp(self, dim) if takes("logcumsumexp", self.dtype) and -rank <= dim < rank else None


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    takes("_weight_norm_interface", v.dtype)
    wide = v.to(lanes_type(v))
    norms = torch.linalg.vector_norm(wide, 2, _others(v, dim), True)
    return (wide * (g.to(wide.dtype) / norms)).to(v.dtype), norms


def _others(x: Tensor, dim: int) -> list[int]:
    return [each for each in range(x.dim()) if each != dim % x.dim()]


def _weight_norm_backward(
    grad_w: Tensor, saved_v: Tensor, saved_g: Tensor, saved_norms: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    takes("_weight_norm_interface_backward", grad_w.dtype)
    kind = lanes_type(saved_v)
    grad, v, g, norms = (each.to(kind) for each in (grad_w, saved_v, saved_g, saved_norms))
    along = (grad * v).sum(_others(v, dim), keepdim=True) / norms
    made = (g / norms) * (grad - v * (along / norms))
    return made.to(saved_v.dtype), along.to(saved_g.dtype)


_LIBRARY = "torch calls exp and log of the system's library: in float64 by a fixed sequence of operations"
_LANES = "torch's sums have lanes that follow the machine's vectors: 16 lanes by definition"

_SEQUENCES = (
    *replacements(["_ctc_loss", "_ctc_loss.Tensor"], _ctc, _LIBRARY),
    *replacements(["_ctc_loss_backward", "_ctc_loss_backward.Tensor"], always(_ctc_gradient), _LIBRARY),
    *replacements(["_logcumsumexp", "_logcumsumexp.out"], or_torchs(_logcumsumexp), _LIBRARY),
    *replacements(["_weight_norm_interface"], always(_weight_norm), _LANES),
    *replacements(["_weight_norm_interface_backward"], always(_weight_norm_backward), _LANES),
)


# nll_loss and nll_loss2d (definition: `arithmetic.losses`); their gradients are torch's, one IEEE operation
# on each element.


def _nll_loss(
    self: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int, **_out: Tensor
) -> tuple[Tensor, Tensor] | None:
    takes("nll_loss", self.dtype)
    if not _valid(self, target, weight, reduction):
        return None
    x = self if self.dim() > 1 else self.unsqueeze(0)
    targets = target if self.dim() > 1 else target.view(1)
    return likelihood(x.contiguous(), targets.to(torch.int64).contiguous(), weight, reduction, ignore_index)


def _valid(x: Tensor, target: Tensor, weight: Tensor | None, reduction: int) -> bool:
    if x.dim() == 1:  # without a reduction, torch also gives the weight
        fits = reduction != NONE and target.numel() == 1
    else:
        fits = x.dim() in (2, 4) and target.shape == (x.shape[0], *x.shape[2:])
    return (
        fits
        and x.dtype in MEMORY
        and target.dtype in (torch.int64, torch.uint8)
        and target.numel() > 0
        and (weight is None or (weight.dtype == x.dtype and weight.numel() == x.shape[min(1, x.dim() - 1)]))
    )


_LIKELIHOOD = replacements(
    ("nll_loss_forward", "nll_loss_forward.output", "nll_loss2d_forward", "nll_loss2d_forward.output"),
    or_torchs(_nll_loss, ("output", "total_weight")),
    _LANES,
)


# Losses whose elementwise part has a function or a hidden fused multiply-add; their sums are ops of their
# own.


_NONE, _MEAN = 0, 1
"""torch's numbers of reductions; 2 is the sum."""
_REASON_ELEMENTWISE = "vector code and scalar tail round differently; ours is one sequence of IEEE operations"


def _binary_cross_entropy(
    self: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = _MEAN,
    *,
    out: Tensor | None = None,
) -> Tensor | None:
    """Returns the loss; None where torch's kernel raises."""
    if self.shape != target.shape or self.dtype != target.dtype:
        return None
    loss = evaluate((FUNCTIONS["binary_cross_entropy"], (self, target), ()))
    # The logarithm of what is outside of 0 and 1 is NaN.
    if bool(loss.isnan().any()) and not bool(((self >= 0) & (self <= 1)).all()):
        return None
    if weight is not None:
        loss = loss.mul_(weight)
    if reduction == _NONE:
        return loss
    return torch.mean(loss) if reduction == _MEAN else torch.sum(loss)


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
    names = ("binary_cross_entropy", "binary_cross_entropy.out")
    yield from replacements(names, or_torchs(_binary_cross_entropy), _REASON_ELEMENTWISE)
    yield from forms(
        _backward_of("smooth_l1_backward"), _REASON_ELEMENTWISE, "", "", "smooth_l1_loss_backward.grad_input"
    )
    yield from forms(_backward_of("huber_backward"), _REASON_ELEMENTWISE, "", "", "huber_loss_backward.out")


ELEMENTWISE = tuple(_replacements())

REPLACEMENTS = (*ELEMENTWISE, *_LIKELIHOOD, *_SEQUENCES)
