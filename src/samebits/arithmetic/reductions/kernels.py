"""The kernels of a reduction: along runs of memory, and across columns, numbers that lie side by side.

Both write S of at most 65,536 elements (runs) or 256 (columns); of more, their results are reduced again.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from samebits._native import Part, inlined, vectors
from samebits._native.kernel_threads import OnTeam, count_up, int64_at, on_team, variants
from samebits.arithmetic.reductions.definition import BLOCK
from samebits.arithmetic.reductions.steps import STEPS

PART = BLOCK * BLOCK
"""Elements that one call reduces to one number along a run of memory."""
TILE = 256
"""Columns whose lanes are in the first level of cache at a time."""
PLAIN, QUOTIENT, ROOT, ROOT_OF_QUOTIENT = range(4)
"""The last operations on a result: none, a division, a square root, or both."""

_row_room, _gather_room, _tile_room = (
    vectors.stack(128),
    vectors.stack(8 * BLOCK),
    vectors.stack(16 * TILE * 8),
)
_splat, _first_of, _root, _one_nan = vectors.splat, vectors.first_of, vectors.root, vectors.one_nan
_copy_bytes, _float64_of_bits = vectors.copy_bytes, vectors.float64_of_bits
_for_each_vector = vectors.for_each_vector


def accumulator(what: str, memory: str) -> str:
    """Returns the type of the lanes: float32 or float64."""
    return "float64" if STEPS[what].wide or memory == "float64" else "float32"


def _is_made(what: str, memory: str, result: str) -> bool:
    """Returns True for the types of a result without `dtype=`, and for those of a second pass, over lanes."""
    lanes_type = accumulator(what, memory)
    again = memory == lanes_type and (lanes_type == "float64" or result != "float64")
    return result in (memory, lanes_type) or again


@cache
def reader(memory: str, wide: bool) -> Part:
    """Returns the part of kernels (address, some) that reads as `vectors.LOAD`: as float64, if `wide`."""
    load, as_float64 = vectors.LOAD[memory], vectors.as_float64
    is_narrow = wide and memory != "float64"

    @inlined
    def read(address: Any, some: Any) -> Any:
        return as_float64(load(address, *some)) if is_narrow else load(address, *some)

    return read


@cache
def block_of_run(what: str, memory: str) -> Part:
    """Returns the part of kernels that reduces at most 256 elements of a run of memory."""
    lanes_type = accumulator(what, memory)
    read = reader(memory, lanes_type == "float64")
    step, real, size = STEPS[what], getattr(np, lanes_type), vectors.SIZE[memory]
    take, total, start = step.take, step.total, step.start

    @inlined
    def block(x: Any, y: Any, count: Any, center: Any) -> Any:
        lanes = _splat(real(start))
        whole = count >> 4
        for i in range(whole):
            lanes = take(lanes, read(x + i * 16 * size, ()), read(y + i * 16 * size, ()), center)
        rest = count & 15
        if rest:
            x_rest = read(x + whole * 16 * size, (rest,))
            y_rest = read(y + whole * 16 * size, (rest,))
            lanes = _first_of(rest, take(lanes, x_rest, y_rest, center), lanes)
        return total(lanes)

    return block


@cache
def gathered(memory: str) -> Part:
    """Returns the part of kernels (base, first, count, run, between, room) that finds elements of runs.

    Elements of more than one run are copied together into `room`; `between` is the distance of runs in bytes.
    """
    size = vectors.SIZE[memory]

    @inlined
    def place(base: Any, first: Any, count: Any, run: Any, between: Any, room: Any) -> Any:
        outer, inner = first // run, first % run
        here = base + outer * between + inner * size
        if inner + count > run:
            here = room
            done = 0
            while done < count:
                some = min(run - inner, count - done)
                _copy_bytes(room + done * size, base + outer * between + inner * size, some * size)
                done += some
                outer += 1
                inner = 0
        return here

    return place


@inlined
def _itself(x: Any) -> Any:
    return x


@inlined
def finished(total: Any, last: Any, divisor: Any) -> Any:
    """Returns a result, or a vector of them, after the last operations."""
    if last & 1:
        total = total / divisor
    if last & 2:
        total = _root(total)
    return _one_nan(total)


@variants(what=STEPS, memory=vectors.SIZE, result=vectors.SIZE, only=_is_made)
def runs(what: str, memory: str, result: str) -> OnTeam:
    """Reduces rows of runs of memory; each part of 65,536 elements of a row gives one number.

    args: 1-4 addresses of x, y, centers, results; 5 number of results (rows x parts); 6 parts a row; 7
    results a chunk; 8 inner rows and the bytes between 9 outer and 10 inner rows; 11 elements of a row; 12
    elements of a run; 13 bytes between runs; 14 last operations; 15 bits of the divisor; 16 where there is
    one row of several parts, at most 256: the address of zeros, 64 bits for the number of parts that are done
    and for the sum of each. Who does the last part makes the one result.
    """
    lanes_type = accumulator(what, memory)
    step, real, size = STEPS[what], getattr(np, lanes_type), vectors.SIZE[memory]
    start, centered, binary = step.start, step.centered, step.binary
    block, combine, total_of = block_of_run(what, memory), step.combine, step.total
    store_one, result_size = vectors.STORE_ONE[result], vectors.SIZE[result]
    load_sums, store_sums, one_at, store_at = (
        table[lanes_type] for table in (vectors.LOAD, vectors.STORE, vectors.LOAD_ONE, vectors.STORE_ONE)
    )
    width, place = vectors.SIZE[lanes_type], gathered(memory)

    def chunk_of_runs(chunk: int, args: Any) -> None:
        rows, parts, inner_rows = args[5], args[6], args[8]
        length, run, between = args[11], args[12], args[13]
        divisor, sums = real(_float64_of_bits(args[15])), _row_room()
        x_room, y_room = _gather_room(), _gather_room()
        for item in range(chunk * args[7], min(rows, (chunk + 1) * args[7])):
            row, part = (item // parts, item % parts) if parts > 1 else (item, 0)
            outer, inner = (row // inner_rows, row % inner_rows) if inner_rows > 1 else (row, 0)
            shift = outer * args[9] + inner * args[10]
            x, y = args[1] + shift, args[2] + shift
            center = _splat(one_at(args[3] + row * width) if centered else real(0))
            begin = part * PART
            count = min(PART, length - begin)
            if count <= BLOCK and run == length:
                total = block(x + begin * size, y + begin * size, count, center)
            else:
                store_sums(sums, _splat(real(start)))
                for number in range((count + BLOCK - 1) >> 8):
                    first = begin + number * BLOCK
                    some = min(BLOCK, length - first)
                    x_here = place(x, first, some, run, between, x_room) if run < length else x + first * size
                    y_here = x_here
                    if binary:
                        y_here = (
                            place(y, first, some, run, between, y_room) if run < length else y + first * size
                        )
                    one = block(x_here, y_here, some, center)
                    at = sums + (number & 15) * width
                    store_at(at, combine(one_at(at), one))
                total = total_of(load_sums(sums))
            if not args[16]:
                store_one(args[4] + item * result_size, finished(total, args[14], divisor))
                continue
            sums_of_parts = args[16] + 8
            store_at(sums_of_parts + item * width, total)
            if count_up(int64_at(args[16])) == parts - 1:
                store_sums(sums, _splat(real(start)))
                for number in range(parts):
                    at = sums + (number & 15) * width
                    store_at(at, combine(one_at(at), one_at(sums_of_parts + number * width)))
                store_one(args[4], finished(total_of(load_sums(sums)), args[14], divisor))

    return on_team(chunk_of_runs, name=f"runs_{what}_{memory}_{result}".replace(" ", "_"))


@variants(what=STEPS, memory=vectors.SIZE, result=vectors.SIZE, only=_is_made)
def columns(what: str, memory: str, result: str) -> OnTeam:
    """Reduces blocks of 256 rows, each column to one number.

    args: 1-4 addresses of x, y, centers, results (outer x blocks x columns); 5 columns; 6 rows; 7 blocks of
    an outer index; 8 groups of columns; 9 columns of a group; 10 bytes between outer indices; 11 rows of a
    run; 12 bytes between rows; 13 bytes between runs; 14 last operations; 15 bits of the divisor.
    """
    lanes_type = accumulator(what, memory)
    read = reader(memory, lanes_type == "float64")
    step, real, size = STEPS[what], getattr(np, lanes_type), vectors.SIZE[memory]
    take, combine, start, centered, binary = step.take, step.combine, step.start, step.centered, step.binary
    store, result_size = vectors.STORE[result], vectors.SIZE[result]
    load_lanes, store_lanes = vectors.LOAD[lanes_type], vectors.STORE[lanes_type]
    narrow = vectors.SIZE[result] < 8 and lanes_type == "float64"
    as_result = vectors.as_float32 if narrow else _itself
    width = vectors.SIZE[lanes_type]

    @inlined
    def lanes_of_tile(
        x: Any, y: Any, centers: Any, room: Any, count: Any, first: Any, number: Any, args: Any
    ) -> Any:
        """Adds up the rows of a block in the lanes: `number` columns from x on."""
        run, between, far = args[11], args[12], args[13]
        outer, inner = first // run, first % run
        whole, rest = number >> 4, number & 15
        row_of_lanes = ((number + 15) >> 4) * 16 * width
        for row in range(count):
            shift = outer * far + inner * between
            at = room + (row & 15) * row_of_lanes
            if row < 16:
                for i in range((number + 15) >> 4):
                    store_lanes(at + i * 16 * width, _splat(real(start)))
            for i in range(whole):
                old, here = load_lanes(at + i * 16 * width), shift + i * 16 * size
                center = load_lanes(centers + i * 16 * width) if centered else _splat(real(0))
                x_here = read(x + here, ())
                y_here = read(y + here, ()) if binary else x_here
                store_lanes(at + i * 16 * width, take(old, x_here, y_here, center))
            if rest:
                old, here = load_lanes(at + whole * 16 * width), shift + whole * 16 * size
                center = load_lanes(centers + whole * 16 * width, rest) if centered else _splat(real(0))
                x_here = read(x + here, (rest,))
                y_here = read(y + here, (rest,)) if binary else x_here
                store_lanes(at + whole * 16 * width, take(old, x_here, y_here, center))
            inner += 1
            if inner == run:
                inner = 0
                outer += 1

    @inlined
    def tree(room: Any, used: Any, vectors_in_row: Any) -> Any:
        """Joins the upper half of the lanes to the lower half, until one is left."""
        half = 8
        while half:
            for lane in range(max(0, min(half, used - half))):
                for i in range(vectors_in_row):
                    at = room + (lane * vectors_in_row + i) * 16 * width
                    other = at + half * vectors_in_row * 16 * width
                    store_lanes(at, combine(load_lanes(at), load_lanes(other)))
            used = min(used, half)
            half >>= 1

    @inlined
    def finish(begin: Any, some: Any, room: Any, out: Any, args: Any, divisor: Any) -> None:
        value = finished(load_lanes(room + begin * width), args[14], divisor)
        store(out + begin * result_size, as_result(value), *some)

    def chunk_of_columns(chunk: int, args: Any) -> None:
        columns, blocks, groups = args[5], args[7], args[8]
        group, place = chunk % groups, chunk // groups
        block, outer = place % blocks, place // blocks
        first = block * BLOCK
        count = min(BLOCK, args[6] - first)
        divisor, room = _splat(real(_float64_of_bits(args[15]))), _tile_room()
        for begin in range(group * args[9], min(columns, (group + 1) * args[9]), TILE):
            number = min(TILE, columns - begin)
            shift = outer * args[10] + begin * size
            centers = args[3] + (outer * columns + begin) * width
            lanes_of_tile(args[1] + shift, args[2] + shift, centers, room, count, first, number, args)
            tree(room, min(16, count), (number + 15) >> 4)
            out = args[4] + (place * columns + begin) * result_size
            _for_each_vector(number >> 4, number & 15, finish, (room, out, args, divisor))

    return on_team(
        chunk_of_columns, name=f"columns_{what}_{memory}_{result}".replace(" ", "_"), is_vectorized=True
    )
