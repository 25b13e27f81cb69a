"""Products of bfloat16 and float16 matrices: oneDNN gets no first factor that is stored column by column and long.

With such a factor oneDNN's blocking, and with it the bits, depend on the thread count: one in thirty random products,
the weight gradients of linear layers among them. With a first factor stored row by row none of 4,200 did (1 to 8
threads; mm, bmm, addmm, baddbmm, linear), nor of 3,700 with an inner dimension of at most 1,024. So a long one is
copied into rows first or, where that copies less, the transposed product is taken.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from samebits.determinism.lapack import on_one_thread
from samebits.determinism.overrides import Kernel
from samebits.determinism.replacement import Replacement, replacements

_SHORT = 1024
"""Inner dimensions up to this are left to oneDNN in any layout."""
_SMALL = 1 << 22
"""Multiply-adds of a product that is done as it is on one thread: about 0.1 ms."""


@cache
def _with_onednn() -> frozenset[torch.dtype]:
    """The short types that oneDNN multiplies on this machine; torch's own loops do not look at the thread count."""
    supported = {
        torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported(),
        torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported(),
    }
    return frozenset(dtype for dtype, with_onednn in supported.items() if with_onednn)


def _by_columns(a: Tensor) -> bool:
    """Whether a first factor is long and not stored row by row."""
    return a.dim() > 1 and a.shape[-1] > _SHORT and a.stride(-1) != 1 and a.dtype in _with_onednn()


def _product(kernel: Kernel, *, is_out: bool) -> Kernel:
    """Mm and bmm; `is_out`: the form with `out=`."""
    whole = on_one_thread(kernel)

    def product(a: Tensor, b: Tensor, **kwargs: Any) -> Tensor:
        if not _by_columns(a):
            return kernel(a, b, **kwargs)
        if a.numel() * b.shape[-1] <= _SMALL:
            return whole(a, b, **kwargs)
        if is_out or b.numel() + a.shape[-2] * b.shape[-1] >= a.numel():
            return kernel(a.contiguous(), b, **kwargs)
        transposed = kernel(b.transpose(-1, -2).contiguous(), a.transpose(-1, -2), **kwargs)
        return a.new_empty((*a.shape[:-1], b.shape[-1])).copy_(transposed.transpose(-1, -2))

    return product


def _sum_and_product(kernel: Kernel) -> Kernel:
    """Addmm and baddbmm."""

    def product(self: Tensor, a: Tensor, b: Tensor, **kwargs: Any) -> Tensor:
        return kernel(self, a.contiguous() if _by_columns(a) else a, b, **kwargs)

    return product


_REASON = "oneDNN blocks a transposed first factor by the number of threads: it gets one stored row by row"


def _all() -> tuple[Replacement, ...]:
    made: list[Replacement] = []
    for op in ("mm", "bmm"):
        for form, is_out in (("", False), (".out", True)):
            made += replacements([op + form], partial(_product, is_out=is_out), _REASON, only_threads=True)
    sums = [op + form for op in ("addmm", "baddbmm") for form in ("", "_", ".out")]
    return (*made, *replacements(sums, _sum_and_product, _REASON, only_threads=True))


REPLACEMENTS = _all()
"""Installed before those of `matmul`, which hands products of these types on to what it finds."""
