"""Fourier transforms that MKL computes otherwise on several threads than on one: those run on one.

MKL shares a batch of transforms, or the rows of a transform of several dimensions, among the threads, and
their bits stay (measured over 3,000 shapes). Two kinds do not: one long transform alone, which it cuts into
pieces by the thread count and gains little (at most 1.25 of the time for two threads), and very short real
ones, for which one thread has the faster code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from samebits._native.torch_threads import single_thread
from samebits.determinism._dispatcher import Kernel
from samebits.determinism._replacement import Replacement

_FEW = 1 << 14
"""Elements transformed on one thread: several gain nothing, and small transforms vary in more ways."""


def _make(name: str, kernel: Kernel) -> Kernel:
    def transform(self: Tensor, dim: Sequence[int], normalization: int, last: Any, **kwargs: Any) -> Tensor:
        few = self.numel() <= _FEW
        if few or _is_alone(self.shape, dim) or _is_short(name, self.shape, dim, last):
            with single_thread():
                return kernel(self, dim, normalization, last, **kwargs)
        return kernel(self, dim, normalization, last, **kwargs)

    return transform


def _is_short(name: str, shape: torch.Size, dim: Sequence[int], last: Any) -> bool:
    """Returns True if MKL has other code on one thread for the real side: found over all lengths to 140."""
    if name == "_fft_c2r":
        return last <= 16 or last in (32, 64)
    return name == "_fft_r2c" and len(dim) == 1 and shape[dim[0]] in (8, 16, 32, 64)


def _is_alone(shape: torch.Size, dim: Sequence[int]) -> bool:
    """Returns True if this is one transform of one dimension (other dimensions have one element)."""
    return len(dim) > 0 and math.prod(shape) == max(shape[d] for d in dim)


_REASON = (
    "a long transform alone and very short real ones change bits with the thread count: these run on one "
    "thread"
)
REPLACEMENTS = tuple(
    Replacement(f"aten::{name}{form}", partial(_make, name), _REASON, only_threads=True)
    for name in ("_fft_c2c", "_fft_c2r", "_fft_r2c")
    for form in ("", ".out")
)
