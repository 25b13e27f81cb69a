"""Layer normalization and its gradients (definition: `arithmetic.normalization`)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from samebits.arithmetic.normalization import as_read, input_gradient, normalized_rows, weight_gradients
from samebits.arithmetic.reductions import lanes_type
from samebits.determinism._ops.operands import takes
from samebits.determinism._replacement import or_torchs, replacements


def _layer_norm(
    input: Tensor,  # noqa: A002
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, ...] | None:
    outer = _outer(input, normalized_shape, weight, bias, "native_layer_norm")
    if outer is None:
        return None
    x = input if input.is_contiguous() else input.contiguous()
    statistics = (*outer, *(1,) * len(normalized_shape))
    out, mean, rstd = normalized_rows(x, math.prod(normalized_shape), statistics, weight, bias, eps)
    kind = _statistics_type(input, weight, bias)
    if kind is not mean.dtype:
        mean, rstd = mean.to(kind), rstd.to(kind)
    return out, mean, rstd


def _statistics_type(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> torch.dtype:
    """As in torch: that of the parameters, or of the input if there are none."""
    if x.dtype is torch.float64:
        return x.dtype
    given = bias if weight is None else weight
    return x.dtype if given is None else given.dtype


def _outer(
    x: Tensor, inner: Sequence[int], weight: Tensor | None, bias: Tensor | None, op: str
) -> Sequence[int] | None:
    """Returns the sizes of the rows; None for what torch's kernel does not take, and for nothing."""
    kind, shape = x.dtype, x.shape
    rank = len(shape) - len(inner)
    if not takes(op, kind) or not inner or rank < 0 or list(shape[rank:]) != list(inner) or not x.numel():
        return None
    for parameter in (weight, bias):
        if parameter is not None and (
            parameter.shape != shape[rank:] or parameter.dtype not in (kind, torch.float32)
        ):
            return None
    if weight is not None and bias is not None and weight.dtype != bias.dtype:
        return None
    return shape[:rank]


def _gradients(
    grad_out: Tensor,
    input: Tensor,  # noqa: A002
    normalized_shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, ...] | None:
    outer = _outer(input, normalized_shape, weight, bias, "native_layer_norm_backward")
    if outer is None or grad_out.dtype != input.dtype:
        return None
    length, kind = math.prod(normalized_shape), lanes_type(input)
    grad, x = as_read(grad_out, input.dtype), as_read(input, input.dtype)
    center, scale = as_read(mean, kind), as_read(rstd, kind)
    dx = input_gradient(grad, x, length, weight, center, scale) if output_mask[0] else None
    dw = db = None
    if (weight is not None and output_mask[1]) or (bias is not None and output_mask[2]):
        dw, db = weight_gradients(grad, x, length, center, scale)
    return dx, _shaped(dw, weight, output_mask[1]), _shaped(db, bias, output_mask[2])


def _shaped(total: Tensor | None, parameter: Tensor | None, wanted: bool) -> Tensor | None:
    if total is None or parameter is None or not wanted:
        return None
    return total.view(parameter.shape).to(parameter.dtype)


_REASON = "torch's sums have lanes that follow the machine's vectors: 16 lanes by definition"

REPLACEMENTS = (
    *replacements(["native_layer_norm"], or_torchs(_layer_norm), _REASON),
    *replacements(["native_layer_norm_backward"], or_torchs(_gradients), _REASON),
)
