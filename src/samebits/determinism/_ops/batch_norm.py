"""Batch normalization in training, in evaluation, its gradients: `arithmetic.normalization.definition`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from samebits.arithmetic.normalization import as_read
from samebits.arithmetic.normalization import batch_tensors as batch
from samebits.arithmetic.reductions import MEMORY, QUOTIENT, lanes_type, reduce
from samebits.determinism._kernels.out_argument import into
from samebits.determinism._ops.operands import takes
from samebits.determinism._replacement import or_torchs, replacements


def _batch_norm(
    input: Tensor,  # noqa: A002
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    **out: Tensor,
) -> tuple[Tensor, ...] | None:
    takes("native_batch_norm", input.dtype)
    parameters = (weight, bias, running_mean, running_var)
    strange = not training and any(
        one.dim() != 1 or one.dtype is not _kind(input, *parameters) for one in tuple(out.values())[1:]
    )
    if (
        strange
        or not _valid(input, *parameters)
        or (not training and (running_mean is None or running_var is None))
    ):
        return None
    x = input if input.is_contiguous() else input.contiguous(memory_format=batch.format_of(input))
    kind = _kind(x, *parameters)
    if training and batch.is_whole(x):
        y, mean, istd = batch.whole_in_training(x, weight, bias, (running_mean, running_var), momentum, eps)
        made = (y, mean, istd) if kind is mean.dtype else (y, mean.to(kind), istd.to(kind))
        return tuple(map(into, out.values(), made)) if out else made
    if training:
        channels = batch.in_training(x, weight, (running_mean, running_var), momentum, eps)
        saved = channels.mean.to(kind), channels.istd.to(kind)
    else:
        assert running_mean is not None
        assert running_var is not None
        channels = batch.in_evaluation(x, weight, running_mean, running_var, eps)
        saved = x.new_empty(0, dtype=kind), x.new_empty(0, dtype=kind)
    made = batch.normalized(x, channels, bias), *saved
    if out and not training:  # torch leaves the statistics as they are
        normalized, *untouched = out.values()
        return into(normalized, made[0]), *untouched
    return tuple(map(into, out.values(), made)) if out else made


def _without_running(
    input: Tensor,  # noqa: A002
    weight: Tensor | None,
    bias: Tensor | None,
    *rest: Any,
    **out: Tensor,
) -> tuple[Tensor, ...] | None:
    return _batch_norm(input, weight, bias, None, None, *rest, **out)


def _with_update(
    input: Tensor,  # noqa: A002
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    *,
    reserve: Tensor | None = None,
    **out: Tensor,
) -> tuple[Tensor, ...] | None:
    made = _batch_norm(input, weight, bias, running_mean, running_var, True, momentum, eps, **out)
    if made is None:
        return None
    return *made, torch.empty(0, dtype=torch.uint8) if reserve is None else reserve


def _valid(x: Tensor, *parameters: Tensor | None) -> bool:
    """Returns True for what torch's kernel takes, with elements."""
    kind, shape, seen = x.dtype, x.shape, None
    if kind not in MEMORY or len(shape) < 2 or not x.numel():
        return False
    for p in parameters:
        if p is not None:
            if p.dim() != 1 or p.shape[0] != shape[1] or p.dtype not in (seen or kind, seen or torch.float32):
                return False
            seen = p.dtype
    return True


def _kind(x: Tensor, *parameters: Tensor | None) -> torch.dtype:
    """Returns the type of the saved statistics, which is that of the parameters."""
    return next((p.dtype for p in parameters if p is not None), x.dtype)


def _gradients(
    grad_out: Tensor,
    input: Tensor,  # noqa: A002
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_invstd: Tensor | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
    *_reserve: Tensor,
) -> tuple[Tensor | None, ...] | None:
    takes("native_batch_norm_backward", grad_out.dtype, input.dtype)
    center, spread = (save_mean, save_invstd) if train else (running_mean, running_var)
    if (
        not _valid(input, weight, center, spread)
        or center is None
        or spread is None
        or grad_out.shape != input.shape
        or grad_out.dtype != input.dtype
    ):
        return None
    result_kind = _kind(input, weight, center, spread)
    form, kind = batch.format_of(input), lanes_type(input)
    grad, x = grad_out.contiguous(memory_format=form), input.contiguous(memory_format=form)
    center, spread = as_read(center, kind), as_read(spread, kind)
    if train and batch.is_whole(x):
        dx, dw, db = batch.whole_gradients(grad, x, weight, center, spread, wanted=output_mask[0])
    else:
        if not train:
            spread = batch.in_evaluation(x, None, center, spread, eps).istd
        dx, dw, db = batch.gradients(grad, x, weight, center, spread, train=train, wanted=output_mask[0])
    return (
        dx,
        dw.to(result_kind) if output_mask[1] else None,
        db.to(result_kind) if output_mask[2] else None,
    )


def _update_stats(
    input: Tensor,  # noqa: A002
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
) -> tuple[Tensor, Tensor] | None:
    takes("batch_norm_update_stats", input.dtype)
    if not _valid(input, running_mean, running_var):
        return None
    x = input.contiguous(memory_format=batch.format_of(input))
    channels = batch.in_training(x, None, (running_mean, running_var), momentum, 0.0)
    variance = reduce("deviation", x, batch.dims_of(x), centers=channels.mean.double(), last=QUOTIENT)
    return channels.mean.to(x.dtype), variance


_REASON = (
    "torch's sums have lanes that follow the machine's vectors, or threads: 16 lanes by definition, in "
    "float64"
)

REPLACEMENTS = tuple(
    replacement
    for names, compute in (
        (("native_batch_norm", "native_batch_norm.out"), _batch_norm),
        (("_native_batch_norm_legit", "_native_batch_norm_legit.out"), _batch_norm),
        (("_native_batch_norm_legit.no_stats", "_native_batch_norm_legit.no_stats_out"), _without_running),
        (("_batch_norm_with_update", "_batch_norm_with_update.out"), _with_update),
        (("native_batch_norm_backward", "batch_norm_backward"), _gradients),
        (("batch_norm_update_stats",), _update_stats),
    )
    for replacement in replacements(names, or_torchs(compute, ()), _REASON)
)
