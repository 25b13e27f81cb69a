"""Products of matrices, vectors, batches, and of sparse with dense ones: `arithmetic.product.definition`."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from samebits.arithmetic.product import product
from samebits.determinism._kernels.out_argument import cast_into
from samebits.determinism._ops.operands import takes
from samebits.determinism._replacement import NotCoveredError, Replacement, or_torchs, replacements

_COMPLEX = (torch.complex64, torch.complex128)


def _checked(result: Tensor | None, *factors: Tensor) -> Tensor | None:
    """Returns a product; None for what is none of ours: integers, empty factors, and wrong arguments.

    Raises:
        NotCoveredError: factors that no kernel multiplies exactly.
    """
    if result is None:
        takes("mm", *(x.dtype for x in factors if x.dtype not in _COMPLEX))
    return result


def _dense_product(
    a: Tensor, b: Tensor, added: Tensor | None = None, alpha: Any = 1, beta: Any = 1
) -> Tensor | None:
    """Returns alpha a b + beta added; None for what is none of ours.

    Of complex numbers: four real products; two are subtracted for the real part, two added for the other.
    """
    if a.dtype not in _COMPLEX or a.dtype != b.dtype:
        return product(a, b, added, alpha, beta)
    p, q, r, s = (part for x in (a, b) for part in torch.view_as_real(x.resolve_conj()).unbind(-1))
    parts = [made for x, y in ((p, r), (q, s), (p, s), (q, r)) if (made := product(x, y)) is not None]
    if not parts:
        return None
    result = torch.complex(parts[0] - parts[1], parts[2] + parts[3])
    result = result if alpha == 1 else result.mul_(alpha)
    return result if added is None or beta == 0 else result.add_(added if beta == 1 else added * beta)


def _multiplied(a: Tensor, b: Tensor, *, out: Tensor | None = None, ranks: tuple[int, int]) -> Tensor | None:
    """mm, bmm and mv; `ranks`: dimensions of the factors."""
    return _checked(_dense_product(a, b) if (a.dim(), b.dim()) == ranks else None, a, b)


def _added(
    self: Tensor,
    a: Tensor,
    b: Tensor,
    *,
    beta: Any = 1,
    alpha: Any = 1,
    out: Tensor | None = None,
    ranks: tuple[int, int],
) -> Tensor | None:
    """addmm, baddbmm and addmv."""
    result = None
    if self.dtype == a.dtype and (a.dim(), b.dim()) == ranks:
        result = _dense_product(a, b, self, alpha, beta)
    return _checked(result, self, a, b)


def _added_in_place(self: Tensor, a: Tensor, b: Tensor, **kwargs: Any) -> Tensor | None:
    result = _added(self, a, b, **kwargs)
    if result is None or result.shape != self.shape:
        return _checked(None, self, a, b)
    return self.copy_(result)


def _outer(
    self: Tensor, column: Tensor, row: Tensor, *, beta: Any = 1, alpha: Any = 1, out: Tensor | None = None
) -> Tensor | None:
    """addr, as the product of a column and a row; torch promotes the types of its arguments."""
    result = None
    dtype = functools.reduce(torch.promote_types, (self.dtype, column.dtype, row.dtype))
    if dtype.is_floating_point and column.dim() == 1 and row.dim() == 1:
        result = product(column.to(dtype)[:, None], row.to(dtype)[None], self.to(dtype), alpha, beta)
    result = _checked(result, self, column, row)
    return result if result is None or out is None else cast_into(out, result)


def _activated(
    self: Tensor, a: Tensor, b: Tensor, *, use_gelu: bool = False, out: Tensor | None = None, **kwargs: Any
) -> Tensor:
    """_addmm_activation: torch's calls the product without the dispatcher, which would find ours."""
    result = torch.addmm(self, a, b, **kwargs)
    return torch.ops.aten.gelu_(result) if use_gelu else result.relu_()


def _left_to_right(tensors: Sequence[Tensor], *, out: Tensor | None = None, ends: set[int]) -> Tensor | None:
    """linalg.multi_dot and chain_matmul from left to right; `ends`: dimensions of the first and last factor.

    Torch orders the products by the sizes of the factors, their number of rows included. None: it raises.
    """
    ranks = [x.dim() for x in tensors]
    fits = all(a.shape[-1] == b.shape[0] for a, b in pairwise(tensors) if b.dim() and a.dim())
    if len(ranks) < 2 or not {ranks[0], ranks[-1]} <= ends or {*ranks[1:-1]} - {2} or not fits:
        return None
    first = tensors[0][None] if ranks[0] == 1 else tensors[0]  # a row: the last step is no dot product
    result = functools.reduce(torch.matmul, tensors[1:], first)
    return result.squeeze(0) if ranks[0] == 1 else result


RANKS = {"mm": (2, 2), "bmm": (3, 3), "mv": (2, 1)}
_REASON = (
    "each CPU's library has an order of its own: chunks of 256 along the inner dimension, each one chain of "
    "fused multiply-adds"
)
_REASON_ORDER = "torch orders the products by their sizes: from left to right, for any number of rows"


def _dense() -> Iterator[Replacement]:
    for op, ranks in RANKS.items():
        yield from replacements((op, f"{op}.out"), or_torchs(partial(_multiplied, ranks=ranks)), _REASON)
    for op, kind in (("addmm", "mm"), ("baddbmm", "bmm"), ("addmv", "mv")):
        compute = or_torchs(partial(_added, ranks=RANKS[kind]))
        yield from replacements((op, f"{op}.out"), compute, _REASON)
        compute = or_torchs(partial(_added_in_place, ranks=RANKS[kind]))
        yield from replacements([f"{op}_"], compute, _REASON)
    yield from replacements(("addr", "addr.out"), or_torchs(_outer, ()), _REASON)
    for op, ends in (("linalg_multi_dot", {1, 2}), ("chain_matmul", {2})):
        make = or_torchs(partial(_left_to_right, ends=ends))
        yield from replacements((op, f"{op}.out"), make, _REASON_ORDER, "AutogradCPU")
    yield from replacements(("_addmm_activation", "_addmm_activation.out"), or_torchs(_activated), _REASON)


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


def _mm(a: Tensor, b: Tensor, *, out: Tensor | None = None, op: str) -> Tensor:
    return _product(op, a, b)


def _addmm(
    self: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1, op: str, **_out: Any
) -> Tensor:
    result = _product(op, a, b)
    result = result if alpha == 1 else result.mul_(alpha)
    return result if beta == 0 else result.add_(self if beta == 1 else self * beta)


_REASON_SPARSE = (
    "BLAS fuses a product and a sum or not, by CPU: ours rounds both, in the order of the stored values"
)


def _sparse() -> Iterator[Replacement]:
    for key in ("SparseCPU", "SparseCsrCPU"):
        for name, compute in (("mm", _mm), ("mm.out", _mm), ("addmm", _addmm), ("addmm.out", _addmm)):
            op = f"aten::{name}"
            yield Replacement(op, or_torchs(partial(compute, op=op)), _REASON_SPARSE, key)


REPLACEMENTS = (*_dense(), *_sparse())
