"""Layer normalization of rows, and the gradients of its input, weight and bias."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits._native import inlined, vectors
from samebits._native.kernel_threads import OnTeam, on_team, variants
from samebits.arithmetic.reductions.definition import BLOCK
from samebits.arithmetic.reductions.kernels import finished
from samebits.arithmetic.reductions.running import room_of_sums, running, sum_of_run
from samebits.arithmetic.reductions.tensors import MEMORY, bits_of, lanes_type, reduce

TILE = 512
"""Columns whose lanes are in the first level of cache at a time."""
prefetch, _for_each_vector = vectors.prefetch, vectors.for_each_vector
_splat, _first_of, _one_nan, _added = vectors.splat, vectors.first_of, vectors.one_nan, vectors.added
_fma, _root, _float64_of_bits = vectors.fma, vectors.root, vectors.float64_of_bits
_tile_room, _other_room = vectors.stack(16 * TILE * 8), vectors.stack(16 * TILE * 8 + 64)


@inlined
def standardized(x: Any, mean: Any, rstd: Any) -> Any:
    """Returns h."""
    return (x - mean) * rstd


@cache
def moments(memory: str) -> Any:
    """Returns the part of kernels (x, count, eps, room) for a run's mean and 1 / sqrt(variance + eps)."""
    lanes_type = vectors.COMPUTED[memory]
    real = getattr(np, lanes_type)
    total, spread = sum_of_run("sum", memory), sum_of_run("narrow deviation", memory)

    @inlined
    def of_run(x: Any, count: Any, eps: Any, room: Any) -> Any:
        mean = total(x, x, count, _splat(real(0)), room) / real(count)
        variance = spread(x, x, count, _splat(mean), room) / real(count)
        return mean, real(1) / _root(variance + eps)

    return of_run


@variants(memory=vectors.SIZE)
def layer_norm(memory: str) -> OnTeam:
    """args: 1-6 addresses of x, w, b, y, means, rstds; 7 rows; 8 their length; 9 rows of a chunk;
    10 bits of eps.
    """
    lanes_type = vectors.COMPUTED[memory]
    real, width, of_run = getattr(np, lanes_type), vectors.SIZE[lanes_type], moments(memory)
    read, store, size = vectors.LOAD[memory], vectors.STORE[memory], vectors.SIZE[memory]
    load, store_one = vectors.LOAD[lanes_type], vectors.STORE_ONE[lanes_type]

    @inlined
    def part(first: Any, some: Any, args: Any, x: Any, length: Any, out: Any, mean: Any, rstd: Any) -> None:
        w, b = load(args[2] + first * width, *some), load(args[3] + first * width, *some)
        h = standardized(read(x + first * size, *some), mean, rstd)
        if len(some) == 0:
            prefetch(x + (length + first) * size)  # the next row
        store(out + first * size, _one_nan(_fma(h, w, b)), *some)

    def rows(chunk: int, args: Any) -> None:
        length, room = args[8], room_of_sums()
        whole, rest, eps = length >> 4, length & 15, real(_float64_of_bits(args[10]))
        for row in range(chunk * args[9], min(args[7], (chunk + 1) * args[9])):
            x, out = args[1] + row * length * size, args[4] + row * length * size
            mean, rstd = of_run(x, length, eps, room)
            store_one(args[5] + row * width, _one_nan(mean))
            store_one(args[6] + row * width, _one_nan(rstd))
            _for_each_vector(whole, rest, part, (args, x, length, out, _splat(mean), _splat(rstd)))

    return on_team(rows, name=f"layer_norm_{memory}")


@cache
def _sums_of_row(memory: str) -> Any:
    """Returns the part of kernels for S(g w) and S(g w h) of a row."""
    lanes_type = vectors.COMPUTED[memory]
    real, width = getattr(np, lanes_type), vectors.SIZE[lanes_type]
    read, load, size = vectors.LOAD[memory], vectors.LOAD[lanes_type], vectors.SIZE[memory]
    push, total = running(lanes_type)

    @inlined
    def of_block(g: Any, x: Any, w: Any, count: Any, mean: Any, rstd: Any) -> Any:
        alone, both = _splat(real(0)), _splat(real(0))
        for i in range(count >> 4):
            at = i * 16
            u = read(g + at * size) * load(w + at * width)
            alone = alone + u
            both = _fma(u, standardized(read(x + at * size), mean, rstd), both)
        rest = count & 15
        if rest:
            at = (count >> 4) * 16
            u = read(g + at * size, rest) * load(w + at * width, rest)
            h = standardized(read(x + at * size, rest), mean, rstd)
            alone, both = _first_of(rest, alone + u, alone), _first_of(rest, _fma(u, h, both), both)
        return _added(alone), _added(both)

    @inlined
    def sums(g: Any, x: Any, w: Any, length: Any, mean: Any, rstd: Any, room: Any, other: Any) -> Any:
        alone, both = of_block(g, x, w, min(length, BLOCK), mean, rstd)
        if length <= BLOCK:
            alone, both = alone + real(0), both + real(0)  # as the sum of one block is: no negative zero
        else:
            push(room, 0, alone)
            push(other, 0, both)
            blocks = (length + BLOCK - 1) >> 8
            for number in range(1, blocks):
                at = number * BLOCK
                count = min(BLOCK, length - at)
                more, product = of_block(g + at * size, x + at * size, w + at * width, count, mean, rstd)
                push(room, number, more)
                push(other, number, product)
            alone, both = total(room, blocks), total(other, blocks)
        return alone, both

    return sums


@variants(memory=vectors.SIZE)
def layer_norm_input_gradient(memory: str) -> OnTeam:
    """args: 1-6 addresses of g, x, w, means, rstds, results; 7 rows; 8 their length; 9 rows of a chunk."""
    lanes_type = vectors.COMPUTED[memory]
    real, width = getattr(np, lanes_type), vectors.SIZE[lanes_type]
    read, store, size = vectors.LOAD[memory], vectors.STORE[memory], vectors.SIZE[memory]
    load, load_one, sums = vectors.LOAD[lanes_type], vectors.LOAD_ONE[lanes_type], _sums_of_row(memory)

    @inlined
    def value(g: Any, x: Any, w: Any, mean: Any, rstd: Any, alone: Any, both: Any) -> Any:
        h = standardized(x, mean, rstd)
        return _one_nan(rstd * _fma(h, both, g * w - alone))

    def rows(chunk: int, args: Any) -> None:
        length, room, other = args[8], room_of_sums(), room_of_sums()
        whole, rest, w = length >> 4, length & 15, args[3]
        for row in range(chunk * args[9], min(args[7], (chunk + 1) * args[9])):
            g, x, out = (
                args[1] + row * length * size,
                args[2] + row * length * size,
                args[6] + row * length * size,
            )
            mean, rstd = _splat(load_one(args[4] + row * width)), _splat(load_one(args[5] + row * width))
            sum_alone, sum_both = sums(g, x, w, length, mean, rstd, room, other)
            alone, both = _splat(sum_alone / real(length)), _splat(-(sum_both / real(length)))
            for i in range(whole):
                here, at = i * 16 * size, w + i * 16 * width
                prefetch(g + length * size + here)
                prefetch(x + length * size + here)
                store(out + here, value(read(g + here), read(x + here), load(at), mean, rstd, alone, both))
            if rest:
                here, at = whole * 16 * size, w + whole * 16 * width
                g_here, x_here = read(g + here, rest), read(x + here, rest)
                made = value(g_here, x_here, load(at, rest), mean, rstd, alone, both)
                store(out + here, made, rest)

    return on_team(rows, name=f"layer_norm_input_gradient_{memory}")


@cache
def _lane_of_columns(memory: str, rows: int) -> Any:
    """Returns the part of kernels that adds that number of rows to the lanes of g h and of g of columns."""
    lanes_type = vectors.COMPUTED[memory]
    read, size = vectors.LOAD[memory], vectors.SIZE[memory]
    load, store, width = vectors.LOAD[lanes_type], vectors.STORE[lanes_type], vectors.SIZE[lanes_type]
    load_one = vectors.LOAD_ONE[lanes_type]

    @inlined
    def of_row(args: Any, row: Any, first: Any) -> Any:
        mean, rstd = _splat(load_one(args[3] + row * width)), _splat(load_one(args[4] + row * width))
        start = (row * args[8] + first) * size
        return args[1] + start, args[2] + start, mean, rstd

    @inlined
    def add(products: Any, plain: Any, args: Any, row: Any, first: Any, number: Any) -> None:
        whole, rest = number >> 4, number & 15
        taken = (of_row(args, row, first),)
        if rows == 4:
            taken = (
                of_row(args, row, first), of_row(args, row + 16, first),
                of_row(args, row + 32, first), of_row(args, row + 48, first),
            )  # fmt: skip
        for j in range(whole):
            here, at = j * 16 * size, j * 16 * width
            both, alone = load(products + at), load(plain + at)
            for g_row, x_row, mean, rstd in taken:
                g = read(g_row + here)
                both, alone = _fma(g, standardized(read(x_row + here), mean, rstd), both), alone + g
            store(products + at, both)
            store(plain + at, alone)
        if rest:
            here, at = whole * 16 * size, whole * 16 * width
            both, alone = load(products + at), load(plain + at)
            for g_row, x_row, mean, rstd in taken:
                g, x = read(g_row + here, rest), read(x_row + here, rest)
                both, alone = _fma(g, standardized(x, mean, rstd), both), alone + g
            store(products + at, both)
            store(plain + at, alone)

    return add


@variants(memory=vectors.SIZE)
def layer_norm_weight_gradients(memory: str) -> OnTeam:
    """Sums of g h and g over blocks of 256 rows; args: 1-4 addresses of g, x, means, rstds; 5-6 of the sums
    (blocks x columns); 7 rows; 8 columns; 9 groups of columns; 10 columns of a group.

    The rows of one lane follow each other, so that its sums stay in the first level of cache.
    """
    lanes_type = vectors.COMPUTED[memory]
    real, width = getattr(np, lanes_type), vectors.SIZE[lanes_type]
    load, store = vectors.LOAD[lanes_type], vectors.STORE[lanes_type]
    add_four, add_one = _lane_of_columns(memory, 4), _lane_of_columns(memory, 1)

    @inlined
    def tree(room: Any, used: Any, across: Any) -> Any:
        half = 8
        while half:
            for lane in range(max(0, min(half, used - half))):
                for i in range(across):
                    at = room + (lane * across + i) * 16 * width
                    store(at, load(at) + load(at + half * across * 16 * width))
            used = min(used, half)
            half >>= 1

    def chunk_of_columns(chunk: int, args: Any) -> None:
        columns, groups, group = args[8], args[9], args[10]
        block, begin = chunk // groups, chunk % groups * group
        count = min(BLOCK, args[7] - block * BLOCK)
        products, plain, none = _tile_room(), _other_room(), _splat(real(0))
        for first in range(begin, min(columns, begin + group), TILE):
            number = min(TILE, columns - first)
            across = (number + 15) >> 4
            for lane in range(min(16, count)):
                room = lane * across * 16 * width
                for i in range(across):
                    store(products + room + i * 16 * width, none)
                    store(plain + room + i * 16 * width, none)
                several = lane
                while several + 48 < count:
                    add_four(products + room, plain + room, args, block * BLOCK + several, first, number)
                    several += 64
                while several < count:
                    add_one(products + room, plain + room, args, block * BLOCK + several, first, number)
                    several += 16
            tree(products, min(16, count), across)
            tree(plain, min(16, count), across)
            for j in range(across):
                at, some = (block * columns + first + j * 16) * width, min(16, number - j * 16)
                store(args[5] + at, finished(load(products + j * 16 * width), 0, none), some)
                store(args[6] + at, finished(load(plain + j * 16 * width), 0, none), some)

    return on_team(chunk_of_columns, name=f"layer_norm_weight_gradients_{memory}")


# Layer normalization of tensors.


_GRAIN = 1 << 13
"""Elements of a chunk of rows, about."""


def parameter(values: Tensor | None, length: int, kind: torch.dtype, absent: float) -> Tensor:
    """Returns a weight or bias as the kernels read it; all of one number, if there is none."""
    if values is None:
        return torch.full((length,), absent, dtype=kind)
    return as_read(values, kind)


def as_read(values: Tensor, kind: torch.dtype) -> Tensor:
    """Returns a contiguous tensor of the type: itself, if it is that."""
    if values.dtype is not kind:
        values = values.to(kind)
    return values if values.is_contiguous() else values.contiguous()


def normalized_rows(
    x: Tensor, length: int, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the normalized rows of contiguous `x`, and (in the lanes' type) their means and rstds.

    shape: of the means and rstds.
    """
    rows, kind = x.numel() // length, lanes_type(x)
    w, b = parameter(weight, length, kind, 1), parameter(bias, length, kind, 0)
    out, mean, rstd = torch.empty_like(x), torch.empty(shape, dtype=kind), torch.empty(shape, dtype=kind)
    piece = max(1, _GRAIN // length)
    layer_norm(MEMORY[x.dtype])(
        -(-rows // piece),
        *(t.data_ptr() for t in (x, w, b, out, mean, rstd)),
        *(rows, length, piece, bits_of(eps)),
    )
    return out, mean, rstd


def input_gradient(
    grad: Tensor, x: Tensor, length: int, weight: Tensor | None, mean: Tensor, rstd: Tensor
) -> Tensor:
    """Returns dx; the tensors are contiguous, `mean` and `rstd` of the lanes' type."""
    rows, out = x.numel() // length, torch.empty_like(x)
    w = parameter(weight, length, mean.dtype, 1)
    piece = max(1, _GRAIN // length)
    layer_norm_input_gradient(MEMORY[x.dtype])(
        -(-rows // piece), *(t.data_ptr() for t in (grad, x, w, mean, rstd, out)), rows, length, piece
    )
    return out


def weight_gradients(
    grad: Tensor, x: Tensor, length: int, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns dw and db; the tensors are contiguous, `mean`, `rstd` and both results of the lanes' type."""
    rows = x.numel() // length
    blocks = -(-rows // BLOCK)
    sums = torch.empty((2, length) if blocks == 1 else (2, blocks, length), dtype=mean.dtype)
    group = (TILE if blocks > 7 else TILE // 2) * max(1, 128 // min(rows, BLOCK))
    groups, at = -(-length // group), sums.data_ptr()
    layer_norm_weight_gradients(MEMORY[x.dtype])(
        blocks * groups,
        grad.data_ptr(),
        x.data_ptr(),
        mean.data_ptr(),
        rstd.data_ptr(),
        at,
        at + blocks * length * sums.element_size(),
        rows,
        length,
        groups,
        group,
    )
    if blocks > 1:
        sums = reduce("sum", sums, (1,))
    return sums[0], sums[1]
