"""Sums and multiples of sparse tensors (COO), as optimizers take them for gradients of embeddings.

A dense tensor plus alpha times a sparse one: each stored value times alpha, rounded, is added in the order in
which the values are stored. A sum of two sparse ones stores those of the first, then those of the second;
where both were coalesced, so is the sum. To coalesce is to sort by index; the values of one index are added
to 0 in the order in which they were stored. `sparse_mask` copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from samebits.determinism._replacement import NotCoveredError, Replacement, or_torchs


def _places(indices: Tensor, shape: torch.Size) -> Tensor:
    """Returns the place of each index (dimensions, stored) in a row-major tensor of this shape."""
    place = torch.zeros(indices.shape[1], dtype=torch.int64)
    for index, size in zip(indices, shape, strict=False):
        place = place * size + index
    return place


def _rows(dense: Tensor, like: Tensor) -> Tensor:
    """Returns the dense tensor with its sparse dimensions, those of `like`, as one."""
    dims = like.sparse_dim()
    return dense.reshape(math.prod(dense.shape[:dims]), *dense.shape[dims:])


def _check(self: Any, other: Any, alpha: Any, in_place: bool) -> torch.dtype | None:
    """Returns the type of a sum; None if `other` is not sparse (COO), or has another shape."""
    if not isinstance(self, Tensor) or not isinstance(other, Tensor):
        raise NotCoveredError("aten::add.Tensor", "of a sparse tensor and a number", "Use tensor.to_dense()")
    if other.layout != torch.sparse_coo or self.shape != other.shape:
        return None
    dtype = torch.promote_types(self.dtype, other.dtype)
    if in_place and not torch.can_cast(dtype, self.dtype):
        raise RuntimeError(f"result type {dtype} can't be cast to the desired output type {self.dtype}")
    of_alpha = torch.promote_types(dtype, torch.tensor(alpha).dtype)
    if isinstance(alpha, bool) or not torch.can_cast(of_alpha, dtype):
        raise RuntimeError(
            f"alpha={alpha!r} is no number for a sum of {dtype}: argument alpha must be one of that type"
        )
    return dtype


def _scaled(x: Tensor, alpha: Any, dtype: torch.dtype) -> Tensor:
    values = x._values().to(dtype)
    return values if alpha == 1 else values * alpha


def _add(self: Tensor, other: Any, *, alpha: Any = 1) -> Tensor | None:
    dtype = _check(self, other, alpha, in_place=False)
    if dtype is None:
        return None
    if self.layout != torch.sparse_coo:
        return _add_in_place(self.to(dtype, copy=True), other, alpha=alpha)
    if self.sparse_dim() != other.sparse_dim():
        return None
    made = torch.sparse_coo_tensor(
        torch.cat((self._indices(), other._indices()), 1),
        torch.cat((self._values().to(dtype), _scaled(other, alpha, dtype))),
        self.shape,
        check_invariants=False,
    )
    return made.coalesce() if self.is_coalesced() and other.is_coalesced() else made


def _add_in_place(self: Tensor, other: Any, *, alpha: Any = 1) -> Tensor | None:
    if _check(self, other, alpha, in_place=True) is None:
        return None
    if self.layout == torch.sparse_coo:
        made = _add(self, other, alpha=alpha)
        return None if made is None else self.copy_(made)
    rows = _rows(self, other)
    rows.index_add_(0, _places(other._indices(), self.shape), _scaled(other, alpha, self.dtype))
    return self if rows.data_ptr() == self.data_ptr() else self.copy_(rows.view(self.shape))


def _sub(self: Tensor, other: Any, *, alpha: Any = 1, add: Callable[..., Any]) -> Tensor | None:
    return add(self, other, alpha=-alpha)


def _coalesced(self: Tensor) -> Tensor | None:
    if self.dtype == torch.bool:
        return None
    sizes, stored = self.shape[: self.sparse_dim()], self._values()
    places, row = torch.unique(_places(self._indices(), self.shape), return_inverse=True)
    values = stored.new_zeros(len(places), *stored.shape[1:]).index_add_(0, row, stored)
    indices = torch.stack(torch.unravel_index(places, sizes)) if sizes else self._indices()[:, :1]
    return torch.sparse_coo_tensor(indices, values, self.shape, is_coalesced=True, check_invariants=False)


def _is_number(x: Any) -> bool:
    return not isinstance(x, Tensor) or (x.layout == torch.strided and x.dim() == 0)


def _times(self: Any, other: Any, *, op: str) -> Tensor:
    """Returns the product or quotient of a sparse tensor and a number."""
    if op == "mul" and (not isinstance(self, Tensor) or self.layout != torch.sparse_coo):
        self, other = other, self
    if not isinstance(self, Tensor) or self.layout != torch.sparse_coo or not _is_number(other):
        raise NotCoveredError(f"aten::{op}.Tensor", "of sparse tensors", "Use tensor.to_dense()")
    values = getattr(torch, op)(self._values(), other)
    return torch.sparse_coo_tensor(
        self._indices(), values, self.shape, is_coalesced=self.is_coalesced(), check_invariants=False
    )


def _times_in_place(self: Tensor, other: Any, *, op: str) -> Tensor:
    if not _is_number(other):
        raise NotCoveredError(f"aten::{op}_.Tensor", "of sparse tensors", "Use tensor.to_dense()")
    getattr(self._values(), f"{op}_")(other)
    return self


def _mask(self: Tensor, mask: Tensor) -> Tensor | None:
    if self.layout != torch.strided or mask.layout != torch.sparse_coo or self.shape != mask.shape:
        return None
    values = _rows(self, mask).index_select(0, _places(mask._indices(), mask.shape))
    return torch.sparse_coo_tensor(
        mask._indices().clone(), values, mask.shape, is_coalesced=mask.is_coalesced(), check_invariants=False
    )


_REASON_ORDER = "torch sorts equal indices in an order that is not stated: ours adds them as they were stored"
_REASON = "BLAS fuses a product and a sum or not, by CPU: ours rounds both, in the order of the stored values"
REPLACEMENTS = (
    Replacement("aten::_coalesce", or_torchs(_coalesced, ()), _REASON_ORDER, "SparseCPU"),
    *(
        Replacement(f"aten::{op}", or_torchs(compute, ()), _REASON, "SparseCPU")
        for op, compute in (
            ("add.Tensor", _add),
            ("add_.Tensor", _add_in_place),
            ("sub.Tensor", partial(_sub, add=_add)),
            ("sub_.Tensor", partial(_sub, add=_add_in_place)),
            ("mul.Tensor", partial(_times, op="mul")),
            ("mul_.Tensor", partial(_times_in_place, op="mul")),
            ("div.Tensor", partial(_times, op="div")),
            ("div_.Tensor", partial(_times_in_place, op="div")),
            ("sparse_mask", _mask),
        )
    ),
)
