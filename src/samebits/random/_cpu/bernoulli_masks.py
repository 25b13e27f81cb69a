"""Bernoulli numbers and dropout on the CPU, row k from key k of `keys` (rows, 2).

One word decides about one element: 1, or dropped, where word + 1 <= p 2**32, so with probability floor(p
2**32) / 2**32, never for p = 0 and always for p = 1.
"""

from __future__ import annotations

from functools import cache
from math import floor
from typing import Any

import numpy as np
import torch

from samebits._native import inlined
from samebits._native.float_bits import of_bfloat16, of_float16, to_bfloat16, to_float16
from samebits._native.kernel_threads import (
    OnTeam,
    as_argument,
    float32_at,
    float64_at,
    float_of,
    uint8_at,
    uint16_at,
    uint32_at,
    uint64_at,
)
from samebits.random._cpu.tiles import fill, tile_kernel
from samebits.random._memory import address

_2_32 = 2.0**32
_BITS = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}


def bernoulli(keys: torch.Tensor, p: float | torch.Tensor, out: torch.Tensor) -> None:
    """Writes ones with probability `p`, else zeros; a tensor p is float64, contiguous, of out's shape."""
    if isinstance(p, torch.Tensor):
        fill(_BERNOULLI_EACH[out.itemsize], keys, out, _one_bits(out.dtype), address(p))
    elif p == 1:
        out.fill_(1)
    else:
        fill(_BERNOULLI[out.itemsize], keys, out, _one_bits(out.dtype), floor(p * _2_32))


def dropout(keys: torch.Tensor, source: torch.Tensor, p: float, scale: float, out: torch.Tensor) -> None:
    """Writes `source` (may be `out`) times `scale`, or 0 with probability p < 1; contiguous, of one dtype."""
    fill(_DROPOUT[out.dtype], keys, out, address(source), floor(p * _2_32), as_argument(scale))


@cache
def _one_bits(dtype: torch.dtype) -> int:
    """Returns the bits of 1."""
    return int(torch.ones((), dtype=dtype, device="cpu").view(_BITS[dtype.itemsize]))


def _bernoulli_kernel(pointer: Any, unsigned: Any) -> OnTeam:
    @inlined
    def store(words: Any, count: Any, at: Any, args: Any) -> None:
        out, one, below = pointer(args[4]), unsigned(args[5]), np.uint32(args[6])
        for j in range(count):
            out[at + j] = one if words[j] < below else unsigned(0)

    return tile_kernel(store, 4, f"bernoulli_{unsigned.__name__}")


def _bernoulli_kernel_each(pointer: Any, unsigned: Any) -> OnTeam:
    @inlined
    def store(words: Any, count: Any, at: Any, args: Any) -> None:
        out, one, p = pointer(args[4]), unsigned(args[5]), float64_at(args[6])
        for j in range(count):
            out[at + j] = one if np.float64(words[j]) + 1.0 <= p[at + j] * _2_32 else unsigned(0)

    return tile_kernel(store, 4, f"bernoulli_each_{unsigned.__name__}")


@inlined
def _itself(x: Any) -> Any:
    return x


def _dropout_kernel(name: str, pointer: Any, real: Any, load: Any, rounded: Any) -> OnTeam:
    @inlined
    def store(words: Any, count: Any, at: Any, args: Any) -> None:
        out, source = pointer(args[4]), pointer(args[5])
        below, scale = np.uint32(args[6]), real(float_of(args[7]))
        for j in range(count):
            out[at + j] = rounded(load(source[at + j]) * (real(0.0) if words[j] < below else scale))

    return tile_kernel(store, 4, f"dropout_{name}")


_UNSIGNED = {
    1: (uint8_at, np.uint8),
    2: (uint16_at, np.uint16),
    4: (uint32_at, np.uint32),
    8: (uint64_at, np.uint64),
}
_BERNOULLI = {size: _bernoulli_kernel(*unsigned) for size, unsigned in _UNSIGNED.items()}
_BERNOULLI_EACH = {size: _bernoulli_kernel_each(*unsigned) for size, unsigned in _UNSIGNED.items()}
_DROPOUT = {
    torch.float32: _dropout_kernel("float32", float32_at, np.float32, _itself, _itself),
    torch.float64: _dropout_kernel("float64", float64_at, np.float64, _itself, _itself),
    torch.float16: _dropout_kernel("float16", uint16_at, np.float32, of_float16, to_float16),
    torch.bfloat16: _dropout_kernel("bfloat16", uint16_at, np.float32, of_bfloat16, to_bfloat16),
}
