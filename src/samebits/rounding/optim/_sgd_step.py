"""The step of SGD with momentum (Sutskever et al. 2013), float32, as torch writes it; forms as of AdamW."""

from __future__ import annotations

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
class SGDFactors(Factors):
    """The factors of a step."""

    sign: float
    decay: float
    momentum: float
    old: float
    """Factor of the momentum buffer: `momentum`, or 0 at the first step, which begins with the gradient."""
    new: float
    """Factor of the gradient in the buffer: 1 - dampening, or 1 at the first step."""
    lr: float


@lru_cache(maxsize=64)
def factors(
    begins: bool, lr: float, momentum: float, dampening: float, weight_decay: float, maximize: bool
) -> SGDFactors:
    """Returns the factors of a step; `begins`: the momentum buffer is new, all zeros."""
    return SGDFactors(
        sign=-1.0 if maximize else 1.0,
        decay=weight_decay,
        momentum=momentum,
        old=0.0 if begins else momentum,
        new=1.0 if begins else 1 - dampening,
        lr=lr,
    )


def arguments(step: int, begins: float, *numbers: float) -> tuple[SGDFactors, bool]:
    """Returns the arguments of `kernel_of` and `plain` after tensors and keys, with Nesterov's or not."""
    *known, maximize, nesterov = numbers
    return factors(bool(begins), *known, bool(maximize)), bool(nesterov)


def kernel_of(tensors: list[torch.Tensor], by: SGDFactors, nesterov: bool) -> OnTeam:
    """Returns the kernel for weight, gradient, any momentum: contiguous, on the CPU, dtypes as AdamW's."""
    return _kernel(tensors[0].dtype, tensors[2].dtype if len(tensors) == 3 else None, nesterov)


@variants(
    dtype=(torch.bfloat16, torch.float16),
    state_dtype=(None, torch.float32, torch.bfloat16),
    nesterov=(False, True),
)
def _kernel(dtype: torch.dtype, state_dtype: torch.dtype | None, nesterov: bool) -> OnTeam:
    weight, state = STORED[dtype], STORED[state_dtype or torch.float32]
    weight_at, weight_of, weight_by = weight.pointer, weight.load, weight.rounded
    state_at, state_of, state_by = state.pointer, state.load, state.rounded
    has_momentum = state_dtype is not None
    buffer_place = 10 if has_momentum else 9  # a pointer made in the loop would keep it from being vectorised

    @inlined
    def update(words: Any, count: Any, at: Any, row: Any) -> None:
        sign, decay = np.float32(float_of(row[2])), np.float32(float_of(row[3]))
        momentum, old = np.float32(float_of(row[4])), np.float32(float_of(row[5]))
        share, lr = np.float32(float_of(row[6])), np.float32(float_of(row[7]))
        p, g, buffer = weight_at(row[8]), weight_at(row[9]), state_at(row[buffer_place])
        for j in range(count):
            i = at + j
            value = weight_of(p[i])
            grad = weight_of(g[i]) * sign + value * decay
            if has_momentum:
                moved = state_of(buffer[i]) * old + grad * share
                buffer[i] = state_by(moved, words, 1, j)
                grad = grad + moved * momentum if nesterov else moved
            p[i] = weight_by(value - grad * lr, words, 0, j)

    widths = (weight.width,) if state.width == 0 else (weight.width, state.width)
    reads = ((8, 2), (9, 2), (buffer_place, state_dtype.itemsize if state_dtype else 2))
    return tile_kernel(
        update, widths, reads, f"sgd_{name_of(dtype)}_{state_dtype and name_of(state_dtype)}_{nesterov}"
    )


def plain(tensors: list[torch.Tensor], keys: list[Words], by: SGDFactors, nesterov: bool) -> None:
    """Runs the step of `kernel_of` with tensor ops; see `_adamw_step.plain`."""
    weight, gradient, *buffers = tensors
    value = weight.float()
    grad = gradient.float() * by.sign + value * by.decay
    for buffer in buffers:
        moved = buffer.float() * by.old + grad * by.new
        store(buffer, moved, keys[-1])
        grad = grad + moved * by.momentum if nesterov else moved
    store(weight, value - grad * by.lr, keys[0])
