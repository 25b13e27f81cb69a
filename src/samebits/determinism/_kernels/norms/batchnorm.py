"""Batch normalisation of (N, C) and channels-last input, whose bits do not depend on the thread count.

There torch gives each thread a run of rows and adds up the threads' sums. Of (N, C, ...) in contiguous form it sums one
channel after the other, each on one thread: so ours copies into that form, and the result back into the form of the input.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from samebits.determinism._dispatcher import Kernel
from samebits.determinism._replacement import replacements


def _training(kernel: Kernel) -> Kernel:
    def forward(input: Tensor, *args: Any) -> Any:  # noqa: A002
        if _is_by_channel(input):
            return kernel(input, *args)
        result, *saved = kernel(_by_channel(input), *args)
        return _as(input, result), *saved

    return forward


def _forward(kernel: Kernel) -> Kernel:
    summing = _training(kernel)

    def forward(
        input: Tensor,  # noqa: A002
        weight: Any,
        bias: Any,
        running_mean: Any,
        running_var: Any,
        training: bool,
        *rest: Any,
    ) -> Any:
        run = summing if training else kernel  # in evaluation nothing is summed
        return run(input, weight, bias, running_mean, running_var, training, *rest)

    return forward


def _backward(kernel: Kernel) -> Kernel:
    def backward(grad_out: Tensor, input: Tensor, *rest: Any) -> Any:  # noqa: A002
        if _is_by_channel(input) and _is_by_channel(grad_out):
            return kernel(grad_out, input, *rest)
        grad, *others = kernel(_by_channel(grad_out), _by_channel(input), *rest)
        return grad if grad is None else _as(input, grad), *others

    return backward


def _is_by_channel(x: Tensor) -> bool:
    """Returns True if torch takes `x` one channel after the other."""
    return x.dim() > 2 and x.is_contiguous() and x.shape[2:].numel() > 1


def _by_channel(x: Tensor) -> Tensor:
    """(1, C, N x ...) for what has one number per channel and item, else (N, C, ...); contiguous."""
    if x.shape[2:].numel() == 1:
        return x.reshape(x.shape[:2]).t().contiguous().unsqueeze(0)
    return x.contiguous()


def _as(like: Tensor, x: Tensor) -> Tensor:
    if like.shape[2:].numel() == 1:
        x = x.squeeze(0).t().contiguous().view(like.shape)
    return x.contiguous(memory_format=suggested(like))


def suggested(x: Tensor) -> torch.memory_format:
    """The memory format that torch gives to a result of the shape of `x`."""
    for dims, form in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if x.dim() == dims and x.is_contiguous(memory_format=form) and not x.is_contiguous():
            return form
    return torch.contiguous_format


_REASON = "torch adds up threads' sums over rows for (N, C) and channels-last input: copied into the form that is summed by channel"

REPLACEMENTS = (
    *replacements(["_batch_norm_with_update"], _training, _REASON, only_threads=True),
    *replacements(["batch_norm_backward"], _backward, _REASON, only_threads=True),
    *replacements(["native_batch_norm"], _forward, _REASON, only_threads=True),
    *replacements(["native_batch_norm_backward"], _backward, _REASON, only_threads=True),
)
