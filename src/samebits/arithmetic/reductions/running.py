"""Sums of runs of memory inside other kernels: the definition of S for any number of elements, by blocks."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from samebits._native import Part, inlined, vectors
from samebits.arithmetic.reductions.definition import BLOCK
from samebits.arithmetic.reductions.kernels import accumulator, block_of_run, gathered
from samebits.arithmetic.reductions.steps import STEPS

room_of_sums, room_of_block = vectors.stack(5 * 128), vectors.stack(8 * BLOCK)
"""The lanes of the sums of blocks, of their blocks, and so on: for 2^32 elements."""
_splat, _added = vectors.splat, vectors.added


class Running(NamedTuple):
    """Parts of kernels that add up the sums of blocks."""

    push: Part
    """(room, number, sum): takes the sum of the block of that number, from 0 on, in order."""
    total: Part
    """(room, count): S of that many blocks, at least one."""


@cache
def running(lanes_type: str) -> Running:
    """Returns the parts for float32 or float64."""
    real, width = getattr(np, lanes_type), vectors.SIZE[lanes_type]
    load, store = vectors.LOAD[lanes_type], vectors.STORE[lanes_type]
    load_one, store_one = vectors.LOAD_ONE[lanes_type], vectors.STORE_ONE[lanes_type]

    @inlined
    def push(room: Any, number: Any, value: Any) -> Any:
        at, more = room, True
        while more:
            # A level of 256 is full: its sum goes one level up when the next one comes.
            more = number > 0 and number & 255 == 0
            full = value
            if number & 255 == 0:
                full = _added(load(at))
                store(at, _splat(real(0)))
            place = at + (number & 15) * width
            store_one(place, load_one(place) + value)
            value, number, at = full, (number >> 8) - 1, at + 128

    @inlined
    def total(room: Any, count: Any) -> Any:
        at = room
        value = _added(load(at))
        while count > 256:
            at, count = at + 128, ((count - 1) >> 8) + 1
            push(at, count - 1, value)
            value = _added(load(at))
        return value

    return Running(push, total)


@cache
def sum_of_run(what: str, memory: str) -> Part:
    """Returns the part of kernels (x, y, count, center, room) that reduces a run, in the end by addition."""
    lanes_type = accumulator(what, memory)
    block, size = block_of_run(what, memory), vectors.SIZE[memory]
    push, total = running(lanes_type)

    @inlined
    def reduced(x: Any, y: Any, count: Any, center: Any, room: Any) -> Any:
        result = block(x, y, min(count, BLOCK), center)
        if count > BLOCK:
            blocks = (count + BLOCK - 1) >> 8
            push(room, 0, result)
            for number in range(1, blocks):
                here = number * BLOCK * size
                push(room, number, block(x + here, y + here, min(BLOCK, count - number * BLOCK), center))
            result = total(room, blocks)
        return result

    return reduced


@cache
def sum_of_runs(what: str, memory: str) -> Part:
    """Returns the part of kernels (x, y, count, run, between, center, rooms) that reduces several runs.

    rooms: of the sums, of a block of x and of a block of y.
    """
    lanes_type, binary = accumulator(what, memory), STEPS[what].binary
    block, place = block_of_run(what, memory), gathered(memory)
    push, total = running(lanes_type)

    @inlined
    def reduced(x: Any, y: Any, count: Any, run: Any, between: Any, center: Any, rooms: Any) -> Any:
        sums, x_room, y_room = rooms
        for first in range(0, count, BLOCK):
            some = min(BLOCK, count - first)
            x_here = place(x, first, some, run, between, x_room)
            y_here = place(y, first, some, run, between, y_room) if binary else x_here
            push(sums, first >> 8, block(x_here, y_here, some, center))
        return total(sums, (count + BLOCK - 1) >> 8)

    return reduced
