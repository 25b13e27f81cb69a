"""Cholesky's factorisation: `definition`."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from samebits import _native as native
from samebits._native import vectors
from samebits._native.kernel_threads import OnTeam, float64_at, int64_at, on_team, variants
from samebits.arithmetic.linear_algebra.definition import BLOCK
from samebits.arithmetic.linear_algebra.matrices import minus_product
from samebits.arithmetic.linear_algebra.triangular import substitute

_fma = vectors.fma


@variants()
def _diagonal_block() -> OnTeam:
    """args: 1-3 of the block: address, strides of rows, items; 4 rows; 5 address of the items' infos; 6 the
    block's first row.
    """

    def factor(item: int, args: Any) -> None:
        rows = args[4]
        u = native.carray(float64_at(args[1] + item * args[3] * 8), (rows, args[2]))
        infos = native.carray(int64_at(args[5]), (args[0],))
        for k in range(rows):
            pivot = u[k, k]
            if not pivot > 0.0 and infos[item] == 0:
                infos[item] = args[6] + k + 1
            root = math.sqrt(pivot)
            u[k, k] = root
            for i in range(k + 1, rows):
                u[k, i] = u[k, i] / root
            for j in range(k + 1, rows):
                factor = -u[k, j]
                for i in range(j, rows):
                    u[j, i] = _fma(factor, u[k, i], u[j, i])

    return on_team(factor, name="cholesky_block")


def cholesky_factor(a: Tensor) -> Tensor:
    """Factors symmetric matrices (batch, n, n) in float64, contiguous, of which it reads the upper triangle.

    The upper triangle becomes the factor U. Returns LAPACK's infos (int64): 0, or the number of the first
    diagonal element whose square is not positive; from there on the factor has no meaning.
    """
    batch, n, _ = a.shape
    infos = torch.zeros(batch, dtype=torch.int64)
    for start in range(0, n if batch else 0, BLOCK):
        end = min(start + BLOCK, n)
        rows, diagonal = a[:, start:end, start:], a[:, start:end, start:end]
        minus_product(rows, a[:, :start, start:end].mT, a[:, :start, start:])
        _diagonal_block()(batch, diagonal.data_ptr(), n, n * n, end - start, infos.data_ptr(), start)
        if end < n:
            substitute(diagonal.mT, a[:, start:end, end:])
    return infos
