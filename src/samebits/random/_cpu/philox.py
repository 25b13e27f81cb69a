"""Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3. SC'11), as kernels.

The block of a key (seed, offset) is the cipher's output for the counter (offset, 0) and the cipher key
`seed`, low words first; a key's stream is its block, the block of (seed, offset + 1), and so on. This is the
layout of torch's `aten::_philox_*` kernels on CUDA.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from samebits._native import inlined, kernel

MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
WEYL = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW, _32, _0 = np.uint64(0xFFFFFFFF), np.uint64(32), np.uint64(0)


@inlined
def philox4x32(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> Any:
    """Runs ten rounds over four counter words and two key words; all are 32-bit words held in uint64."""
    for _ in range(10):
        product_0 = MULTIPLIERS[0] * c0
        product_1 = MULTIPLIERS[1] * c2
        c0, c2 = (product_1 >> _32) ^ c1 ^ k0, (product_0 >> _32) ^ c3 ^ k1
        c1, c3 = product_1 & _LOW, product_0 & _LOW
        k0, k1 = (k0 + WEYL[0]) & _LOW, (k1 + WEYL[1]) & _LOW
    return c0, c1, c2, c3


@inlined
def block(seed: Any, offset: Any) -> Any:
    """Returns the four words of the key (seed, offset)."""
    return philox4x32(offset & _LOW, offset >> _32, _0, _0, seed & _LOW, seed >> _32)


@kernel("UniTuple(uint64, 2)(uint64, uint64, uint64)")
def fold(seed: Any, offset: Any, data: Any) -> Any:
    """Returns the key with `data` folded in: words 0 and 1 are its seed, 2 and 3 its offset."""
    w0, w1, w2, w3 = block(seed, offset + data)
    return w0 | (w1 << _32), w2 | (w3 << _32)


def words_of(seed: int, offset: int) -> tuple[int, int, int, int]:
    """Returns `block` for Python integers: some 6 us, and no LLVM, whose import takes 0.1 s."""
    c0, c1, c2, c3, k0, k1 = offset & 0xFFFFFFFF, offset >> 32, 0, 0, seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        product_0, product_1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c2 = (product_1 >> 32) ^ c1 ^ k0, (product_0 >> 32) ^ c3 ^ k1
        c1, c3 = product_1 & 0xFFFFFFFF, product_0 & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


def folded(seed: int, offset: int, data: int) -> tuple[int, int]:
    """Returns `fold` for Python integers, by the kernel where it has been called."""
    if fold.compiled is not None:
        return fold.compiled(seed, offset, data)
    w0, w1, w2, w3 = words_of(seed, (offset + data) & 0xFFFFFFFFFFFFFFFF)
    return w0 | (w1 << 32), w2 | (w3 << 32)


@kernel("void(uint64[:, ::1], uint64, uint64[:, :, ::1])")
def fold_all(keys: Any, first: Any, out: Any) -> None:
    """Folds `first`, `first + 1`, ... into all keys: (keys, 2) gives (number, keys, 2)."""
    for number in range(out.shape[0]):
        for k in range(keys.shape[0]):
            w0, w1, w2, w3 = block(keys[k, 0], keys[k, 1] + first + np.uint64(number))
            out[number, k, 0] = w0 | (w1 << _32)
            out[number, k, 1] = w2 | (w3 << _32)


@kernel("void(uint64, uint64, uint32[::1])")
def fill_words(seed: Any, offset: Any, out: Any) -> None:
    """Writes the stream of one key: block after block, four words each."""
    blocks = out.size // 4
    for i in range(blocks):
        w0, w1, w2, w3 = block(seed, offset + np.uint64(i))
        out[4 * i] = w0
        out[4 * i + 1] = w1
        out[4 * i + 2] = w2
        out[4 * i + 3] = w3
    tail = block(seed, offset + np.uint64(blocks))
    for j in range(out.size % 4):
        out[4 * blocks + j] = tail[j]
