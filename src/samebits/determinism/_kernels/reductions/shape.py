"""Which reductions are ours: many floating-point elements to one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

_GRAIN = 32768
"""Elements that torch reduces on one thread (at::internal::GRAIN_SIZE)."""
_ROW = _GRAIN // 2

REASON = (
    "torch splits a reduction to one element by the thread count: ours is split into blocks of a fixed size"
)


def is_ours(x: Tensor, dims: Sequence[int] | None, kind: torch.dtype) -> bool:
    """Returns True if `x` has many elements, the result is no integer, and `dims` are valid for torch: existing, each once."""
    if x.numel() <= _GRAIN or not (kind.is_floating_point or kind.is_complex):
        return False
    rank = x.dim()
    there = [dim % rank for dim in dims or () if -rank <= dim < rank]
    return len(set(there)) == len(dims or ())


def single_output(x: Tensor, dims: Sequence[int] | None, keepdim: bool) -> list[int] | None:
    """The shape of a reduction over `dims` (all, if None or empty) if it leaves one element; else None."""
    if not dims:
        return [1] * x.dim() if keepdim else []
    over = {dim % x.dim() for dim in dims}
    if any(size != 1 for dim, size in enumerate(x.shape) if dim not in over):
        return None
    return [1 for dim in range(x.dim()) if keepdim or dim not in over]


def in_rows(
    rows_to_column: Callable[[Tensor], Tensor], again: Callable[[Tensor], Tensor], x: Tensor
) -> Tensor:
    """One of torch's own reductions over rows of a fixed size, for what the kernel does not have (complex numbers).

    `rows_to_column` reduces each row of a matrix of `x`'s elements, `again` each row of a matrix of results.
    """
    flat = x.contiguous().view(-1)
    while flat.numel() > _GRAIN:
        whole = flat.numel() // _ROW * _ROW
        parts = [rows_to_column(flat[:whole].view(-1, _ROW))]
        if whole < flat.numel():
            parts.append(rows_to_column(flat[whole:].view(1, -1)))
        flat, rows_to_column = torch.cat(parts), again
    return rows_to_column(flat.view(1, -1))


def widened(x: Tensor) -> Tensor:
    """float16 as float32; the kernel reads every other floating-point type itself."""
    return x.float() if x.dtype == torch.float16 else x
