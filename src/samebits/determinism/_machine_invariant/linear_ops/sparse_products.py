"""Products of a sparse matrix (COO or CSR) and a dense one: each stored value times its row of the dense matrix, added in order.

Row i of the result is v_0 d_0 + v_1 d_1 + ... over the values of row i in the order in which they are stored: each product is
rounded, then the sum, from +0. torch calls BLAS for each value, which fuses the two or not, by CPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from samebits.determinism._dispatcher import Kernel
from samebits.determinism._kernels.out_argument import into
from samebits.determinism._replacement import NotCoveredError, Replacement


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


_REASON = "BLAS fuses a product and a sum or not, by CPU: ours rounds both, in the order of the stored values"


def _all() -> list[Replacement]:
    found = []
    for key in ("SparseCPU", "SparseCsrCPU"):
        for name, make in (("mm", _mm), ("mm.out", _mm), ("addmm", _addmm), ("addmm.out", _addmm)):
            op = f"aten::{name}"
            found.append(Replacement(op, lambda kernel, make=make, op=op: make(kernel, op), _REASON, key))
    return found


REPLACEMENTS = tuple(_all())
