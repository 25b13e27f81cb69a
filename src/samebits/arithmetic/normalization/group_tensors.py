"""Group normalization of tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.arithmetic.normalization.groups import group_norm, group_norm_gradient
from samebits.arithmetic.normalization.layer_tensors import lanes_type, parameter
from samebits.arithmetic.reductions.tensors import MEMORY, bits_of, reduce


def normalized_groups(
    x: Tensor, sizes: tuple[int, int, int, int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns y, means and rstds (in the lanes' type) of a contiguous tensor; `sizes`: items, channels, length, groups."""
    items, channels, length, groups = sizes
    kind = lanes_type(x)
    w, b = parameter(weight, channels, kind, 1), parameter(bias, channels, kind, 0)
    out = torch.empty_like(x)
    mean, rstd = torch.empty((items, groups), dtype=kind), torch.empty((items, groups), dtype=kind)
    group_norm(MEMORY[x.dtype])(
        items * groups,
        *(t.data_ptr() for t in (x, w, b, out, mean, rstd)),
        *(groups, channels // groups, length, bits_of(eps)),
    )
    return out, mean, rstd


def group_gradients(
    grad: Tensor,
    x: Tensor,
    sizes: tuple[int, int, int, int],
    weight: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    *,
    wanted: bool,
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Returns dx (if it is wanted), dw and db in the lanes' type; all tensors are contiguous, statistics in the lanes' type."""
    items, channels, length, groups = sizes
    out = torch.empty_like(x) if wanted else None
    w = parameter(weight, channels, mean.dtype, 1)
    sums = torch.empty((2, items, channels), dtype=mean.dtype)
    group_norm_gradient(MEMORY[x.dtype], wanted=wanted)(
        items * groups,
        *(t.data_ptr() for t in (grad, x, w, mean, rstd)),
        *(0 if out is None else out.data_ptr(), sums[0].data_ptr(), sums[1].data_ptr()),
        *(groups, channels // groups, length),
    )
    made = reduce("sum", sums, (1,))
    return out, made[0], made[1]
