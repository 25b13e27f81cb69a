"""nll_loss and nll_loss2d (definition: `_arithmetic.losses`); their gradients are torch's, one IEEE operation on each element."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from samebits.determinism._arithmetic.losses.likelihood import NONE, likelihood
from samebits.determinism._arithmetic.reductions.tensors import MEMORY
from samebits.determinism._dispatcher import Kernel
from samebits.determinism._kernels.out_argument import into
from samebits.determinism._machine_invariant.operands import takes
from samebits.determinism._replacement import replacements


def _forward(kernel: Kernel) -> Kernel:
    def nll_loss(
        self: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int, **out: Tensor
    ) -> Any:
        takes("nll_loss", self.dtype)
        made = None
        if _valid(self, target, weight, reduction):
            x = self if self.dim() > 1 else self.unsqueeze(0)
            targets = target if self.dim() > 1 else target.view(1)
            made = likelihood(
                x.contiguous(), targets.to(torch.int64).contiguous(), weight, reduction, ignore_index
            )
        if made is None:
            return kernel(self, target, weight, reduction, ignore_index, **out)
        return tuple(map(into, out.values(), made)) if out else made

    return nll_loss


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


_REASON = "torch's sums have lanes that follow the machine's vectors: 16 lanes by definition"

REPLACEMENTS = replacements(
    ("nll_loss_forward", "nll_loss_forward.output", "nll_loss2d_forward", "nll_loss2d_forward.output"),
    _forward,
    _REASON,
)
