"""The stream, uniform and normal numbers on the CPU: row k of `out` from key k of `keys` (rows, 2).

The mapping from words is that of torch's CUDA kernels. Uniform numbers have the same bits. Normal numbers are
the same Box-Muller transform of the same uniforms, but evaluated here by IEEE operations only, where CUDA
uses its fast approximations of log, sin and cos (relative error about 2**-21). Half precision is computed in
float32 and rounded once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from samebits._native import inlined
from samebits._native.float_bits import bits_32, bits_64, from_bits_32, from_bits_64, to_bfloat16, to_float16
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
from samebits._native.vectors import fma
from samebits.random._cpu.elementary import box_muller_32, box_muller_64
from samebits.random._cpu.tiles import fill, tile_kernel

DIGITS = {torch.float32: 24, torch.float64: 53, torch.float16: 11, torch.bfloat16: 8}
"""Bits of the word used for a uniform number: the precision of its dtype."""
_2_32, _LOW, _32 = 2.0**-32, np.uint64(0xFFFFFFFF), np.uint64(32)


def words(keys: torch.Tensor, out: torch.Tensor) -> None:
    """Writes the bytes of the keys' streams, to any integer dtype."""
    fill(_WORDS[out.itemsize], keys, out)


def uniform(keys: torch.Tensor, low: float, span: float, out: torch.Tensor) -> None:
    """Writes uniform numbers x span + low; `low` and `span` are numbers of the dtype of `out`."""
    kernel, mask = _UNIFORM[out.dtype]
    fill(kernel, keys, out, as_argument(span), as_argument(low), mask)


def normal(keys: torch.Tensor, mean: float, std: float, out: torch.Tensor) -> None:
    """Writes normal numbers z std + mean."""
    fill(_NORMAL[out.dtype], keys, out, as_argument(std), as_argument(mean))


@inlined
def _float32_in_0_1(word: Any) -> Any:
    """Returns the float32 next to (float32(word) + 1/2) / 2**32, which is in (0, 1]; the product is exact."""
    return np.float32(np.uint32(word)) * np.float32(2.0**-32) + np.float32(2.0**-33)


@inlined
def _float64_in_0_1(high: Any, low: Any) -> Any:
    return fma(np.float64(high), _2_32, fma(np.float64(low) * _2_32, _2_32, 0.5 * _2_32 * _2_32))


@inlined
def _join(words: Any, j: Any) -> Any:
    """Returns words 2 j and 2 j + 1 as one, the first one above."""
    return (np.uint64(words[2 * j]) << _32) | np.uint64(words[2 * j + 1])


@inlined
def _uniform_32(words: Any, j: Any, mask: Any) -> Any:
    return np.float32(np.int32(words[j] & np.uint32(mask))) * (np.float32(1.0) / np.float32(mask + 1))


@inlined
def _uniform_64(words: Any, j: Any, mask: Any) -> Any:
    return np.float64(np.int64(_join(words, j) & np.uint64(mask))) * 2.0**-53


@inlined
def _box_muller_32(words: Any, count: Any) -> None:
    """Turns pairs of words into the bits of pairs of normal numbers."""
    for j in range((count + 1) // 2):
        x, y = box_muller_32(_float32_in_0_1(words[2 * j]), _float32_in_0_1(words[2 * j + 1]))
        words[2 * j] = np.uint32(bits_32(x))
        words[2 * j + 1] = np.uint32(bits_32(y))


@inlined
def _box_muller_64(words: Any, count: Any) -> None:
    for j in range((count + 1) // 2):
        u = _float64_in_0_1(words[4 * j], words[4 * j + 1])
        x, y = box_muller_64(u, _float64_in_0_1(words[4 * j + 2], words[4 * j + 3]))
        words[4 * j] = np.uint32(bits_64(x) >> _32)
        words[4 * j + 1] = np.uint32(bits_64(x) & _LOW)
        words[4 * j + 2] = np.uint32(bits_64(y) >> _32)
        words[4 * j + 3] = np.uint32(bits_64(y) & _LOW)


@inlined
def _itself(x: Any) -> Any:
    return x


_TO = {
    torch.float32: (float32_at, _itself),
    torch.float64: (float64_at, _itself),
    torch.float16: (uint16_at, to_float16),
    torch.bfloat16: (uint16_at, to_bfloat16),
}
"""Pointer, conversion and type by which a dtype is written."""


def _uniform_kernel(dtype: torch.dtype) -> OnTeam:
    pointer, rounded = _TO[dtype]
    number, real = (_uniform_64, np.float64) if dtype is torch.float64 else (_uniform_32, np.float32)

    @inlined
    def store(words: Any, count: Any, at: Any, args: Any) -> None:
        out, span, low, mask = pointer(args[4]), real(float_of(args[5])), real(float_of(args[6])), args[7]
        for j in range(count):
            out[at + j] = rounded(fma(number(words, j, mask), span, low))

    return tile_kernel(store, 8 if dtype is torch.float64 else 4, f"uniform_{dtype}")


def _normal_kernel_32(dtype: torch.dtype) -> OnTeam:
    pointer, rounded = _TO[dtype]

    @inlined
    def store(words: Any, count: Any, at: Any, args: Any) -> None:
        _box_muller_32(words, count)
        out, std, mean = pointer(args[4]), np.float32(float_of(args[5])), np.float32(float_of(args[6]))
        for j in range(count):
            out[at + j] = rounded(fma(from_bits_32(np.int32(words[j])), std, mean))

    return tile_kernel(store, 4, f"normal_{dtype}")


@inlined
def _store_normal_64(words: Any, count: Any, at: Any, args: Any) -> None:
    _box_muller_64(words, count)
    out, std, mean = float64_at(args[4]), float_of(args[5]), float_of(args[6])
    for j in range(count):
        out[at + j] = fma(from_bits_64(_join(words, j)), std, mean)


def _words_kernel(pointer: Any, size: int) -> OnTeam:
    """Returns the kernel for elements of `size` bytes, little-endian."""
    per_word, digits = 4 // size, 8 * size

    @inlined
    def store(words: Any, count: Any, at: Any, args: Any) -> None:
        out = pointer(args[4])
        for j in range(count // per_word):
            for part in range(per_word):
                out[at + per_word * j + part] = words[j] >> (digits * part)
        for j in range(count // per_word * per_word, count):
            out[at + j] = words[j // per_word] >> (digits * (j % per_word))

    return tile_kernel(store, size, f"words_{digits}")


@inlined
def _store_words_64(words: Any, count: Any, at: Any, args: Any) -> None:
    out = uint64_at(args[4])
    for j in range(count):
        out[at + j] = np.uint64(words[2 * j]) | (np.uint64(words[2 * j + 1]) << _32)


_WORDS = {
    1: _words_kernel(uint8_at, 1),
    2: _words_kernel(uint16_at, 2),
    4: _words_kernel(uint32_at, 4),
    8: tile_kernel(_store_words_64, 8, "words_64"),
}
_UNIFORM = {dtype: (_uniform_kernel(dtype), 2**digits - 1) for dtype, digits in DIGITS.items()}
_NORMAL = {dtype: _normal_kernel_32(dtype) for dtype in _TO if dtype is not torch.float64}
_NORMAL[torch.float64] = tile_kernel(_store_normal_64, 8, "normal_torch_float64")
