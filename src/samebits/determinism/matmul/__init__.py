"""Matrix products whose bits do not depend on the thread count: fixed tiles, torch's own BLAS for each, a fixed sum.

MKL picks its blocking by the number of threads: a float32 product of 7 x 64 by 64 x 64 has two results, a classifier
head's weight gradient (narrow output, long inner dimension) up to five. Here the tiles are chosen from the sizes
alone, each is one `gemm` call on one thread, and the tiles are shared out among torch's own OpenMP threads.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from samebits.determinism.lapack import on_one_thread
from samebits.determinism.matmul.tiles import TILED, multiply
from samebits.determinism.outs import into
from samebits.determinism.overrides import Kernel
from samebits.determinism.replacement import Replacement, replacements

_SMALL = 1 << 18
"""Multiply-adds of a product that torch does as a whole on one thread: about 7 us, what sharing it out would cost."""


def _fits(dtype: torch.dtype, *tensors: Tensor) -> bool:
    """Whether BLAS is ours to call: one dtype that it has, something to multiply, sizes that its integers hold."""
    return dtype in TILED and all(
        x.dtype == dtype and 0 < x.numel() < 1 << 31 and x.layout == torch.strided for x in tensors
    )


def _product(kernel: Kernel, *, is_out: bool) -> Kernel:
    """Mm and bmm; `is_out`: the form with `out=`."""
    whole = on_one_thread(kernel)

    def product(a: Tensor, b: Tensor, **kwargs: Any) -> Tensor:
        if _small(a, b):
            return whole(a, b, **kwargs)
        if not _tiled(a, b):
            return whole(a, b, **kwargs) if _fits(a.dtype, a, b) else kernel(a, b, **kwargs)
        result = a.new_empty((*a.shape[:-1], b.shape[-1]))
        multiply(*_plain(a, b), result)
        return into(kwargs["out"], result) if is_out else result

    return product


def _sum_and_product(kernel: Kernel, *, form: str) -> Kernel:
    """addmm, baddbmm and addmv; `form`: "" (a new tensor), "_" (in place) or "out"."""
    whole = on_one_thread(kernel)

    def product(
        self: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1, **kwargs: Any
    ) -> Tensor:
        if _small(a, b):
            return whole(self, a, b, beta=beta, alpha=alpha, **kwargs)
        vector = b.dim() == 1
        columns = b.unsqueeze(-1) if vector else b
        if not _tiled(a, columns) or self.dtype != a.dtype:
            run = whole if _fits(a.dtype, a, b) else kernel
            return run(self, a, b, beta=beta, alpha=alpha, **kwargs)
        shape = (*a.shape[:-1],) if vector else (*a.shape[:-1], b.shape[-1])
        # With beta = 0 `self` is not read: NaN in it must not come through.
        result = (
            a.new_empty(shape)
            if beta == 0
            else self.expand(shape).clone(memory_format=torch.contiguous_format)
        )
        multiply(*_plain(a, columns), result.unsqueeze(-1) if vector else result, alpha, beta)
        if form == "_":
            return self.copy_(result)
        return into(kwargs["out"], result) if form == "out" else result

    return product


def _small(a: Tensor, b: Tensor) -> bool:
    """Whether a product is too small to be cut; first of all questions, since small products are counted in us."""
    return a.numel() * (b.shape[-1] if b.dim() else 1) <= _SMALL


def _tiled(a: Tensor, b: Tensor) -> bool:
    """Whether a product of matrices (or of equal batches of them) is ours to cut."""
    return (
        a.dim() == b.dim()
        and a.dim() in (2, 3)
        and a.shape[-1] == b.shape[-2]
        and a.shape[:-2] == b.shape[:-2]
        and _fits(a.dtype, a, b)
    )


def _plain(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return (a.resolve_conj(), b.resolve_conj()) if a.is_complex() else (a, b)


_REASON = "BLAS cuts a product by the thread count: ours is cut into tiles by size, and long inner dimensions are summed as a tree"


def _all() -> tuple[Replacement, ...]:
    if None in TILED.values():  # a torch without MKL: whole products on one thread are all we can promise
        names = [op + form for op in ("mm", "bmm", "addmm", "baddbmm", "addmv") for form in ("", ".out")]
        return replacements(names, on_one_thread, _REASON, only_threads=True, serial=True)
    made: list[Replacement] = []
    for op in ("mm", "bmm"):
        for form, is_out in (("", False), (".out", True)):
            made += replacements([op + form], partial(_product, is_out=is_out), _REASON, only_threads=True)
    for op in ("addmm", "baddbmm", "addmv"):
        for name, form in ((op, ""), (op + "_", "_"), (op + ".out", "out")):
            made += replacements([name], partial(_sum_and_product, form=form), _REASON, only_threads=True)
    return tuple(made)


REPLACEMENTS = _all()
