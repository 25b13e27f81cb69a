"""glu, whose operands are the halves of one tensor: cut at rows as `vector_tails` says; its gradient is serial."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor

from samebits._native.torch_threads import on_single_thread, single_thread
from samebits.determinism._dispatcher import Kernel
from samebits.determinism._kernels.out_argument import cast_into
from samebits.determinism._kernels.vector_tails import GRAIN, block_of, head_of, layout, torch_kernel
from samebits.determinism._replacement import replacements

_ROWS = 16
"""With fewer rows, those that one thread does alone could take as long as the others: one thread does all."""


def _pieces_of_glu(write: Kernel, kernel: Kernel) -> Kernel:
    """`write` is torch's kernel of the out form; (..., 2n, ...) becomes (..., n, ...)."""

    def glu(self: Tensor, dim: int = -1) -> Tensor:
        if self.numel() <= 2 * GRAIN or self.shape[dim] % 2:
            return kernel(self, dim)
        half = self.narrow(dim, 0, self.shape[dim] // 2)
        result = torch.empty_strided(half.shape, layout((half,), half.shape), dtype=self.dtype)
        outermost = max(range(half.dim()), key=lambda d: result.stride(d) if half.shape[d] > 1 else 0)
        rows, elements, head = half.shape[outermost], half.numel(), 0
        if outermost != dim % half.dim() and rows >= _ROWS:
            head = head_of(elements, block_of(elements // rows)) * rows // elements
        for start, stop, threads in ((0, head, nullcontext()), (head, rows, single_thread())):
            if start < stop:
                # Where the halves lie behind each other, the whole of them is the only piece.
                whole = stop - start == rows
                source = self if whole else self.narrow(outermost, start, stop - start)
                with threads:
                    write(source, dim, out=result.narrow(outermost, start, stop - start))
        return result

    return glu


def _glu(kernel: Kernel) -> Kernel:
    return _pieces_of_glu(torch_kernel("glu.out"), kernel)


def _glu_out(kernel: Kernel) -> Kernel:
    ours = _pieces_of_glu(kernel, lambda self, dim: kernel(self, dim, out=self.new_empty(0)))

    def glu_out(self: Tensor, dim: int = -1, *, out: Tensor) -> Tensor:
        return cast_into(out, ours(self, dim))

    return glu_out


_REASON = "vector code and scalar tail of its sigmoid round differently, and threads move the tail: "
REPLACEMENTS = (
    *replacements(("glu",), _glu, _REASON + "kept in place", only_threads=True),  # takes torch's own out form
    *replacements(("glu.out",), _glu_out, _REASON + "kept in place", only_threads=True),
    *replacements(
        ("glu_backward", "glu_backward.grad_input"),
        on_single_thread,
        _REASON + "on one thread",
        only_threads=True,
        serial=True,
    ),
)
