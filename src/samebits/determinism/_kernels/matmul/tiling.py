"""The tiles of a product of matrices, and the parts of the inner dimension, from its sizes and layout alone."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

_TILE = 1 << 20
"""Multiply-adds of a tile, at least: about 20 us."""
_TILES = 8
"""Tiles of a product: more would pack the factors more often (16 cost 10% at one thread, 8 cost 5%) ..."""
_SIDE = 512
"""... but a tile has no side larger than this, so that a large product has work for many threads."""
_NARROW = 16
"""Rows or columns of a product that is as fast as its larger factor is read from memory."""
_PIECE = 1 << 17
"""Elements of that factor in a tile, at least."""
_FEW = 256 * 256
"""Elements of an output that is cut along the inner dimension rather than into tiles."""


@lru_cache(maxsize=4096)
def plan(m: int, n: int, k: int, batch: int, deep: bool) -> Plan:
    """Returns the plan of a product, from its sizes and layout alone.

    `deep`: the larger factor's memory runs along the output, so that a contiguous piece of it is a part of `k`.
    """
    work = m * n * k
    tm, tn, tk = m, n, k
    if batch >= _TILES:  # the batch is cut
        pass
    elif min(m, n) <= _NARROW:  # as fast as the larger factor is read: pieces of it, contiguous ones
        pieces = min(2 * _TILES, k * max(m, n) // _PIECE)
        if pieces > 1 and (deep or k > 2 * _TILES * max(m, n)):
            tk = ceil(k, pieces)
        elif pieces > 1:
            tm, tn = (_round(ceil(m, pieces)), n) if m >= n else (m, _round(ceil(n, pieces)))
    elif m * n <= _FEW and k >= 16 * max(m, n):
        tk = ceil(k, max(1, min(2 * _TILES, work // _TILE)))
    else:
        tiles = batch
        while (tiles < _TILES and tm * tn * k >= 2 * _TILE) or min(tm, tn) > _SIDE:
            tm, tn = (tm, _round(ceil(tn, 2))) if tn >= tm else (_round(ceil(tm, 2)), tn)
            tiles = ceil(m, tm) * ceil(n, tn) * batch
    grid = (ceil(m, tm), ceil(n, tn), ceil(k, tk))
    items = ceil(batch, 4 * _TILES)
    chunks = grid[0] * grid[1] * grid[2] * ceil(batch, items)
    return Plan(chunks, (m, n, k, tm, tn, tk, *grid), items)


class Plan(NamedTuple):
    """The facts that `multiply` needs."""

    chunks: int
    sizes: tuple[int, ...]
    """Of the product (columns of the row-major output, its rows, the inner dimension), of a tile, of the grid of tiles."""
    items: int
    """Batch items of a chunk."""


def ceil(whole: int, part: int) -> int:
    """The quotient, rounded up."""
    return -(-whole // part)


def _round(size: int) -> int:
    """Up to a multiple of 16, so that a tile's edge is no ragged vector."""
    return ceil(size, 16) * 16
