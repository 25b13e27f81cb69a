"""Softmax of tensors over one dimension."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from samebits.arithmetic.reductions.tensors import MEMORY
from samebits.arithmetic.softmax.columns import softmax_columns, softmax_gradient_columns
from samebits.arithmetic.softmax.rows import softmax_gradient_rows, softmax_rows

_GRAIN = 1 << 13
"""Elements of a chunk, about."""
_LONGEST_COLUMN = 1 << 16


def softmax(x: Tensor, dim: int, dtype: torch.dtype, *, log: bool) -> Tensor:
    """Returns softmax (or log-softmax) of `x` over one of its dimensions, contiguous and of a type."""
    x = x.contiguous()
    outer, length, inner = _sizes(x.shape, dim)
    if inner > 1 and length > _LONGEST_COLUMN:
        return softmax(x.movedim(dim, -1), -1, dtype, log=log).movedim(-1, dim).contiguous()
    out = torch.empty(x.shape, dtype=dtype)
    names = MEMORY[x.dtype], MEMORY[dtype]
    if not x.numel():
        return out
    if inner == 1:
        piece = max(1, _GRAIN // length)
        softmax_rows(*names, log=log)(
            -(-outer // piece), x.data_ptr(), out.data_ptr(), outer, length, piece, 0, 0
        )
    else:
        tiles = -(-inner // 64)
        softmax_columns(*names, log=log)(outer * tiles, x.data_ptr(), out.data_ptr(), length, inner, tiles)
    return out


def attention_weights(scores: Tensor, causal_queries: int) -> tuple[Tensor, Tensor]:
    """Replaces contiguous scores (..., queries, keys) by softmax; returns them and log(sum(exp(scores))).

    causal_queries: 0, or the number of queries where query i sees the keys up to i; later ones get zeros.
    """
    length = scores.shape[-1]
    rows, sums = scores.numel() // length, scores.new_empty(scores.shape[:-1])
    piece = max(1, _GRAIN // length)
    softmax_rows(MEMORY[scores.dtype], MEMORY[scores.dtype], log=False)(
        -(-rows // piece),
        *(scores.data_ptr(), scores.data_ptr(), rows, length, piece, sums.data_ptr(), causal_queries),
    )
    return scores, sums


def softmax_gradient(
    grad: Tensor, y: Tensor, dim: int, dtype: torch.dtype, *, log: bool, out: Tensor | None = None
) -> Tensor:
    """Returns the gradient of the input from the result's and the result, which have one shape and type.

    `out`: an empty contiguous tensor of the type that becomes it; it may be `grad`.
    """
    grad, y = grad.contiguous(), y.contiguous()
    outer, length, inner = _sizes(y.shape, dim)
    if inner > 1 and length > _LONGEST_COLUMN:
        moved = softmax_gradient(grad.movedim(dim, -1), y.movedim(dim, -1), -1, dtype, log=log)
        return moved.movedim(-1, dim).contiguous()
    out = torch.empty(y.shape, dtype=dtype) if out is None else out
    names = MEMORY[y.dtype], MEMORY[dtype]
    if not y.numel():
        return out
    addresses = grad.data_ptr(), y.data_ptr(), out.data_ptr()
    if inner == 1:
        piece = max(1, _GRAIN // length)
        softmax_gradient_rows(*names, log=log)(-(-outer // piece), *addresses, outer, length, piece)
    else:
        tiles = -(-inner // 64)
        softmax_gradient_columns(*names, log=log)(outer * tiles, *addresses, length, inner, tiles)
    return out


@lru_cache(maxsize=1024)
def _sizes(shape: torch.Size, dim: int) -> tuple[int, int, int]:
    """Returns the numbers of outer indices, of elements along the dimension and of inner indices."""
    if not shape:
        return 1, 1, 1
    dim %= len(shape)
    return shape[:dim].numel(), shape[dim], shape[dim + 1 :].numel()
