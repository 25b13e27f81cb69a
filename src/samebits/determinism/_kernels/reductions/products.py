"""prod, dot and vdot."""

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


def _prod(kernel: Kernel, *, form: str) -> Kernel:
    """`form`: "all" has no dimension, "dim" has one, "out" one and `out=`."""

    def product(
        self: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, out: Any = None
    ) -> Tensor:
        dims = None if dim is None else [dim]
        kind = dtype or (self.dtype if out is None else out.dtype)
        shape = single_output(self, dims, keepdim) if is_ours(self, dims, kind) else None
        if shape is None:
            place = () if form == "all" else (dim, keepdim)
            return kernel(self, *place, dtype=dtype, **({"out": out} if form == "out" else {}))
        x = self if self.dtype == kind else self.to(kind)
        if kind.is_complex:
            rows = partial(torch.prod, dim=1)
            result = in_rows(rows, rows, x.resolve_conj()).reshape(shape)
        else:
            result = reduce("prod", gapless(widened(x)), shape=shape).to(kind)
        return into(out, result) if form == "out" else result

    return product


def _dot(kernel: Kernel, *, conjugate: bool) -> Kernel:
    def dot(self: Tensor, other: Tensor) -> Tensor:
        ours = self.dim() == other.dim() == 1 and self.shape == other.shape and self.dtype == other.dtype
        if not ours or self.numel() < 2 or not (self.is_floating_point() or self.is_complex()):
            return kernel(self, other)
        if not self.is_complex():
            return _of_reals(self, other)
        x, y = self.resolve_conj(), other.resolve_conj()
        sign = -1 if conjugate else 1
        return torch.complex(
            _of_reals(x.real, y.real) - sign * _of_reals(x.imag, y.imag),
            _of_reals(x.real, y.imag) + sign * _of_reals(x.imag, y.real),
        )

    return dot


def _of_reals(x: Tensor, y: Tensor) -> Tensor:
    return reduce("dot", widened(x).contiguous(), widened(y).contiguous()).to(x.dtype)


REPLACEMENTS = (
    *replacements(["prod"], partial(_prod, form="all"), REASON, only_threads=True),
    *replacements(["prod.dim_int"], partial(_prod, form="dim"), REASON, only_threads=True),
    *replacements(["prod.int_out"], partial(_prod, form="out"), REASON, only_threads=True),
    *replacements(["dot"], partial(_dot, conjugate=False), REASON, only_threads=True),
    *replacements(["vdot"], partial(_dot, conjugate=True), REASON, only_threads=True),
)
