"""Products of matrices, vectors and batches, and of sparse with dense ones, by the definition of `arithmetic.product`: same bits on every machine."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from samebits.arithmetic.product import product
from samebits.determinism._dispatcher import Kernel
from samebits.determinism._kernels.out_argument import cast_into, into
from samebits.determinism._ops.operands import takes
from samebits.determinism._replacement import NotCoveredError, Replacement, replacements


def _torchs(kernel: Kernel, *args: Any, **kwargs: Any) -> Any:
    """The result of torch's kernel, for what is no product of ours: integers, empty factors, and wrong arguments."""
    if any(x.is_complex() for x in args if isinstance(x, Tensor)):
        cure = "Multiply the real and imaginary parts (torch.view_as_real)"
        raise NotCoveredError("aten::mm", "of complex matrices", cure)
    takes("mm", *(x.dtype for x in args if isinstance(x, Tensor)))
    return kernel(*args, **kwargs)


def _plain(kernel: Kernel, *, ranks: tuple[int, int], is_out: bool) -> Kernel:
    """mm, bmm and mv; `ranks`: dimensions of the factors; `is_out`: the form with `out=`."""
    left, right = ranks

    def multiply(a: Tensor, b: Tensor) -> Tensor:
        result = product(a, b) if a.dim() == left and b.dim() == right else None
        return _torchs(kernel, a, b) if result is None else result

    def multiply_into(a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
        result = product(a, b) if a.dim() == left and b.dim() == right else None
        return _torchs(kernel, a, b, out=out) if result is None else into(out, result)

    return multiply_into if is_out else multiply


def _with_sum(kernel: Kernel, *, ranks: tuple[int, int], form: str) -> Kernel:
    """addmm, baddbmm and addmv; `form`: "" (a new tensor), "_" (in place) or "out"."""
    left, right = ranks

    def multiply(
        self: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1, **out: Tensor
    ) -> Tensor:
        result = None
        if self.dtype == a.dtype and a.dim() == left and b.dim() == right:
            result = product(a, b, self, alpha, beta)
        if result is None or (form == "_" and result.shape != self.shape):
            return _torchs(kernel, self, a, b, beta=beta, alpha=alpha, **out)
        if form == "_":
            return self.copy_(result)
        return into(out["out"], result) if form == "out" else result

    return multiply


def _outer(kernel: Kernel, *, is_out: bool) -> Kernel:
    """addr, as the product of a column and a row; torch promotes the types of its arguments."""

    def multiply(
        self: Tensor, column: Tensor, row: Tensor, *, beta: Any = 1, alpha: Any = 1, **out: Tensor
    ) -> Tensor:
        result = None
        dtype = functools.reduce(torch.promote_types, (self.dtype, column.dtype, row.dtype))
        if dtype.is_floating_point and column.dim() == 1 and row.dim() == 1:
            result = product(column.to(dtype)[:, None], row.to(dtype)[None], self.to(dtype), alpha, beta)
        if result is None:
            return _torchs(kernel, self, column, row, beta=beta, alpha=alpha, **out)
        return cast_into(out["out"], result) if is_out else result

    return multiply


def _activated(_: Kernel) -> Kernel:
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


def _left_to_right(kernel: Kernel, *, ends: set[int]) -> Kernel:
    """linalg.multi_dot and chain_matmul; `ends`: dimensions of the first and the last factor. Torch orders the products by their sizes, the number of rows among them."""

    def multi_dot(tensors: Sequence[Tensor], **out: Tensor) -> Tensor:
        ranks = [x.dim() for x in tensors]
        fits = all(a.shape[-1] == b.shape[0] for a, b in pairwise(tensors) if b.dim() and a.dim())
        if len(ranks) < 2 or not {ranks[0], ranks[-1]} <= ends or {*ranks[1:-1]} - {2} or not fits:
            return kernel(tensors, **out)  # raises
        first = tensors[0][None] if ranks[0] == 1 else tensors[0]  # a row: the last step is no dot product
        result = functools.reduce(torch.matmul, tensors[1:], first)
        result = result.squeeze(0) if ranks[0] == 1 else result
        return into(out["out"], result) if out else result

    return multi_dot


RANKS = {"mm": (2, 2), "bmm": (3, 3), "mv": (2, 1)}
_REASON = "each CPU's library has an order of its own: chunks of 256 along the inner dimension, each one chain of fused multiply-adds"


def _all() -> tuple[Replacement, ...]:
    made: list[Replacement] = []
    for op, ranks in RANKS.items():
        for form, is_out in (("", False), (".out", True)):
            make = partial(_plain, ranks=ranks, is_out=is_out)
            made += replacements([op + form], make, _REASON)
    for op, kind in (("addmm", "mm"), ("baddbmm", "bmm"), ("addmv", "mv")):
        for name, form in ((op, ""), (op + "_", "_"), (op + ".out", "out")):
            made += replacements([name], partial(_with_sum, ranks=RANKS[kind], form=form), _REASON)
    for form, is_out in (("", False), (".out", True)):
        made += replacements(["addr" + form], partial(_outer, is_out=is_out), _REASON)
    for op, ends in (("linalg_multi_dot", {1, 2}), ("chain_matmul", {2})):
        for form in ("", ".out"):
            reason = "torch orders the products by their sizes: from left to right, for any number of rows"
            make = partial(_left_to_right, ends=ends)
            made.append(Replacement(f"aten::{op}{form}", make, reason, device="AutogradCPU"))
    return (*made, *replacements(["_addmm_activation", "_addmm_activation.out"], _activated, _REASON))


_DENSE = _all()


# Products of a sparse matrix (COO or CSR) and a dense one: each stored value times its row of the dense
# matrix, added in order.
#
# Row i of the result is v_0 d_0 + v_1 d_1 + ... over the values of row i in the order in which they are
# stored: each product is rounded, then the sum, from +0. torch calls BLAS for each value, which fuses the
# two or not, by CPU.


def _rows_and_columns(matrix: Tensor) -> tuple[Tensor, Tensor]:
    if matrix.layout == torch.sparse_coo:
        rows, columns = matrix._indices()
        return rows, columns
    lengths = matrix.crow_indices().diff()
    return torch.repeat_interleave(torch.arange(len(lengths)), lengths), matrix.col_indices()


def _product(op: str, a: Tensor, b: Tensor) -> Tensor:
    if (
        b.layout != torch.strided
        or a.layout not in (torch.sparse_coo, torch.sparse_csr)
        or not a.is_floating_point()
    ):
        raise NotCoveredError(op, f"of {a.dtype} by {b.layout}".replace("torch.", ""))
    rows, columns = _rows_and_columns(a)
    values = a._values() if a.layout == torch.sparse_coo else a.values()
    terms = values.unsqueeze(1) * b.index_select(0, columns.long())
    return b.new_zeros(a.shape[0], b.shape[1]).index_add_(0, rows.long(), terms)


def _mm(kernel: Kernel, op: str) -> Kernel:
    def mm(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
        result = _product(op, a, b)
        return result if out is None else into(out, result)

    return mm


def _addmm(kernel: Kernel, op: str) -> Kernel:
    def addmm(
        self: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1, out: Tensor | None = None
    ) -> Tensor:
        result = _product(op, a, b)
        result = result if alpha == 1 else result.mul_(alpha)
        if beta != 0:
            result = result.add_(self if beta == 1 else self * beta)
        return result if out is None else into(out, result)

    return addmm


_REASON_SPARSE = (
    "BLAS fuses a product and a sum or not, by CPU: ours rounds both, in the order of the stored values"
)


def _all_sparse() -> list[Replacement]:
    found = []
    for key in ("SparseCPU", "SparseCsrCPU"):
        for name, make in (("mm", _mm), ("mm.out", _mm), ("addmm", _addmm), ("addmm.out", _addmm)):
            op = f"aten::{name}"
            found.append(
                Replacement(op, lambda kernel, make=make, op=op: make(kernel, op), _REASON_SPARSE, key)
            )
    return found


_SPARSE = tuple(_all_sparse())

REPLACEMENTS = (*_DENSE, *_SPARSE)
