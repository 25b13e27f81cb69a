"""ctc_loss, logcumsumexp and weight_norm: what torch computes with the system's exp and log, or with sums of the machine's lanes."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from samebits.determinism._arithmetic.losses.ctc import alphas, gradients
from samebits.determinism._arithmetic.reductions.scans import logcumsumexp
from samebits.determinism._arithmetic.reductions.tensors import MEMORY
from samebits.determinism._dispatcher import Kernel
from samebits.determinism._kernels.out_argument import into
from samebits.determinism._machine_invariant.operands import takes
from samebits.determinism._replacement import replacements


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


def _ctc_backward(kernel: Kernel) -> Kernel:
    def gradient(
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

    return gradient


def _logcumsumexp(kernel: Kernel) -> Kernel:
    def scan(self: Tensor, dim: int, *, out: Tensor | None = None) -> Tensor:
        takes("logcumsumexp", self.dtype)
        if self.dtype not in MEMORY or not -max(1, self.dim()) <= dim < max(1, self.dim()):
            return kernel(self, dim, **({} if out is None else {"out": out}))
        made = logcumsumexp(self, dim)
        return made if out is None else into(out, made)

    return scan


def _weight_norm(kernel: Kernel) -> Kernel:
    def normalized(v: Tensor, g: Tensor, dim: int = 0) -> Any:
        takes("_weight_norm_interface", v.dtype)
        wide = v if v.dtype == torch.float64 else v.float()
        norms = torch.linalg.vector_norm(wide, 2, _others(v, dim), True)
        return (wide * (g.to(wide.dtype) / norms)).to(v.dtype), norms

    return normalized


def _others(x: Tensor, dim: int) -> list[int]:
    return [each for each in range(x.dim()) if each != dim % x.dim()]


def _weight_norm_backward(kernel: Kernel) -> Kernel:
    def gradient(grad_w: Tensor, saved_v: Tensor, saved_g: Tensor, saved_norms: Tensor, dim: int) -> Any:
        takes("_weight_norm_interface_backward", grad_w.dtype)
        kind = torch.float64 if saved_v.dtype == torch.float64 else torch.float32
        grad, v, g, norms = (each.to(kind) for each in (grad_w, saved_v, saved_g, saved_norms))
        along = (grad * v).sum(_others(v, dim), keepdim=True) / norms
        made = (g / norms) * (grad - v * (along / norms))
        return made.to(saved_v.dtype), along.to(saved_g.dtype)

    return gradient


_LIBRARY = "torch calls exp and log of the system's library: in float64 by a fixed sequence of operations"
_LANES = "torch's sums have lanes that follow the machine's vectors: 16 lanes by definition"

REPLACEMENTS = (
    *replacements(["_ctc_loss", "_ctc_loss.Tensor"], _ctc, _LIBRARY),
    *replacements(["_ctc_loss_backward", "_ctc_loss_backward.Tensor"], _ctc_backward, _LIBRARY),
    *replacements(["_logcumsumexp", "_logcumsumexp.out"], _logcumsumexp, _LIBRARY),
    *replacements(["_weight_norm_interface"], _weight_norm, _LANES),
    *replacements(["_weight_norm_interface_backward"], _weight_norm_backward, _LANES),
)
