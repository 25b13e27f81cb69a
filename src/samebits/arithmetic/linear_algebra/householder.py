"""Householder's QR factorisation: `definition`. Matrices are kept by columns: a row of memory is a column."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from samebits import _native as native
from samebits._native import vectors
from samebits._native.kernel_threads import OnTeam, float64_at, on_team, variants
from samebits.arithmetic.linear_algebra.definition import BLOCK
from samebits.arithmetic.linear_algebra.matrices import minus_product, multiplied
from samebits.arithmetic.reductions.running import room_of_sums, sum_of_run

_fma, _splat = vectors.fma, vectors.splat
_TINY, _LARGE = 2.0**-480, 2.0**700
"""Columns of smaller numbers are multiplied before they are squared."""


@variants()
def _panel() -> OnTeam:
    """args: 1-3 of the columns: address, strides of columns, items; 4 their number; 5 their length; 6-7 of
    the factors tau: address, stride of items.
    """
    dot = sum_of_run("dot", "float64")

    def reflect(item: int, args: Any) -> None:
        count, length = args[4], args[5]
        first, step = args[1] + item * args[3] * 8, args[2] * 8
        taus = float64_at(args[6] + item * args[7] * 8)
        room, none = room_of_sums(), _splat(0.0)
        for k in range(min(count, length)):
            here, rest = first + k * step + k * 8, length - k - 1
            v = native.carray(float64_at(here), (length - k,))
            tau, head = 0.0, v[0]
            square = dot(here + 8, here + 8, rest, none, room) if rest > 0 else 0.0
            scale = 1.0
            if rest > 0 and square < _TINY * _TINY and head < _TINY and head > -_TINY:
                scale = 1.0 / _LARGE  # squares underflow
                for i in range(length - k):
                    v[i] = v[i] * _LARGE
                head, square = v[0], dot(here + 8, here + 8, rest, none, room)
                v[0] = head * scale
            if square != 0.0:
                norm = math.sqrt(_fma(head, head, square))
                beta = norm if head < 0.0 else -norm
                tau, below = (beta - head) / beta, head - beta
                for i in range(1, length - k):
                    v[i] = v[i] / below
                for j in range(k + 1, count):
                    other = here + (j - k) * step
                    c = native.carray(float64_at(other), (length - k,))
                    factor = -tau * (c[0] + dot(here + 8, other + 8, rest, none, room))
                    c[0] = c[0] + factor
                    for i in range(1, length - k):
                        c[i] = _fma(factor, v[i], c[i])
                v[0] = beta * scale
            taus[k] = tau

    return on_team(reflect, name="householder_panel")


@variants()
def _triangle() -> OnTeam:
    """args: 1-2 of the products of the vectors with each other, rows of `4`: address, stride of items; 3 of
    T, which lies alike and holds zeros; 4 vectors; 5-6 of the factors tau: address, stride of items.
    """

    def triangle(item: int, args: Any) -> None:
        count = args[4]
        gram = native.carray(float64_at(args[1] + item * args[2] * 8), (count, count))
        t = native.carray(float64_at(args[3] + item * args[2] * 8), (count, count))
        taus = float64_at(args[5] + item * args[6] * 8)
        for i in range(count):
            for row in range(i):
                total = 0.0
                for k in range(row, i):
                    total = _fma(t[row, k], gram[k, i], total)
                t[row, i] = -taus[i] * total
            t[i, i] = taus[i]

    return on_team(triangle, name="householder_triangle")


def _block_of(columns: Tensor, tau: Tensor, start: int) -> tuple[Tensor, Tensor]:
    """Returns vectors (batch, count, length) with their leading ones and zeros, and T, of the block there."""
    end = min(start + BLOCK, tau.shape[-1])
    v = columns[:, start:end, start:].triu(1)
    v.diagonal(dim1=1, dim2=2).fill_(1.0)
    gram, t = multiplied(v, v.mT), v.new_zeros(len(v), end - start, end - start)
    size, taus = (end - start) ** 2, tau[:, start:end]
    _triangle()(len(v), gram.data_ptr(), size, t.data_ptr(), end - start, taus.data_ptr(), tau.stride(0))
    return v, t


def _apply(c: Tensor, v: Tensor, t: Tensor) -> None:
    """Applies I - V T V^T to columns (batch, columns, length), or its transpose with a transposed T."""
    minus_product(c, multiplied(multiplied(c, v.mT), t.mT), v)


def _scaled(columns: Tensor) -> Tensor:
    """Brings the largest element of each finite matrix to [1, 2), in place; returns what undoes it."""
    exponent = columns.abs().amax((1, 2), keepdim=True).view(torch.int64) >> 52
    exponent = exponent.where(exponent < 2047, 1023).clamp(1, 2045)
    columns.mul_(((2046 - exponent) << 52).view(torch.float64))
    return (exponent << 52).view(torch.float64)


def reflectors(columns: Tensor) -> Tensor:
    """Makes R and the vectors below it, as LAPACK's `geqrf`, of columns (batch, columns, length), in place.

    They are float64, contiguous, not empty. Returns the factors tau (batch, the smaller size).
    """
    batch, n, length = columns.shape
    tau = columns.new_zeros(batch, min(n, length))
    size = _scaled(columns)
    for start in range(0, tau.shape[-1], BLOCK):
        count = min(BLOCK, n - start)
        here, taus = columns[:, start:, start:], tau[:, start:]
        _panel()(
            batch, here.data_ptr(), length, n * length, count, length - start, taus.data_ptr(), tau.stride(0)
        )
        if start + count < n:
            v, t = _block_of(columns, tau, start)
            _apply(columns[:, start + count :, start:], v, t.mT)
    columns.copy_(torch.where(torch.ones(n, length, dtype=torch.bool).tril(), columns * size, columns))
    return tau


def multiply(columns: Tensor, tau: Tensor, c: Tensor, *, transpose: bool = False) -> Tensor:
    """Multiplies columns (batch, columns, length) by Q, or its transpose, from the left, in place."""
    starts = range(0, tau.shape[-1] if c.numel() else 0, BLOCK)
    for start in starts if transpose else reversed(starts):
        v, t = _block_of(columns, tau, start)
        _apply(c[:, :, start:], v, t.mT if transpose else t)
    return c


def orthogonal(columns: Tensor, tau: Tensor, count: int) -> Tensor:
    """Returns the first columns of Q, (batch, count, length)."""
    batch, _, length = columns.shape
    made = torch.eye(count, length, dtype=columns.dtype).repeat(batch, 1, 1)
    for start in reversed(range(0, tau.shape[-1], BLOCK)):  # columns before the block are still those of I
        v, t = _block_of(columns, tau, start)
        _apply(made[:, start:, start:], v, t)
    return made
