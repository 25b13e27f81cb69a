"""Group normalization and its gradients (definition: `arithmetic.normalization`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from samebits.arithmetic.normalization import group_gradients, normalized_groups
from samebits.arithmetic.normalization.batch_tensors import format_of
from samebits.arithmetic.reductions import MEMORY, lanes_type
from samebits.determinism._ops.operands import takes
from samebits.determinism._replacement import or_torchs, replacements


def _group_norm(
    input: Tensor,  # noqa: A002
    weight: Tensor | None,
    bias: Tensor | None,
    N: int,  # noqa: N803 (torch's names)
    C: int,  # noqa: N803
    HxW: int,  # noqa: N803
    group: int,
    eps: float,
) -> tuple[Tensor, ...] | None:
    takes("native_group_norm", input.dtype)
    if not _valid(input, (N, C, HxW, group), weight, bias):
        return None
    out, mean, rstd = normalized_groups(input.contiguous(), (N, C, HxW, group), weight, bias, eps)
    kind = next((p.dtype for p in (weight, bias) if p is not None), input.dtype)
    return out.contiguous(memory_format=format_of(input)), mean.to(kind), rstd.to(kind)


def _valid(x: Tensor, sizes: tuple[int, int, int, int], *parameters: Tensor | None) -> bool:
    items, channels, length, groups = sizes
    there = [p for p in parameters if p is not None]
    return (
        x.dtype in MEMORY
        and x.numel() == items * channels * length > 0
        and groups > 0
        and channels % groups == 0
        and all(p.numel() == channels and p.dtype in (x.dtype, torch.float32) for p in there)
        and len({p.dtype for p in there}) <= 1
    )


def _gradients(
    grad_out: Tensor,
    input: Tensor,  # noqa: A002
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    N: int,  # noqa: N803
    C: int,  # noqa: N803
    HxW: int,  # noqa: N803
    group: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, ...] | None:
    takes("native_group_norm_backward", grad_out.dtype, input.dtype)
    sizes = (N, C, HxW, group)
    if not _valid(input, sizes, weight) or grad_out.dtype != input.dtype:
        return None
    kind = lanes_type(input)
    center, scale = mean.to(kind).contiguous(), rstd.to(kind).contiguous()
    grad, x = grad_out.contiguous(), input.contiguous()
    dx, dw, db = group_gradients(grad, x, sizes, weight, center, scale, wanted=output_mask[0])
    parameters = mean.dtype if weight is None else weight.dtype
    return (
        None if dx is None else dx.contiguous(memory_format=format_of(input)),
        dw.to(parameters) if output_mask[1] else None,
        db.to(parameters) if output_mask[2] else None,
    )


_REASON = "torch's sums have lanes that follow the machine's vectors: 16 lanes by definition"

REPLACEMENTS = (
    *replacements(["native_group_norm"], or_torchs(_group_norm), _REASON),
    *replacements(["native_group_norm_backward"], or_torchs(_gradients), _REASON),
)
