"""linalg_vector_norm, which every other norm of a tensor's elements calls."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from samebits.determinism._dispatcher import Kernel
from samebits.determinism._kernels.out_argument import into
from samebits.determinism._kernels.reductions.blocks import gapless, reduce
from samebits.determinism._kernels.reductions.shape import REASON, in_rows, is_ours, single_output, widened
from samebits.determinism._replacement import replacements

_EXTREMES = (float("inf"), float("-inf"))


def _norm(kernel: Kernel, *, is_out: bool) -> Kernel:
    def norm(
        self: Tensor,
        ord: Any = 2,  # noqa: A002 (torch's name)
        dim: Any = None,
        keepdim: bool = False,
        *,
        dtype: Any = None,
        out: Any = None,
    ) -> Tensor:
        kind = dtype or self.dtype
        shape = single_output(self, dim, keepdim) if is_ours(self, dim, kind) else None
        if shape is None or ord in _EXTREMES:  # an extreme is exact in any order
            return kernel(self, ord, dim, keepdim, dtype=dtype, **({"out": out} if is_out else {}))
        x = self if dtype is None else self.to(dtype)
        result = _of_all(x, ord).to(x.dtype.to_real()).reshape(shape)
        return into(out, result) if is_out else result

    return norm


def _of_all(x: Tensor, order: float) -> Tensor:
    if order == 2:
        numbers = gapless(widened(torch.view_as_real(x.resolve_conj()) if x.is_complex() else x))
        return reduce("dot", numbers, numbers).sqrt_()
    if order == 1 and not x.is_complex():
        return reduce("norm1", gapless(widened(x)))
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x.resolve_conj()
    rows = partial(torch.linalg.vector_norm, dim=1)
    # The number of elements that are not zero ("order 0") adds up.
    return in_rows(partial(rows, ord=order), partial(rows, ord=order or 1), wide)


REPLACEMENTS = (
    *replacements(["linalg_vector_norm"], partial(_norm, is_out=False), REASON, only_threads=True),
    *replacements(["linalg_vector_norm.out"], partial(_norm, is_out=True), REASON, only_threads=True),
)
