"""Matrix products whose bits do not depend on the thread count: fixed tiles, torch's own BLAS for each, a fixed sum.

MKL picks its blocking by the number of threads: a float32 product of 7 x 64 by 64 x 64 has two results, a classifier
head's weight gradient (narrow output, long inner dimension) up to five. oneDNN does so for bfloat16 and float16.
Here the tiles are chosen from the sizes alone, each is one call of torch's own library on one thread (`tiles`: BLAS,
`short`: oneDNN), and the tiles are shared out among torch's own OpenMP threads.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from samebits._native.torch_threads import on_single_thread
from samebits.determinism._dispatcher import Kernel
from samebits.determinism._kernels.matmul import low_precision, tiles
from samebits.determinism._kernels.matmul.tiles import TILED
from samebits.determinism._kernels.out_argument import into
from samebits.determinism._replacement import Replacement, replacements

_SMALL = 1 << 18
"""Multiply-adds of a product that torch does as a whole on one thread: about 7 us, what sharing it out would cost."""


def _fits(*tensors: Tensor) -> bool:
    """Returns True if the libraries are ours to call: one dtype that they have, something to multiply, sizes that they hold."""
    dtype = tensors[0].dtype
    return (dtype in TILED or low_precision.by_onednn(dtype)) and all(
        x.dtype == dtype and 0 < x.numel() < 1 << 31 and x.layout == torch.strided for x in tensors
    )


def _product(kernel: Kernel, *, is_out: bool) -> Kernel:
    """Mm and bmm; `is_out`: the form with `out=`."""
    whole = on_single_thread(kernel)

    def product(a: Tensor, b: Tensor, **kwargs: Any) -> Tensor:
        if _small(a, b):
            return whole(a, b, **kwargs)
        if not _tiled(a, b):
            return (whole if _is_varying(a, b) else kernel)(a, b, **kwargs)
        result = a.new_empty((*a.shape[:-1], b.shape[-1]))
        _multiply(a, b, result)
        return into(kwargs["out"], result) if is_out else result

    return product


def _sum_and_product(kernel: Kernel, *, form: str) -> Kernel:
    """addmm, baddbmm and addmv; `form`: "" (a new tensor), "_" (in place) or "out"."""
    whole = on_single_thread(kernel)

    def product(
        self: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1, **kwargs: Any
    ) -> Tensor:
        if _small(a, b):
            return whole(self, a, b, beta=beta, alpha=alpha, **kwargs)
        vector = b.dim() == 1
        columns = b.unsqueeze(-1) if vector else b
        if not _tiled(a, columns) or self.dtype != a.dtype:
            return (whole if _is_varying(a, b) else kernel)(self, a, b, beta=beta, alpha=alpha, **kwargs)
        shape = (*a.shape[:-1],) if vector else (*a.shape[:-1], b.shape[-1])
        # With beta = 0 `self` is not read: NaN in it must not come through.
        result = (
            a.new_empty(shape)
            if beta == 0
            else self.expand(shape).clone(memory_format=torch.contiguous_format)
        )
        _multiply(a, columns, result.unsqueeze(-1) if vector else result, alpha, beta)
        if form == "_":
            return self.copy_(result)
        return into(kwargs["out"], result) if form == "out" else result

    return product


ACTIVATED = ("_addmm_activation", "_addmm_activation.out")


def activated(_: Kernel) -> Kernel:
    """_addmm_activation: torch's calls the product without the dispatcher, which would find ours."""

    def product(
        self: Tensor,
        a: Tensor,
        b: Tensor,
        *,
        use_gelu: bool = False,
        out: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        result = torch.addmm(self, a, b, **kwargs)
        result = torch.ops.aten.gelu_(result) if use_gelu else result.relu_()
        return result if out is None else into(out, result)

    return product


def _small(a: Tensor, b: Tensor) -> bool:
    """Returns True if a product is too small to be cut; checked first, since small products are counted in us."""
    work = a.numel() * (b.shape[-1] if b.dim() else 1)
    return work <= _SMALL or work < low_precision.smallest(a.dtype)


def _is_varying(a: Tensor, b: Tensor) -> bool:
    """Returns True if torch's product may depend on the thread count: its own loops do not, except for a vector of a
    short type.
    """
    return a.dtype in TILED or low_precision.by_onednn(a.dtype) or (b.dim() == 1 and a.is_floating_point())


def _tiled(a: Tensor, b: Tensor) -> bool:
    """Returns True if a product of matrices (or of equal batches of them) is ours to cut."""
    return (
        a.dim() == b.dim()
        and a.dim() in (2, 3)
        and a.shape[-1] == b.shape[-2]
        and a.shape[:-2] == b.shape[:-2]
        and _fits(a, b)
        and (a.dtype in TILED or low_precision.is_cut(a, b))
    )


def _multiply(a: Tensor, b: Tensor, out: Tensor, alpha: Any = 1, beta: Any = 0) -> None:
    """`out` (contiguous, rows x columns, perhaps batched) becomes alpha a b + beta out."""
    if a.dtype not in TILED:
        low_precision.multiply(a, b, out, alpha, beta)
    elif a.is_complex():
        tiles.multiply(a.resolve_conj(), b.resolve_conj(), out, alpha, beta)
    else:
        tiles.multiply(a, b, out, alpha, beta)


_REASON = "BLAS and oneDNN cut a product by the thread count: ours is cut into tiles by size, and long inner dimensions are summed as a tree"


def _all() -> tuple[Replacement, ...]:
    if None in TILED.values():  # a torch without MKL: whole products on one thread are all we can promise
        ops = ("mm", "bmm", "addmm", "baddbmm", "addmv", "_addmm_activation")
        names = [op + form for op in ops for form in ("", ".out")]
        return replacements(names, on_single_thread, _REASON, only_threads=True, serial=True)
    made: list[Replacement] = []
    for op in ("mm", "bmm"):
        for form, is_out in (("", False), (".out", True)):
            made += replacements([op + form], partial(_product, is_out=is_out), _REASON, only_threads=True)
    for op in ("addmm", "baddbmm", "addmv"):
        for name, form in ((op, ""), (op + "_", "_"), (op + ".out", "out")):
            made += replacements([name], partial(_sum_and_product, form=form), _REASON, only_threads=True)
    return (*made, *replacements(ACTIVATED, activated, _REASON, only_threads=True))


REPLACEMENTS = _all()
