"""The step of AdamW (Loshchilov and Hutter 2019; AMSGrad: Reddi, Kale, Kumar 2018), float32, as torch's.

Two forms with the same bits: a kernel that passes once over weight, gradient and state, and tensor ops for
other devices, layouts and dtypes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from samebits._context import Words
from samebits._native import inlined
from samebits._native.kernel_threads import OnTeam, float_of, variants
from samebits.rounding._cpu.tile_passes import tile_kernel
from samebits.rounding.optim._stored import STORED, Factors, name_of, store


@dataclass(frozen=True)
class AdamWFactors(Factors):
    """The factors of a step."""

    sign: float
    keep: float
    """1 - lr weight_decay"""
    first: float
    """1 - beta1"""
    beta2: float
    second: float
    """1 - beta2"""
    root: float
    """1 / sqrt(1 - beta2**step)"""
    eps: float
    size: float
    """lr / (1 - beta1**step)"""


@lru_cache(maxsize=64)
def arguments(
    step: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, maximize: float
) -> tuple[AdamWFactors]:
    """Returns the arguments of `kernel_of` and `plain` besides tensors and keys; steps count from 1."""
    factors = AdamWFactors(
        sign=-1.0 if maximize else 1.0,
        keep=1 - lr * weight_decay,
        first=1 - beta1,
        beta2=beta2,
        second=1 - beta2,
        root=1 / math.sqrt(1 - beta2**step),
        eps=eps,
        size=lr / (1 - beta1**step),
    )
    return (factors,)


def kernel_of(tensors: list[torch.Tensor], by: AdamWFactors) -> OnTeam:
    """Returns the kernel for weight, gradient, exp_avg, exp_avg_sq, any maximum: contiguous, on the CPU.

    Weight and gradient are bfloat16 or float16, state is float32 or bfloat16. There is a key for the weight,
    and, if the state is bfloat16, one for each of the first two tensors of it.
    """
    return _kernel(tensors[0].dtype, tensors[2].dtype, len(tensors) == 5)


@variants(
    dtype=(torch.bfloat16, torch.float16), state_dtype=(torch.float32, torch.bfloat16), amsgrad=(False, True)
)
def _kernel(dtype: torch.dtype, state_dtype: torch.dtype, amsgrad: bool) -> OnTeam:
    weight, state = STORED[dtype], STORED[state_dtype]
    weight_at, weight_of, weight_by = weight.pointer, weight.load, weight.rounded
    state_at, state_of, state_by = state.pointer, state.load, state.rounded
    largest_place = 14 if amsgrad else 13  # a pointer made in the loop would keep it from being vectorised

    @inlined
    def update(words: Any, count: Any, at: Any, row: Any) -> None:
        sign, keep = np.float32(float_of(row[2])), np.float32(float_of(row[3]))
        first, beta2 = np.float32(float_of(row[4])), np.float32(float_of(row[5]))
        second, root = np.float32(float_of(row[6])), np.float32(float_of(row[7]))
        eps, size = np.float32(float_of(row[8])), np.float32(float_of(row[9]))
        p, g = weight_at(row[10]), weight_at(row[11])
        m, v, largest = state_at(row[12]), state_at(row[13]), state_at(row[largest_place])
        for j in range(count):
            i = at + j
            grad = weight_of(g[i]) * sign
            mean = state_of(m[i])
            mean = mean + (grad - mean) * first
            square = state_of(v[i]) * beta2 + (grad * second) * grad
            m[i] = state_by(mean, words, 1, j)
            stored = state_by(square, words, 2, j)
            v[i] = stored
            if amsgrad:
                square = max(state_of(largest[i]), state_of(stored))
                largest[i] = state_by(square, words, 2, j)  # one of the two, so nothing is rounded
            new = weight_of(p[i]) * keep - (mean / (math.sqrt(square) * root + eps)) * size
            p[i] = weight_by(new, words, 0, j)

    widths = (weight.width,) if state.width == 0 else (weight.width, state.width, state.width)
    reads = ((10, 2), (11, 2), (12, state_dtype.itemsize), (13, state_dtype.itemsize))
    return tile_kernel(update, widths, reads, f"adamw_{name_of(dtype)}_{name_of(state_dtype)}_{amsgrad}")


def plain(tensors: list[torch.Tensor], keys: list[Words], by: AdamWFactors) -> None:
    """Runs the step of `kernel_of` with tensor ops: any device, layout and gradient dtype, float32 weights.

    A scalar never multiplies inside of a sum (`alpha=`), which some CPUs would round once and others twice.
    """
    weight, gradient, exp_avg, exp_avg_sq, *largest = tensors
    mean, grad = exp_avg.float(), gradient.float() * by.sign
    mean = mean + (grad - mean) * by.first
    square = exp_avg_sq.float() * by.beta2 + (grad * by.second) * grad
    _store_state(exp_avg, mean, keys, 1)
    _store_state(exp_avg_sq, square, keys, 2)
    for most in largest:
        square = torch.maximum(most.float(), exp_avg_sq.float())
        most.copy_(square)
    new = weight.float() * by.keep - (mean / (square.sqrt() * by.root + by.eps)) * by.size
    store(weight, new, keys[0])


def _store_state(out: torch.Tensor, x: torch.Tensor, keys: list[Words], stream: int) -> None:
    store(out, x, keys[min(stream, len(keys) - 1)])
