"""Group normalisation, whose bits do not depend on the thread count.

Channels-last input is copied into contiguous form, where each group is summed on one thread. The gradient of the
input has other bits on several threads than on one (the compiler fuses other operations), so it is a kernel of ours
(Wu, He: Group normalization, 2018): grad_input = rstd weight grad_out + a input + b, with a and b of the group.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits import _native as native
from samebits._native.kernel_threads import OnTeam, float32_at, float64_at, on_team
from samebits.determinism._dispatcher import Kernel
from samebits.determinism._kernels.norms.batchnorm import suggested
from samebits.determinism._replacement import replacements


def _forward(kernel: Kernel) -> Kernel:
    def forward(input: Tensor, *args: Any) -> Any:  # noqa: A002
        result, *saved = kernel(input.contiguous(), *args)
        return result.contiguous(memory_format=suggested(input)), *saved

    return forward


def _backward(kernel: Kernel) -> Kernel:
    def backward(
        grad_out: Tensor,
        input: Tensor,  # noqa: A002
        mean: Tensor,
        rstd: Tensor,
        weight: Tensor | None,
        N: int,  # noqa: N803 (torch's names)
        C: int,  # noqa: N803
        HxW: int,  # noqa: N803
        group: int,
        output_mask: Sequence[bool],
    ) -> Any:
        grad_out, x = grad_out.contiguous(), input.contiguous()
        ours = (
            output_mask[0]
            and x.numel() > 0
            and len({t.dtype for t in (grad_out, x, mean, rstd)}) == 1
            and x.dtype in _NUMBERS
        )
        wanted = (not ours and output_mask[0], *output_mask[1:])
        others: Sequence[Tensor | None] = (None, None, None)
        if any(wanted):
            others = kernel(grad_out, x, mean, rstd, weight, N, C, HxW, group, wanted)
        grad = _grad_input(grad_out, x, mean, rstd, weight, (N, C, HxW, group)) if ours else others[0]
        return grad if grad is None else grad.contiguous(memory_format=suggested(input)), *others[1:]

    return backward


def _grad_input(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    sizes: tuple[int, int, int, int],
) -> Tensor:
    items, channels, length, groups = sizes
    scale = x.new_ones(channels) if weight is None else weight.to(x.dtype).contiguous()
    result = torch.empty_like(x)
    tensors = (result, grad, x, mean.contiguous(), rstd.contiguous(), scale)
    _kernel(x.dtype)(items * groups, *(t.data_ptr() for t in tensors), channels // groups, length, groups)
    return result


@cache
def _kernel(dtype: torch.dtype) -> OnTeam:
    """args: 1-6 addresses of the result, grad_out, input, mean, rstd, weight; 7 channels a group; 8 their length; 9 groups."""
    number_at, real = _NUMBERS[dtype]

    def group(chunk: int, args: Any) -> None:
        channels, length, groups = args[7], args[8], args[9]
        size = channels * length
        here = chunk * size
        result = native.carray(number_at(args[1]), (here + size,))[here:].reshape(channels, length)
        grad = native.carray(number_at(args[2]), (here + size,))[here:].reshape(channels, length)
        x = native.carray(number_at(args[3]), (here + size,))[here:].reshape(channels, length)
        mean = native.carray(number_at(args[4]), (chunk + 1,))[chunk]
        rstd = native.carray(number_at(args[5]), (chunk + 1,))[chunk]
        weight = native.carray(number_at(args[6]), (groups * channels,))[chunk % groups * channels :]
        both, alone = real(0), real(0)
        for c in range(channels):
            g, of_x = grad[c], x[c]
            dot, total = real(0), real(0)
            for i in range(length):
                dot += g[i] * of_x[i]
                total += g[i]
            both += weight[c] * dot
            alone += weight[c] * total
        part = real(1) / real(size)
        a = (alone * mean - both) * rstd * rstd * rstd * part
        b = -a * mean - alone * rstd * part
        for c in range(channels):
            g, of_x, out = grad[c], x[c], result[c]
            scale = rstd * weight[c]
            for i in range(length):
                out[i] = scale * g[i] + a * of_x[i] + b

    return on_team(group, name=f"group_norm_{dtype}", reassociate=True)


_NUMBERS = {torch.float32: (float32_at, np.float32), torch.float64: (float64_at, np.float64)}

_REASON = "threads' sums over rows (channels last), and other bits on several threads than on one: copied into contiguous form, a kernel of ours"

REPLACEMENTS = (
    *replacements(["native_group_norm"], _forward, _REASON, only_threads=True),
    *replacements(["native_group_norm_backward"], _backward, _REASON, only_threads=True),
)
