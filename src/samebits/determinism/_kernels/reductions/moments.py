"""var and std, alone or with the mean."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from samebits.determinism._dispatcher import Kernel
from samebits.determinism._kernels.out_argument import into
from samebits.determinism._kernels.reductions.blocks import gapless, reduce
from samebits.determinism._kernels.reductions.shape import REASON, is_ours, single_output, widened
from samebits.determinism._replacement import replacements


def _moments(kernel: Kernel, *, root: bool, mean: bool, is_out: bool) -> Kernel:
    def moments(
        self: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False, out: Any = None
    ) -> Any:
        ours = is_ours(self, dim, self.dtype) and (out is None or out.is_floating_point())
        shape = single_output(self, dim, keepdim) if ours else None
        if shape is None:
            return kernel(
                self, dim, correction=correction, keepdim=keepdim, **({"out": out} if is_out else {})
            )
        # After torch: no fewer degrees of freedom than 0, and with 0 the result is infinite or NaN.
        freedom = max(0.0, self.numel() - (1 if correction is None else correction))
        parts = (self.resolve_conj().real, self.resolve_conj().imag) if self.is_complex() else (self,)
        centers, spreads = zip(*(_center_and_spread(part, shape) for part in parts), strict=True)
        spread = sum(spreads[1:], spreads[0]).div_(freedom)
        result = (spread.sqrt_() if root else spread).to(self.dtype.to_real())
        if mean:
            return result, (torch.complex(*centers) if self.is_complex() else centers[0]).to(self.dtype)
        return into(out, result.to(out.dtype)) if is_out else result

    return moments


def _center_and_spread(x: Tensor, shape: list[int]) -> tuple[Tensor, Tensor]:
    """The mean of the elements and the sum of their squared distances from it, in float64."""
    x = gapless(widened(x))
    center = reduce("sum64", x, divisor=x.numel(), shape=shape)
    return center, reduce("deviation", x, center=center.item(), shape=shape)


REPLACEMENTS = tuple(
    replacement
    for name, root, mean, is_out in (
        ("var.correction", False, False, False),
        ("var.correction_out", False, False, True),
        ("std.correction", True, False, False),
        ("std.correction_out", True, False, True),
        ("var_mean.correction", False, True, False),
        ("std_mean.correction", True, True, False),
    )
    for replacement in replacements(
        [name], partial(_moments, root=root, mean=mean, is_out=is_out), REASON, only_threads=True
    )
)
