"""The weight and bias gradients of layer normalisation, summed over fixed groups of rows.

Torch gives each thread a part of the rows and, for bfloat16, rounds each thread's sum: the gradient changes with the
thread count by up to 11%. Here groups of rows are chosen from the sizes and summed in float32 (Ba, Kiros, Hinton:
Layer normalization, 2016; gradient of the weight: sum over rows of grad_out (input - mean) rstd).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from samebits import _native as native
from samebits._native.kernel_threads import OnTeam, count_up, int64_at, on_team
from samebits._native.torch_threads import on_single_thread
from samebits.determinism._dispatcher import Kernel
from samebits.determinism._kernels.reductions.blocks import DOUBLE, INPUTS, SINGLE
from samebits.determinism._replacement import replacements

_SMALL = 1 << 14
"""Elements of an input that torch does on one thread."""
_GROUPS = 32
"""Groups of rows, at most."""


@cache
def _kernel(dtype: torch.dtype) -> OnTeam:
    """Sums over rows; args: 1-6 addresses of grad_out, input, mean, rstd, partial sums (groups x 2 x columns), zero;
    7 rows; 8 columns; 9 rows a group.
    """
    pointer, load = INPUTS[dtype]
    _, number_at, _ = DOUBLE if dtype == torch.float64 else SINGLE

    def group(chunk: int, args: Any) -> None:
        rows, columns = args[7], args[8]
        grad = native.carray(pointer(args[1]), (rows, columns))
        x = native.carray(pointer(args[2]), (rows, columns))
        mean = native.carray(number_at(args[3]), (rows,))
        rstd = native.carray(number_at(args[4]), (rows,))
        sums = native.carray(number_at(args[5]), (args[0], 2, columns))
        weight, bias = sums[chunk, 0], sums[chunk, 1]
        weight[:] = 0
        bias[:] = 0
        for row in range(chunk * args[9], min(rows, (chunk + 1) * args[9])):
            scale, shift = rstd[row], -mean[row] * rstd[row]
            grads, xs = grad[row], x[row]
            for j in range(columns):
                g = load(grads[j])
                weight[j] += g * (load(xs[j]) * scale + shift)
                bias[j] += g
        if (
            count_up(int64_at(args[6])) == args[0] - 1
        ):  # the last group to be done adds them up, in their order
            for other in range(1, args[0]):
                for which in range(2):
                    total, part = sums[0, which], sums[other, which]
                    for j in range(columns):
                        total[j] += part[j]

    return on_team(group, name=f"layer_norm_{dtype}", reassociate=True)


def _backward(kernel: Kernel) -> Kernel:
    whole = on_single_thread(kernel)

    def backward(
        grad_out: Tensor,
        x: Tensor,
        normalized_shape: Sequence[int],
        mean: Tensor,
        rstd: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        output_mask: Sequence[bool],
    ) -> Any:
        ours = x.numel() > _SMALL and x.dtype in INPUTS and grad_out.dtype == x.dtype
        if not ours or not (output_mask[1] or output_mask[2]):
            run = kernel if not (output_mask[1] or output_mask[2]) else whole
            return run(grad_out, x, normalized_shape, mean, rstd, weight, bias, output_mask)
        grad_out, x = grad_out.contiguous(), x.contiguous()
        grad_x = None
        if output_mask[0]:
            only_x = (True, False, False)
            grad_x = kernel(grad_out, x, normalized_shape, mean, rstd, weight, bias, only_x)[0]
        sums = _sums(grad_out, x, mean, rstd, x.numel() // mean.numel())
        made = [
            None
            if parameter is None or not wanted
            else total.view(parameter.shape).to(parameter.dtype, copy=True)
            for parameter, wanted, total in (
                (weight, output_mask[1], sums[0]),
                (bias, output_mask[2], sums[1]),
            )
        ]
        return grad_x, *made

    return backward


def _sums(grad_out: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, columns: int) -> Tensor:
    rows = x.numel() // columns
    group = max(16, -(-rows // _GROUPS))
    kind = torch.float64 if x.dtype == torch.float64 else torch.float32
    mean, rstd = mean.to(kind).contiguous(), rstd.to(kind).contiguous()
    groups = -(-rows // group)
    sums = x.new_empty((groups, 2, columns), dtype=kind)
    done = torch.zeros((), dtype=torch.int64)
    _kernel(x.dtype)(
        groups,
        *(t.data_ptr() for t in (grad_out, x, mean, rstd, sums, done)),
        *(rows, columns, group),
    )
    return sums[0]


REPLACEMENTS = replacements(
    ["native_layer_norm_backward"],
    _backward,
    "torch sums the weight and bias gradients in one part per thread (bfloat16: to 11% apart): here in fixed groups of rows",
    only_threads=True,
)
