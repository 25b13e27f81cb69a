"""A keyed permutation of range(n) in O(1) memory: element i of a shuffle, without the shuffle.

A Feistel network over a grid of rows times columns that is hardly larger than n (Black and Rogaway, Ciphers
with arbitrary finite domains, CT-RSA 2002): rounds add a keyed hash of one coordinate to the other, modulo
its size, and an index that leaves range(n) goes through the rounds again (cycle walking) until it is inside.
A grid of few cells does not mix (chi-square over all orders of 6 fails), so up to 64 elements are shuffled by
Fisher and Yates.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import Any

import numpy as np
import torch

from samebits import _native as native
from samebits._context import Words
from samebits._native import inlined, kernel
from samebits._native.kernel_threads import int64_at, on_team, uint64_at
from samebits.errors import InvalidArgumentError
from samebits.random import _int_keys as int_keys
from samebits.random._cpu import philox

MAX_SIZE = 2**48
ROUNDS = 10  # even
SHUFFLED_SIZE = 64
_STREAM = int_keys.as_uint64("samebits.random.permutation")
_MIX_1, _MIX_2 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_33, _24, _40 = np.uint64(33), np.uint64(24), np.uint64(40)
_NONE = np.empty(0, np.int64)
_TILE = 512
"""Indices that go through the rounds together."""
_CHUNK = 1 << 13
"""Indices per chunk of the team, about."""


def permute_indices(
    key: Words | torch.Tensor, start: int, stop: int, n: int, *, rounds: int = ROUNDS
) -> np.ndarray:
    """Returns the images of `start`, ..., `stop - 1`, int64 (stop - start,), of a permutation of range(n).

    `rounds` is for tests; other values than the default give other permutations.
    Raises `InvalidArgumentError` unless 0 <= start <= stop <= n <= 2**48.
    """
    if not 0 <= start <= stop <= n <= MAX_SIZE:
        raise InvalidArgumentError(
            f"permute_indices needs 0 <= start <= stop <= n <= 2**48, got start={start}, stop={stop}, n={n}"
        )
    out = np.empty((1, stop - start), np.int64)
    pair = int_keys.from_tensor(key) if isinstance(key, torch.Tensor) else key
    fill_images([pair], n, out, start=start, rounds=rounds)
    return out[0]


def fill_images(
    keys: Sequence[Words],
    n: int,
    out: np.ndarray,
    *,
    start: int = 0,
    indices: np.ndarray = _NONE,
    rounds: int = ROUNDS,
) -> None:
    """Fills row k of the contiguous int64 `out` (rows, number) with images under the permutation of key k.

    They are those of start, start + 1, ..., or of the contiguous int64 `indices` (number,); all are in
    range(n).
    """
    if n <= SHUFFLED_SIZE:
        orders = np.empty((len(keys), n), np.int64)
        _shuffle(_round_keys(keys, 1), orders)
        out[:] = orders[:, indices] if indices.size else orders[:, start : start + out.shape[1]]
    elif out.size:
        round_keys = _round_keys(keys, rounds)
        grid = (n, *grid_of(n))
        if out.size <= _CHUNK:
            _permute(round_keys, start, indices, *grid, out)
        else:
            addresses = (array.ctypes.data for array in (round_keys, indices, out))
            sizes = (*round_keys.shape, indices.size, out.shape[1])
            _permute_chunk(out.size // _CHUNK, *addresses, *sizes, start, *grid)


def grid_of(n: int) -> tuple[int, int]:
    """Returns rows and columns of the grid of an n above `SHUFFLED_SIZE`.

    Not both are odd: then every round, and with it nearly every permutation of this n, would be even.
    """
    rows = isqrt(n - 1) + 1
    columns = -(-n // rows)
    return rows, columns + (rows & columns & 1)


def images(
    keys: torch.Tensor, n: int, out: torch.Tensor, *, start: int = 0, indices: torch.Tensor | None = None
) -> None:
    """Does `fill_images` for contiguous tensors: `keys` (rows, 2), int64 `out` (rows, number), `indices`."""
    given = _NONE if indices is None else indices.numpy()
    fill_images(
        [(seed, offset) for seed, offset in keys.tolist()], n, out.numpy(), start=start, indices=given
    )


def _round_keys(keys: Sequence[Words], rounds: int) -> np.ndarray:
    stream = np.empty((len(keys), 2 * rounds), np.uint32)
    for key, row in zip(keys, stream, strict=True):
        philox.fill_words(*int_keys.fold(key, _STREAM), row)
    return stream.view(np.uint64)


@inlined
def _hash_below(x: Any, round_key: Any, size: Any) -> Any:
    """Returns a keyed hash of x in range(size), size <= 2**24: murmur3's finaliser, upper 40 bits scaled."""
    x = (x ^ round_key) * _MIX_1
    x = (x ^ (x >> _33)) * _MIX_2
    return (((x ^ (x >> _33)) >> _24) * size) >> _40


@kernel("void(uint64[:, ::1], int64[:, ::1])")
def _shuffle(keys: Any, orders: Any) -> None:
    """Shuffles all indices by Fisher and Yates's method, for every key."""
    for k in range(orders.shape[0]):
        order = orders[k]
        for i in range(order.size):
            j = np.int64(_hash_below(np.uint64(i), keys[k, 0], np.uint64(i + 1)))
            order[i] = order[j]
            order[j] = i


@inlined
def _two_rounds(row: Any, column: Any, key_0: Any, key_1: Any, rows: Any, columns: Any) -> Any:
    row += _hash_below(column, key_0, rows)
    row = row - rows if row >= rows else row
    column += _hash_below(row, key_1, columns)
    column = column - columns if column >= columns else column
    return row, column


@inlined
def _column(x: Any, rows: Any) -> Any:
    """Returns x // rows for x < 2**49, rows <= 2**24: the rounded quotient cannot reach the next integer."""
    return np.uint64(np.int64(np.float64(np.int64(x)) / np.float64(np.int64(rows))))


@inlined
def _permute_tiles(
    first: Any,
    last: Any,
    round_keys: Any,
    start: Any,
    indices: Any,
    n: Any,
    rows: Any,
    columns: Any,
    out: Any,
) -> None:
    """Runs the rounds for all indices of a tile in step (vectorised); those outside range(n) then walk."""
    pairs, number = round_keys.shape[1] // 2, out.shape[1]
    tiles = (number + _TILE - 1) // _TILE
    row, column = np.empty(_TILE, np.uint64), np.empty(_TILE, np.uint64)
    for tile in range(first, last):
        key = tile // tiles
        begin = (tile - key * tiles) * _TILE
        size = min(_TILE, number - begin)
        image = out[key, begin : begin + size]
        for j in range(size):
            x = np.uint64(indices[begin + j] if indices.size > 0 else start + begin + j)
            column[j] = _column(x, rows)
            row[j] = x - column[j] * rows
        for pair in range(pairs):
            key_0, key_1 = round_keys[key, 2 * pair], round_keys[key, 2 * pair + 1]
            for j in range(size):
                row[j], column[j] = _two_rounds(row[j], column[j], key_0, key_1, rows, columns)
        for j in range(size):
            image[j] = column[j] * rows + row[j]
        for j in range(size):
            while image[j] >= n:
                a, b = row[j], column[j]
                for pair in range(pairs):
                    key_0, key_1 = round_keys[key, 2 * pair], round_keys[key, 2 * pair + 1]
                    a, b = _two_rounds(a, b, key_0, key_1, rows, columns)
                row[j], column[j] = a, b
                image[j] = b * rows + a


@kernel("void(uint64[:, ::1], int64, int64[::1], int64, uint64, uint64, int64[:, ::1])")
def _permute(round_keys: Any, start: Any, indices: Any, n: Any, rows: Any, columns: Any, out: Any) -> None:
    tiles = out.shape[0] * ((out.shape[1] + _TILE - 1) // _TILE)
    _permute_tiles(0, tiles, round_keys, start, indices, n, rows, columns, out)


@on_team
def _permute_chunk(chunk: int, args: Any) -> None:
    """args: 1-3 addresses of keys, indices, images; 4-7 keys, rounds, indices, images of a key; 8 start..."""
    round_keys = native.carray(uint64_at(args[1]), (args[4], args[5]))
    indices = native.carray(int64_at(args[2]), (args[6],))
    out = native.carray(int64_at(args[3]), (args[4], args[7]))
    n, rows, columns = args[9], np.uint64(args[10]), np.uint64(args[11])
    tiles = args[4] * ((args[7] + _TILE - 1) // _TILE)
    first, last = chunk * tiles // args[0], (chunk + 1) * tiles // args[0]
    _permute_tiles(first, last, round_keys, args[8], indices, n, rows, columns, out)
