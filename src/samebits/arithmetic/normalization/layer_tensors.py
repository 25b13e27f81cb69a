"""Layer normalization of tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from samebits.arithmetic.normalization.layers import (
    TILE,
    layer_norm,
    layer_norm_input_gradient,
    layer_norm_weight_gradients,
)
from samebits.arithmetic.reductions.kernels import BLOCK
from samebits.arithmetic.reductions.tensors import MEMORY, bits_of, reduce

_GRAIN = 1 << 13
"""Elements of a chunk of rows, about."""


def lanes_type(x: Tensor) -> torch.dtype:
    """Returns the type that a tensor is computed in."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def parameter(values: Tensor | None, length: int, kind: torch.dtype, absent: float) -> Tensor:
    """Returns a weight or bias as the kernels read it; all of one number, if there is none."""
    if values is None:
        return torch.full((length,), absent, dtype=kind)
    return as_read(values, kind)


def as_read(values: Tensor, kind: torch.dtype) -> Tensor:
    """Returns a contiguous tensor of the type: itself, if it is that."""
    if values.dtype is not kind:
        values = values.to(kind)
    return values if values.is_contiguous() else values.contiguous()


def normalized_rows(
    x: Tensor, length: int, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the rows of `length` elements of a contiguous tensor normalized, and their means and rstds in the lanes' type.

    shape: of the means and rstds.
    """
    rows, kind = x.numel() // length, lanes_type(x)
    w, b = parameter(weight, length, kind, 1), parameter(bias, length, kind, 0)
    out, mean, rstd = torch.empty_like(x), torch.empty(shape, dtype=kind), torch.empty(shape, dtype=kind)
    piece = max(1, _GRAIN // length)
    layer_norm(MEMORY[x.dtype])(
        -(-rows // piece),
        x.data_ptr(),
        w.data_ptr(),
        b.data_ptr(),
        out.data_ptr(),
        mean.data_ptr(),
        rstd.data_ptr(),
        rows,
        length,
        piece,
        bits_of(eps),
    )
    return out, mean, rstd


def input_gradient(
    grad: Tensor, x: Tensor, length: int, weight: Tensor | None, mean: Tensor, rstd: Tensor
) -> Tensor:
    """Returns dx; the tensors are contiguous, `mean` and `rstd` of the lanes' type."""
    rows, out = x.numel() // length, torch.empty_like(x)
    w = parameter(weight, length, mean.dtype, 1)
    piece = max(1, _GRAIN // length)
    layer_norm_input_gradient(MEMORY[x.dtype])(
        -(-rows // piece),
        grad.data_ptr(),
        x.data_ptr(),
        w.data_ptr(),
        mean.data_ptr(),
        rstd.data_ptr(),
        out.data_ptr(),
        rows,
        length,
        piece,
    )
    return out


def weight_gradients(
    grad: Tensor, x: Tensor, length: int, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns dw and db in the lanes' type; the tensors are contiguous, `mean` and `rstd` of the lanes' type."""
    rows = x.numel() // length
    blocks = -(-rows // BLOCK)
    sums = torch.empty((2, length) if blocks == 1 else (2, blocks, length), dtype=mean.dtype)
    group = TILE * max(1, 128 // min(rows, BLOCK))
    groups, at = -(-length // group), sums.data_ptr()
    layer_norm_weight_gradients(MEMORY[x.dtype])(
        blocks * groups,
        grad.data_ptr(),
        x.data_ptr(),
        mean.data_ptr(),
        rstd.data_ptr(),
        at,
        at + blocks * length * sums.element_size(),
        rows,
        length,
        groups,
        group,
    )
    if blocks > 1:
        sums = reduce("sum", sums, (1,))
    return sums[0], sums[1]
