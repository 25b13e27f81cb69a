"""Triangular systems: `definition`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from samebits._native import vectors
from samebits._native.kernel_threads import OnTeam, float64_at, on_team, variants
from samebits.arithmetic.linear_algebra.definition import BLOCK
from samebits.arithmetic.linear_algebra.matrices import minus_product

_COLUMNS = 256
"""Right sides of a chunk."""
_WIDE = vectors.LANES * 8
"""Bytes of a vector."""
_load, _store, _splat, _fma = vectors.LOAD["float64"], vectors.STORE["float64"], vectors.splat, vectors.fma


@variants()
def _substitution() -> OnTeam:
    """args: 1-4 of the triangle: address, strides of rows, columns, items; 5-7 of the right sides: address,
    strides of rows, items; 8 rows; 9 right sides; 10 chunks of an item; 11 is 1 for a unit diagonal.
    """

    def columns(chunk: int, args: Any) -> None:
        item, first = chunk // args[10], chunk % args[10] * _COLUMNS
        t = args[1] + item * args[4] * 8
        x = args[5] + item * args[7] * 8
        step = args[6] * 8
        for column in range(first, min(first + _COLUMNS, args[9]), vectors.LANES):
            here, count = x + column * 8, args[9] - column
            for i in range(args[8]):
                place = here + i * step
                row = float64_at(t + i * args[2] * 8)
                value = _load(place) if count >= vectors.LANES else _load(place, count)
                for j in range(i):
                    known = here + j * step
                    other = _load(known) if count >= vectors.LANES else _load(known, count)
                    value = _fma(_splat(-row[j * args[3]]), other, value)
                if args[11] == 0:
                    value = value / _splat(row[i * args[3]])
                if count >= vectors.LANES:
                    _store(place, value)
                else:
                    _store(place, value, count)

    return on_team(columns, name="substitution")


def substitute(t: Tensor, x: Tensor, *, unit: bool = False, upper: bool = False) -> None:
    """Solves with one block of a triangular matrix (batch, rows, rows), in place of the right sides."""
    batch, rows, columns = x.shape
    pieces = -(-columns // _COLUMNS)
    sign, last = (-1, rows - 1) if upper else (1, 0)  # from the last row and column on
    places = (
        t.data_ptr() + last * (t.stride(1) + t.stride(2)) * 8,
        *(sign * t.stride(1), sign * t.stride(2), t.stride(0)),
        x.data_ptr() + last * x.stride(1) * 8,
        *(sign * x.stride(1), x.stride(0)),
    )
    _substitution()(batch * pieces, *places, rows, columns, pieces, int(unit))


def solve_triangular(t: Tensor, x: Tensor, *, upper: bool, unit: bool = False) -> Tensor:
    """Solves with triangular matrices (batch, n, n), in place of right sides (batch, n, columns).

    Both are float64; the rows of the right sides are dense. Of `t` only the triangle is read.
    """
    n = t.shape[-1]
    starts = range(0, n if x.numel() else 0, BLOCK)
    for start in reversed(starts) if upper else starts:
        block = slice(start, min(start + BLOCK, n))
        known = slice(block.stop, n) if upper else slice(0, start)
        minus_product(x[:, block], t[:, block, known], x[:, known])
        substitute(t[:, block, block], x[:, block], unit=unit, upper=upper)
    return x
