"""A keyed permutation of range(n) in O(1) memory: element i of a shuffle, without the shuffle.

A Feistel network over a grid of rows times columns that is hardly larger than n (Black and Rogaway, Ciphers with
arbitrary finite domains, CT-RSA 2002): rounds add a keyed hash of one coordinate to the other, modulo its size,
and an index that leaves range(n) goes through the rounds again (cycle walking) until it is inside.
A grid of few cells does not mix (chi-square over all orders of 6 fails), so up to 64 elements are really shuffled.
"""

from __future__ import annotations

from math import isqrt
from operator import index
from typing import Any

import numpy as np
import torch

from samebits.context import Words
from samebits.errors import InvalidArgumentError
from samebits.kernels import inlined, kernel
from samebits.random import _philox, words

MAX_SIZE = 2**48
ROUNDS = 10  # even
SHUFFLED_SIZE = 64
_STREAM = words.as_uint64("samebits.random.permutation")
_MIX_1, _MIX_2 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_33, _24, _40 = np.uint64(33), np.uint64(24), np.uint64(40)


def permute_index(key: Words | torch.Tensor, i: int, n: int) -> int:
    """The image of index `i` under the permutation of range(n) that `key` selects.

    Raises `InvalidArgumentError` unless 0 <= i < n <= 2**48.
    """
    if not 0 <= index(i) < n:
        raise InvalidArgumentError(f"permute_index: index {i} is outside range({n})")
    return int(permute_indices(key, index(i), index(i) + 1, n)[0])


def permute_indices(
    key: Words | torch.Tensor, start: int, stop: int, n: int, *, rounds: int = ROUNDS
) -> np.ndarray:
    """The images of `start`, ..., `stop - 1`, as int64 of shape (stop - start,); all of them: a permutation of range(n).

    `rounds` is for tests; other values than the default give other permutations.
    Raises `InvalidArgumentError` unless 0 <= start <= stop <= n <= 2**48.
    """
    if not 0 <= start <= stop <= n <= MAX_SIZE:
        raise InvalidArgumentError(
            f"permute_indices needs 0 <= start <= stop <= n <= 2**48, got start={start}, stop={stop}, n={n}"
        )
    out = np.empty(stop - start, np.int64)
    if n <= SHUFFLED_SIZE:
        order = np.empty(n, np.int64)
        _shuffle(_round_keys(key, 1)[0], order)
        out[:] = order[start:stop]
    elif out.size:
        rows = isqrt(n - 1) + 1
        _permute(_round_keys(key, rounds), start, n, rows, -(-n // rows), out)
    return out


def _round_keys(key: Words | torch.Tensor, rounds: int) -> np.ndarray:
    pair = words.from_tensor(key) if isinstance(key, torch.Tensor) else key
    stream = np.empty(2 * rounds, np.uint32)
    _philox.fill_words(*words.fold(pair, _STREAM), stream)
    return stream.view(np.uint64)


@inlined
def _hash_below(x: Any, round_key: Any, size: Any) -> Any:
    """A keyed hash of x in range(size), size <= 2**24: murmur3's 64-bit finaliser, upper 40 bits scaled."""
    x = (x ^ round_key) * _MIX_1
    x = (x ^ (x >> _33)) * _MIX_2
    return (((x ^ (x >> _33)) >> _24) * size) >> _40


@kernel("void(uint64, int64[::1])")
def _shuffle(key: Any, order: Any) -> None:
    """Fisher and Yates's shuffle of all indices."""
    for i in range(order.size):
        j = np.int64(_hash_below(np.uint64(i), key, np.uint64(i + 1)))
        order[i] = order[j]
        order[j] = i


@kernel("void(uint64[::1], uint64, uint64, uint64, uint64, int64[::1])")
def _permute(round_keys: Any, start: Any, n: Any, rows: Any, columns: Any, out: Any) -> None:
    for position in range(out.size):
        x = start + np.uint64(position)
        while True:
            row, column = x % rows, x // rows
            for pair in range(round_keys.size // 2):
                row += _hash_below(column, round_keys[2 * pair], rows)
                row = row - rows if row >= rows else row
                column += _hash_below(row, round_keys[2 * pair + 1], columns)
                column = column - columns if column >= columns else column
            x = column * rows + row
            if x < n:
                break
        out[position] = x
