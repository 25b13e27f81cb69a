"""Words to integers below a bound, without bias (Lemire, Fast random integer generation, 2019).

A word w of L bits becomes floor(w span / 2**L). Where the lower L bits of the product are below 2**L mod
span, the word is rejected, and each of the others stands for one of the `span` results equally often. L is 32
where the span is at most 2**32, else 64. Element i of a row takes word i of the row's stream (two 32-bit
words, the upper first, where L is 64). Its further attempts take the first words of the blocks that counter
words 2 and 3 lead away from every other stream: (attempt, place in the block + 1). So element i depends on
(key, i, low, span) alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from samebits._native import inlined
from samebits._native.kernel_threads import OnTeam, uint8_at, uint16_at, uint32_at, uint64_at
from samebits.random._cpu.philox import philox4x32
from samebits.random._cpu.tiles import fill, tile_kernel

_LOW, _0, _1, _32 = (np.uint64(number) for number in (2**32 - 1, 0, 1, 32))


def integers(keys: torch.Tensor, low: int, span: int, out: torch.Tensor) -> None:
    """Writes the integers low, ..., low + span - 1, which must fit the dtype of `out`; 1 <= span <= 2**64."""
    digits = 32 if span <= 2**32 else 64
    signed = ((number + 2**63) % 2**64 - 2**63 for number in (low, span - 1, (2**digits - span) % span))
    fill(_KERNELS[digits, out.itemsize], keys, out, *signed)


@inlined
def times_span(word: Any, most: Any, digits: Any) -> Any:
    """Returns (upper, lower) `digits` bits of word (most + 1), for words of at most 32 bits in uint64."""
    product = word * most + word
    return product >> digits, product & ((_1 << digits) - _1)


@inlined
def _times_span_64(upper: Any, lower: Any, most: Any) -> Any:
    """Returns (upper, lower) 64 bits of (2**32 upper + lower) (most + 1), by products of 32 bits."""
    most_upper, most_lower = most >> _32, most & _LOW
    cross_0, cross_1 = lower * most_upper, upper * most_lower
    least = lower * most_lower
    middle = (least >> _32) + (cross_0 & _LOW) + (cross_1 & _LOW)
    high = upper * most_upper + (cross_0 >> _32) + (cross_1 >> _32) + (middle >> _32)
    word = (upper << _32) | lower
    low = ((middle << _32) | (least & _LOW)) + word
    return high + np.uint64(low < word), low


@inlined
def _product_32(words: Any, j: Any, most: Any) -> Any:
    return times_span(np.uint64(words[j]), most, _32)


@inlined
def _product_64(words: Any, j: Any, most: Any) -> Any:
    return _times_span_64(np.uint64(words[2 * j]), np.uint64(words[2 * j + 1]), most)


def _kernel(digits: int, product: Any, pointer: Any, integer: Any) -> OnTeam:
    per_block = 128 // digits

    @inlined
    def again(seed: Any, offset: Any, index: Any, attempt: Any, most: Any) -> Any:
        """Returns the product of an attempt's word, for an element of a row."""
        at, place = offset + np.uint64(index // per_block), np.uint64(index % per_block)
        words = philox4x32(at & _LOW, at >> _32, attempt, place + _1, seed & _LOW, seed >> _32)
        if digits == 32:
            return times_span(words[0], most, _32)
        return _times_span_64(words[0], words[1], most)

    @inlined
    def retry(words: Any, count: Any, at: Any, args: Any) -> None:
        """Draws the elements whose words are rejected, attempt after attempt, all in step (vectorised)."""
        out, low = pointer(args[4]), np.uint64(args[5])
        most, threshold = np.uint64(args[6]), np.uint64(args[7])
        keys, row = uint64_at(args[1]), at // args[3]
        seed, offset, begin = keys[2 * row], keys[2 * row + 1], at - row * args[3]
        left, high, lower = np.empty(count, np.int64), np.empty(count, np.uint64), np.empty(count, np.uint64)
        number, attempt = 0, _0
        for j in range(count):
            left[number] = j
            number += product(words, j, most)[1] < threshold
        while number > 0:
            attempt += _1
            for i in range(number):
                high[i], lower[i] = again(seed, offset, begin + left[i], attempt, most)
            rejected = 0
            for i in range(number):
                out[at + left[i]] = integer(low + high[i])
                left[rejected] = left[i]
                rejected += lower[i] < threshold
            number = rejected

    @inlined
    def store(words: Any, count: Any, at: Any, args: Any) -> None:
        out, low = pointer(args[4]), np.uint64(args[5])
        most, threshold = np.uint64(args[6]), np.uint64(args[7])
        least = threshold
        for j in range(count):
            high, lower = product(words, j, most)
            out[at + j] = integer(low + high)
            least = min(least, lower)
        if least < threshold:
            retry(words, count, at, args)

    return tile_kernel(store, digits // 8, f"integers_{digits}_{np.dtype(integer).name}")


_KERNELS = {
    (32, 1): _kernel(32, _product_32, uint8_at, np.uint8),
    (32, 2): _kernel(32, _product_32, uint16_at, np.uint16),
    (32, 4): _kernel(32, _product_32, uint32_at, np.uint32),
    (32, 8): _kernel(32, _product_32, uint64_at, np.uint64),
    (64, 8): _kernel(64, _product_64, uint64_at, np.uint64),
}
