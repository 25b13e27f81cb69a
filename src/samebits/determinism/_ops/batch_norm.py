"""Batch normalization in training and evaluation, and its gradients (definition: `arithmetic.normalization`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from samebits.arithmetic.normalization import batch_tensors as batch
from samebits.arithmetic.normalization.layers import as_read, lanes_type
from samebits.arithmetic.reductions.kernels import QUOTIENT
from samebits.arithmetic.reductions.tensors import MEMORY, reduce
from samebits.determinism._dispatcher import Kernel
from samebits.determinism._kernels.out_argument import into
from samebits.determinism._ops.operands import takes
from samebits.determinism._replacement import replacements


def _forward(kernel: Kernel) -> Kernel:
    def forward(
        input: Tensor,  # noqa: A002
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        training: bool,
        momentum: float,
        eps: float,
        **out: Tensor,
    ) -> Any:
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
            return kernel(input, *parameters, training, momentum, eps, **out)
        x = input if input.is_contiguous() else input.contiguous(memory_format=batch.format_of(input))
        kind = _kind(x, *parameters)
        if training and batch.is_whole(x):
            y, mean, istd = batch.whole_in_training(
                x, weight, bias, (running_mean, running_var), momentum, eps
            )
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

    return forward


def _without_running(kernel: Kernel) -> Kernel:
    def make_call(*args: Any, **out: Tensor) -> Any:
        x, weight, bias, running_mean, running_var, *rest = args
        assert running_mean is running_var is None
        return kernel(x, weight, bias, *rest, **out)

    forward = _forward(make_call)

    def no_stats(input: Tensor, weight: Any, bias: Any, *rest: Any, **out: Tensor) -> Any:  # noqa: A002
        return forward(input, weight, bias, None, None, *rest, **out)

    return no_stats


def _with_update(kernel: Kernel) -> Kernel:
    def make_call(*args: Any, **out: Tensor) -> Any:
        *parameters, _, momentum, eps = args
        return kernel(*parameters, momentum, eps, **out)

    forward = _forward(make_call)

    def with_update(
        input: Tensor,  # noqa: A002
        weight: Any,
        bias: Any,
        running_mean: Any,
        running_var: Any,
        momentum: float,
        eps: float,
        **out: Tensor,
    ) -> Any:
        reserve = out.pop("reserve", None)
        made = forward(input, weight, bias, running_mean, running_var, True, momentum, eps, **out)
        return *made[:3], torch.empty(0, dtype=torch.uint8) if reserve is None else reserve

    return with_update


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
    kernel: Kernel,
    grad_out: Tensor,
    x: Tensor,
    weight: Tensor | None,
    running: tuple[Tensor | None, Tensor | None],
    saved: tuple[Tensor | None, Tensor | None],
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> Any:
    takes("native_batch_norm_backward", grad_out.dtype, x.dtype)
    needed = saved if train else running
    if (
        not _valid(x, weight, *needed)
        or needed[0] is None
        or needed[1] is None
        or grad_out.shape != x.shape
        or grad_out.dtype != x.dtype
    ):
        return kernel()
    form, kind = batch.format_of(x), lanes_type(x)
    grad, x = grad_out.contiguous(memory_format=form), x.contiguous(memory_format=form)
    center, spread = (as_read(t, kind) for t in needed if t is not None)
    if train and batch.is_whole(x):
        dx, dw, db = batch.whole_gradients(grad, x, weight, center, spread, wanted=output_mask[0])
    else:
        if not train:
            spread = batch.in_evaluation(x, None, center, spread, eps).istd
        dx, dw, db = batch.gradients(grad, x, weight, center, spread, train=train, wanted=output_mask[0])
    result_kind = _kind(x, weight, *needed)
    return (
        dx,
        dw.to(result_kind) if output_mask[1] else None,
        db.to(result_kind) if output_mask[2] else None,
    )


def _backward(kernel: Kernel) -> Kernel:
    def backward(
        grad_out: Tensor,
        input: Tensor,  # noqa: A002
        weight: Any,
        running_mean: Any,
        running_var: Any,
        save_mean: Any,
        save_invstd: Any,
        train: bool,
        eps: float,
        output_mask: Sequence[bool],
        *reserve: Tensor,
    ) -> Any:
        statistics = running_mean, running_var, save_mean, save_invstd
        args = (grad_out, input, weight, *statistics, train, eps, output_mask, *reserve)
        saved, running = statistics[2:], statistics[:2]
        return _gradients(
            lambda: kernel(*args), grad_out, input, weight, running, saved, train, eps, output_mask
        )

    return backward


def _update_stats(kernel: Kernel) -> Kernel:
    def statistics(
        input: Tensor,  # noqa: A002
        running_mean: Tensor | None,
        running_var: Tensor | None,
        momentum: float,
    ) -> Any:
        takes("batch_norm_update_stats", input.dtype)
        if not _valid(input, running_mean, running_var):
            return kernel(input, running_mean, running_var, momentum)
        x = input.contiguous(memory_format=batch.format_of(input))
        channels = batch.in_training(x, None, (running_mean, running_var), momentum, 0.0)
        variance = reduce("deviation", x, batch.dims_of(x), centers=channels.mean.double(), last=QUOTIENT)
        return channels.mean.to(x.dtype), variance

    return statistics


_REASON = "torch's sums have lanes that follow the machine's vectors, or threads: 16 lanes by definition, in float64"

REPLACEMENTS = (
    *replacements(
        (
            "native_batch_norm",
            "native_batch_norm.out",
            "_native_batch_norm_legit",
            "_native_batch_norm_legit.out",
        ),
        _forward,
        _REASON,
    ),
    *replacements(
        ("_native_batch_norm_legit.no_stats", "_native_batch_norm_legit.no_stats_out"),
        _without_running,
        _REASON,
    ),
    *replacements(("_batch_norm_with_update", "_batch_norm_with_update.out"), _with_update, _REASON),
    *replacements(("native_batch_norm_backward", "batch_norm_backward"), _backward, _REASON),
    *replacements(("batch_norm_update_stats",), _update_stats, _REASON),
)
