"""Softmax across columns, numbers that lie side by side: 64 of them are read at a time, and 16 computed."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from samebits._native import Part, inlined, vectors
from samebits._native.kernel_threads import OnTeam, on_team, variants
from samebits.arithmetic.functions.logarithm import log_by_series
from samebits.arithmetic.reductions.definition import BLOCK
from samebits.arithmetic.softmax.definition import is_made
from samebits.arithmetic.softmax.rows import EXP, softmax_value

_lanes_room, _sums_room, _centers_room = (
    vectors.stack(16 * 128),
    vectors.stack(16 * 129),
    vectors.stack(4 * 128),
)
_splat, _first_of, _one_nan = vectors.splat, vectors.first_of, vectors.one_nan
_where_less, _fma = vectors.where_less, vectors.fma


class _Lanes(NamedTuple):
    """Parts of kernels that add up rows of 16 columns: 16 lanes of vectors, each lane in 128 bytes."""

    clear: Part
    add: Part
    tree: Part


@cache
def _lanes(lanes_type: str) -> _Lanes:
    load, store = vectors.LOAD[lanes_type], vectors.STORE[lanes_type]
    real = getattr(np, lanes_type)

    @inlined
    def clear(room: Any) -> Any:
        for lane in range(16):
            store(room + lane * 128, _splat(real(0)))

    @inlined
    def add(room: Any, number: Any, value: Any) -> Any:
        at = room + (number & 15) * 128
        store(at, load(at) + value)

    @inlined
    def tree(room: Any) -> Any:
        half = 8
        while half:
            for lane in range(half):
                at = room + lane * 128
                store(at, load(at) + load(at + half * 128))
            half >>= 1
        return load(room)

    return _Lanes(clear, add, tree)


@cache
def _some(memory: str) -> Part:
    """Returns the part of kernels that reads 16 numbers or fewer."""
    load = vectors.LOAD[memory]

    @inlined
    def read(address: Any, count: Any) -> Any:
        return load(address, count) if count < 16 else load(address)

    return read


@variants(memory=vectors.SIZE, result=vectors.SIZE, log=(False, True), only=is_made)
def softmax_columns(memory: str, result: str, *, log: bool) -> OnTeam:
    """args: 1-2 addresses of x and results; 3 length; 4 columns; 5 tiles of 64 columns; a chunk is a tile."""
    lanes_type = vectors.COMPUTED[memory]
    in_place = not log and result == lanes_type
    read, size = _some(memory), vectors.SIZE[memory]
    again = _some(result)
    store, step = vectors.STORE[result], vectors.SIZE[result]
    load_lanes, store_lanes = vectors.LOAD[lanes_type], vectors.STORE[lanes_type]
    load_one, store_one = vectors.LOAD_ONE[lanes_type], vectors.STORE_ONE[lanes_type]
    width, real, exp = vectors.SIZE[lanes_type], getattr(np, lanes_type), EXP[lanes_type]
    clear, add, tree = _lanes(lanes_type)

    @inlined
    def maxima(x: Any, length: Any, between: Any, number: Any, centers: Any) -> Any:
        for i in range((number + 15) >> 4):
            store_lanes(centers + i * 128, _splat(real(-np.inf)))
        for row in range(length):
            for i in range((number + 15) >> 4):
                at = centers + i * 128
                here, best = read(x + row * between + i * 16 * size, number - i * 16), load_lanes(at)
                store_lanes(at, _where_less(best, here, here, best))

    @inlined
    def exponentials(x: Any, out: Any, args: Any, count: Any, center: Any) -> Any:
        """S(exp(x - m)) of each of at most 16 columns."""
        length, columns, lanes, sums = args[3], args[4], _lanes_room(), _sums_room()
        clear(sums)
        total = center
        for block in range((length + BLOCK - 1) >> 8):
            clear(lanes)
            for row in range(block * BLOCK, min(length, (block + 1) * BLOCK)):
                e = exp(read(x + row * columns * size, count) - center)
                add(lanes, row, e)
                if in_place:
                    store(out + row * columns * step, e, count)
            total = tree(lanes)
            add(sums, block, total)
        return tree(sums) if length > BLOCK else total

    @inlined
    def logarithms(total: Any, room: Any) -> Any:
        store_lanes(room, total)
        for lane in range(16):
            at = room + lane * width
            store_one(at, real(log_by_series(np.float64(load_one(at)))))
        return load_lanes(room)

    value = softmax_value(lanes_type, log=log, is_exp=in_place)

    def columns_of_tile(chunk: int, args: Any) -> None:
        length, columns, tiles = args[3], args[4], args[5]
        outer, begin = chunk // tiles, chunk % tiles * 64
        number = min(64, columns - begin)
        x = args[1] + (outer * length * columns + begin) * size
        out = args[2] + (outer * length * columns + begin) * step
        centers = _centers_room()
        maxima(x, length, columns * size, number, centers)
        for i in range((number + 15) >> 4):
            count = min(16, number - i * 16)
            x_here, out_here, center = x + i * 16 * size, out + i * 16 * step, load_lanes(centers + i * 128)
            divisor = exponentials(x_here, out_here, args, count, center)
            if log:
                divisor = logarithms(divisor, centers + i * 128)
            for row in range(length):
                at = out_here + row * columns * step
                here = again(at, count) if in_place else read(x_here + row * columns * size, count)
                store(at, value(here, center, divisor), count)

    return on_team(columns_of_tile, name=f"softmax_columns_{memory}_{result}_{log}")


@variants(memory=vectors.SIZE, result=vectors.SIZE, log=(False, True), only=is_made)
def softmax_gradient_columns(memory: str, result: str, *, log: bool) -> OnTeam:
    """args: 1-3 addresses of g, y, results; 4 length; 5 columns; 6 tiles of 64 columns; a chunk is a tile."""
    lanes_type = vectors.COMPUTED[memory]
    read, size = _some(memory), vectors.SIZE[memory]
    store, step = vectors.STORE[result], vectors.SIZE[result]
    load_lanes, store_lanes = vectors.LOAD[lanes_type], vectors.STORE[lanes_type]
    real, exp = getattr(np, lanes_type), EXP[lanes_type]
    clear, add, tree = _lanes(lanes_type)

    @inlined
    def sums_of(g: Any, y: Any, length: Any, columns: Any, count: Any) -> Any:
        """S(g y), of log-softmax S(g), of each of at most 16 columns."""
        lanes, sums = _lanes_room(), _sums_room()
        clear(sums)
        total = _splat(real(0))
        for block in range((length + BLOCK - 1) >> 8):
            clear(lanes)
            for row in range(block * BLOCK, min(length, (block + 1) * BLOCK)):
                here, at = row * columns * size, lanes + (row & 15) * 128
                if log:
                    store_lanes(at, load_lanes(at) + read(g + here, count))
                else:
                    store_lanes(at, _fma(read(g + here, count), read(y + here, count), load_lanes(at)))
            total = tree(lanes)
            add(sums, block, total)
        return tree(sums) if length > BLOCK else total

    def columns_of_tile(chunk: int, args: Any) -> None:
        length, columns, tiles = args[4], args[5], args[6]
        outer, begin = chunk // tiles, chunk % tiles * 64
        for first in range(begin, min(columns, begin + 64), 16):
            count = min(16, columns - first)
            start = outer * length * columns + first
            g, y, out = args[1] + start * size, args[2] + start * size, args[3] + start * step
            total = _splat(real(0)) - sums_of(g, y, length, columns, count)
            for row in range(length):
                here = row * columns * size
                g_here, y_here = read(g + here, count), read(y + here, count)
                made = _fma(exp(y_here), total, g_here) if log else y_here * (g_here + total)
                store(out + row * columns * step, _one_nan(made), count)

    return on_team(columns_of_tile, name=f"softmax_gradient_columns_{memory}_{result}_{log}")
