"""Words to integers below a bound, without bias: D. Lemire, Fast random integer generation in an interval (2019).

A word w of L bits becomes floor(w span / 2**L). Where the lower L bits of the product are below 2**L mod span, the
word is rejected, and each of the others stands for one of the `span` results equally often. L is 32 where the span
is at most 2**32, else 64. Element i of a row takes word i of the row's stream (two 32-bit words, the upper first,
where L is 64). Its further attempts take the first words of the blocks that counter words 2 and 3 lead away from
every other stream: (attempt, place in the block + 1). So element i depends on (key, i, low, span) alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from samebits.kernels import inlined
from samebits.kernels.team import on_team, uint8_at, uint16_at, uint32_at, uint64_at
from samebits.random._philox import block, philox4x32

_LOW, _0, _1, _32 = (np.uint64(number) for number in (2**32 - 1, 0, 1, 32))
_TILE = 128
"""Blocks that are drawn together; where one word of them is rejected, they are looked at one by one."""
_CHUNK = 1 << 15
"""Elements per chunk of the team, about."""


def fill_integers(keys: torch.Tensor, low: int, span: int, out: torch.Tensor) -> None:
    """Fills row k of `out` (rows, per_row), of an integer dtype, from key k of `keys` (rows, 2).

    The integers are low, ..., low + span - 1, which must fit the dtype; 1 <= span <= 2**64. Both tensors are contiguous.
    """
    digits = 32 if span <= 2**32 else 64
    rows, per_row = out.shape
    parameters = (low, span - 1, (2**digits - span) % span)
    chunks = max(1, out.numel() // _CHUNK)
    _FILLS[digits, out.dtype.itemsize](
        chunks, keys.data_ptr(), rows, per_row, *(_as_int64(p) for p in parameters), out.data_ptr()
    )


def _as_int64(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


@inlined
def times_span(word: Any, most: Any, digits: Any) -> Any:
    """(upper, lower) `digits` bits of word (most + 1), for words of at most 32 bits held in uint64."""
    product = word * most + word
    return product >> digits, product & ((_1 << digits) - _1)


@inlined
def _times_span_64(upper: Any, lower: Any, most: Any) -> Any:
    """(upper, lower) 64 bits of (2**32 upper + lower) (most + 1), by products of 32 bits, which can be vectorised."""
    most_upper, most_lower = most >> _32, most & _LOW
    cross_0, cross_1 = lower * most_upper, upper * most_lower
    least = lower * most_lower
    middle = (least >> _32) + (cross_0 & _LOW) + (cross_1 & _LOW)
    high = upper * most_upper + (cross_0 >> _32) + (cross_1 >> _32) + (middle >> _32)
    word = (upper << _32) | lower
    low = ((middle << _32) | (least & _LOW)) + word
    return high + np.uint64(low < word), low


@inlined
def _again(seed: Any, offset: Any, attempt: Any, place: Any) -> Any:
    """The block of attempt 1, 2, ... at a place of the block of (seed, offset)."""
    return philox4x32(offset & _LOW, offset >> _32, attempt, place + _1, seed & _LOW, seed >> _32)


@inlined
def _retry_32(seed: Any, offset: Any, place: Any, most: Any, threshold: Any) -> Any:
    """What the first word that is not rejected becomes, from attempt 1 on."""
    attempt, high, low = _0, _0, _0
    while low < threshold:
        attempt += _1
        high, low = times_span(_again(seed, offset, attempt, place)[0], most, _32)
    return high


@inlined
def _retry_64(seed: Any, offset: Any, place: Any, most: Any, threshold: Any) -> Any:
    attempt, high, low = _0, _0, _0
    while low < threshold:
        attempt += _1
        words = _again(seed, offset, attempt, place)
        high, low = _times_span_64(words[0], words[1], most)
    return high


@inlined
def _products_32(seed: Any, offset: Any, most: Any) -> Any:
    """The upper and the lower products of all words of a block."""
    w0, w1, w2, w3 = block(seed, offset)
    high_0, low_0 = times_span(w0, most, _32)
    high_1, low_1 = times_span(w1, most, _32)
    high_2, low_2 = times_span(w2, most, _32)
    high_3, low_3 = times_span(w3, most, _32)
    return (high_0, high_1, high_2, high_3), (low_0, low_1, low_2, low_3)


@inlined
def _products_64(seed: Any, offset: Any, most: Any) -> Any:
    w0, w1, w2, w3 = block(seed, offset)
    high_0, low_0 = _times_span_64(w0, w1, most)
    high_1, low_1 = _times_span_64(w2, w3, most)
    return (high_0, high_1), (low_0, low_1)


def _fill(digits: int, products: Any, retry: Any, pointer: Any, integer: Any) -> Any:
    per_block, word = 128 // digits, np.uint32 if digits == 32 else np.uint64
    size = _TILE * per_block

    def tiles(chunk: int, args: Any) -> None:
        chunks, keys, rows, per_row = args[0], uint64_at(args[1]), args[2], args[3]
        low, most, threshold = np.uint64(args[4]), np.uint64(args[5]), np.uint64(args[6])
        out = pointer(args[7])
        lower = np.empty(size, word)
        tiles_per_row = (per_row + size - 1) // size
        for tile in range(
            chunk * rows * tiles_per_row // chunks, (chunk + 1) * rows * tiles_per_row // chunks
        ):
            row = tile // tiles_per_row
            first = (tile - row * tiles_per_row) * size
            elements = min(size, per_row - first)
            seed, offset = keys[2 * row], keys[2 * row + 1] + np.uint64(first // per_block)
            start = row * per_row + first
            blocks = elements // per_block
            for i in range(blocks):
                highs, lows = products(seed, offset + np.uint64(i), most)
                for j in range(per_block):
                    out[start + per_block * i + j] = integer(low + highs[j])
                    lower[per_block * i + j] = word(lows[j])
            highs, lows = products(seed, offset + np.uint64(blocks), most)
            for j in range(elements - per_block * blocks):
                out[start + per_block * blocks + j] = integer(low + highs[j])
                lower[per_block * blocks + j] = word(lows[j])
            least = word(threshold)
            for j in range(elements):
                least = min(least, lower[j])
            if least < threshold:
                for j in range(elements):
                    if lower[j] < threshold:
                        at = offset + np.uint64(j // per_block)
                        drawn = retry(seed, at, np.uint64(j % per_block), most, threshold)
                        out[start + j] = integer(low + drawn)

    return on_team(tiles, name=f"integers_{digits}_{np.dtype(integer).name}")


_FILLS = {
    (32, 1): _fill(32, _products_32, _retry_32, uint8_at, np.uint8),
    (32, 2): _fill(32, _products_32, _retry_32, uint16_at, np.uint16),
    (32, 4): _fill(32, _products_32, _retry_32, uint32_at, np.uint32),
    (32, 8): _fill(32, _products_32, _retry_32, uint64_at, np.uint64),
    (64, 8): _fill(64, _products_64, _retry_64, uint64_at, np.uint64),
}
