"""sum, mean and nansum."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from samebits.determinism._dispatcher import Kernel
from samebits.determinism._kernels.out_argument import into
from samebits.determinism._kernels.reductions.blocks import gapless, reduce
from samebits.determinism._kernels.reductions.shape import REASON, in_rows, is_ours, single_output, widened
from samebits.determinism._kernels.vector_tails import is_dense
from samebits.determinism._replacement import replacements


def _summing(kernel: Kernel, *, what: str, mean: bool, is_out: bool) -> Kernel:
    def summed(
        self: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, out: Any = None
    ) -> Tensor:
        # As in torch: the type asked for, else that of `out`, else the tensor's own.
        kind = dtype or (self.dtype if out is None else out.dtype)
        kwargs = {"dtype": dtype, **({"out": out} if is_out else {})}
        if not is_ours(self, dim, kind):
            return kernel(self, dim, keepdim, **kwargs)
        x = self if self.dtype == kind else self.to(kind)
        shape = single_output(x, dim, keepdim)
        divisor = x.numel() if mean else 1
        if shape is None:
            if x.is_contiguous():
                return kernel(x, dim, keepdim, **kwargs)
            result = _in_order_of_memory(
                partial(kernel, out=x.new_empty(0)) if is_out else kernel, x, dim, keepdim
            )
        elif kind.is_complex:
            result = _complex_sum(x).div_(divisor).reshape(shape)
        else:
            result = reduce(what, gapless(widened(x)), divisor=divisor, shape=shape).to(kind)
        return into(out, result) if is_out else result

    return summed


def _in_order_of_memory(kernel: Kernel, x: Tensor, dim: Any, keepdim: bool) -> Tensor:
    """Several sums of a tensor that is not contiguous.

    Torch rounds each thread's share of the sums to whole vectors where they lie side by side in memory; elsewhere
    the shares' ends, where sums are taken one by one, move with the thread count.
    """
    if not is_dense(x):
        x = x.contiguous()
    order = sorted(range(x.dim()), key=x.stride, reverse=True)
    over = {each % x.dim() for each in dim}
    places = [place for place, each in enumerate(order) if each in over]
    sums = kernel(x.permute(order), places, True)
    sums = sums.permute([order.index(each) for each in range(x.dim())]).contiguous()
    return sums if keepdim else sums.view([size for each, size in enumerate(x.shape) if each not in over])


def _complex_sum(x: Tensor) -> Tensor:
    rows = partial(torch.sum, dim=1)
    return in_rows(rows, rows, x.resolve_conj())


REPLACEMENTS = tuple(
    replacement
    for names, what, mean, is_out in (
        (("sum.dim_IntList",), "sum", False, False),
        (("sum.IntList_out",), "sum", False, True),
        (("mean.dim",), "sum", True, False),
        (("mean.out",), "sum", True, True),
        (("nansum",), "nansum", False, False),
        (("nansum.out",), "nansum", False, True),
    )
    for replacement in replacements(
        names, partial(_summing, what=what, mean=mean, is_out=is_out), REASON, only_threads=True
    )
)
