"""LU factorisation with partial pivoting, and systems by it: `definition`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from samebits import _native as native
from samebits._native import inlined, vectors
from samebits._native.kernel_threads import OnTeam, float64_at, int64_at, on_team, variants
from samebits.arithmetic.linear_algebra.definition import BLOCK
from samebits.arithmetic.linear_algebra.matrices import minus_product
from samebits.arithmetic.linear_algebra.triangular import solve_triangular, substitute

_fma, _magnitude = vectors.fma, vectors.magnitude


@inlined
def _exchange(a: Any, row: Any, other: Any) -> None:
    """Exchanges two rows of an array."""
    for i in range(a.shape[1]):
        here = a[row, i]
        a[row, i] = a[other, i]
        a[other, i] = here


@variants()
def _columns() -> OnTeam:
    """args: 1-3 of the matrices: address, rows, columns; 4-5 the block's first column and its end; 6-7
    addresses of the items' pivots and infos; 8 pivots of an item.
    """

    def factor(item: int, args: Any) -> None:
        rows, columns, end = args[2], args[3], args[5]
        a = native.carray(float64_at(args[1] + item * rows * columns * 8), (rows, columns))
        pivots = native.carray(int64_at(args[6]), (args[0], args[8]))[item]
        infos = native.carray(int64_at(args[7]), (args[0],))
        for k in range(args[4], end):
            place, largest = k, _magnitude(a[k, k])
            for i in range(k + 1, rows):
                if _magnitude(a[i, k]) > largest:
                    place, largest = i, _magnitude(a[i, k])
            pivots[k] = place + 1
            if place != k:
                _exchange(a, k, place)
            pivot = a[k, k]
            if pivot == 0.0 and infos[item] == 0:
                infos[item] = k + 1
            for i in range(k + 1, rows):
                if pivot != 0.0:
                    a[i, k] = a[i, k] / pivot
                factor = -a[i, k]
                for j in range(k + 1, end):
                    a[i, j] = _fma(factor, a[k, j], a[i, j])

    return on_team(factor, name="lu_columns")


@variants()
def _exchanges() -> OnTeam:
    """args: 1-3 of the matrices: address, rows, columns; 4 address of the pivots; 5 pivots of an item; 6 is 1
    for the last exchange first.
    """

    def exchange(item: int, args: Any) -> None:
        a = native.carray(float64_at(args[1] + item * args[2] * args[3] * 8), (args[2], args[3]))
        pivots = native.carray(int64_at(args[4]), (args[0], args[5]))[item]
        for number in range(args[5]):
            k = args[5] - 1 - number if args[6] else number
            if pivots[k] - 1 != k:
                _exchange(a, k, pivots[k] - 1)

    return on_team(exchange, name="row_exchanges")


def lu_factor(a: Tensor) -> tuple[Tensor, Tensor]:
    """Factors matrices (batch, rows, columns) in float64, contiguous, in place.

    Returns LAPACK's pivots (batch, the smaller size) and infos, both int64: 0, or the number of the first
    pivot that is zero.
    """
    batch, rows, columns = a.shape
    pivots = torch.empty(batch, min(rows, columns), dtype=torch.int64)
    infos = torch.zeros(batch, dtype=torch.int64)
    for start in range(0, pivots.shape[1] if batch else 0, BLOCK):
        end = min(start + BLOCK, pivots.shape[1])
        places = pivots.data_ptr(), infos.data_ptr(), pivots.shape[1]
        _columns()(batch, a.data_ptr(), rows, columns, start, end, *places)
        right = a[:, start:end, end:]
        if right.shape[2]:
            substitute(a[:, start:end, start:end], right, unit=True)
            minus_product(a[:, end:, end:], a[:, end:, start:end], right)
    return pivots, infos


def lu_solve(lu: Tensor, pivots: Tensor, x: Tensor, *, adjoint: bool = False) -> Tensor:
    """Solves with factored matrices (batch, n, n), or their transposes, in place of right sides.

    These are (batch, n, columns) in float64, contiguous; pivots int64.
    """
    pivots = pivots.contiguous()
    exchanges = x.data_ptr(), *x.shape[1:], pivots.data_ptr(), pivots.shape[1], int(adjoint)
    if adjoint:
        solve_triangular(lu.mT, x, upper=False)
        solve_triangular(lu.mT, x, upper=True, unit=True)
        _exchanges()(len(x), *exchanges)
    else:
        _exchanges()(len(x), *exchanges)
        solve_triangular(lu, x, upper=False, unit=True)
        solve_triangular(lu, x, upper=True)
    return x
