"""Copies of runs of elements, as instructions: images with a border of zeros, panels of pixels."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from torch import Tensor

from samebits import _native as native
from samebits._native import instruction
from samebits._native.kernel_threads import OnTeam, on_team
from samebits.arithmetic.product.packing import Transposition
from samebits.arithmetic.product.vectors import Emitter, Number, copied


def clear_run(number: Number) -> Any:
    """Returns the instruction that writes zeros: to an address, a number of elements."""

    @instruction
    def clear(typing_context: Any, target: Any, count: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            target, count = arguments
            emit = Emitter(builder, number)
            rounded = builder.add(count, emit.i64(emit.lanes - 1))
            with native.cgutils.for_range(builder, builder.sdiv(rounded, emit.i64(emit.lanes))) as loop:
                first = builder.mul(loop.index, emit.i64(emit.lanes))
                place = builder.add(target, builder.mul(first, emit.i64(number.size)))
                emit.store(emit.zero(), emit.pointer(place), 0, emit.mask(builder.sub(count, first)))
            return context.get_dummy_value()

        return native.types.void(native.types.int64, native.types.int64), build

    return clear


def copy_shifted(number: Number) -> Any:
    """Returns the instruction that writes a row: it copies a part of it, and the rest is zero.

    Its arguments: the source, where the row's first element would stand; the target; the first element that is copied; the
    first after those; the length of the row.
    """

    @instruction
    def copy(typing_context: Any, source: Any, target: Any, low: Any, high: Any, length: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            source, target, low, high, length = arguments
            emit = Emitter(builder, number)
            rounded = builder.add(length, emit.i64(emit.lanes - 1))
            with native.cgutils.for_range(builder, builder.sdiv(rounded, emit.i64(emit.lanes))) as loop:
                first = builder.mul(loop.index, emit.i64(emit.lanes))
                there = builder.mul(first, emit.i64(number.size))
                below, above = emit.mask(builder.sub(high, first)), emit.mask(builder.sub(low, first))
                mask = builder.and_(below, builder.not_(above))
                value = emit.load(emit.pointer(builder.add(source, there)), 0, mask)
                inside = emit.mask(builder.sub(length, first))
                emit.store(value, emit.pointer(builder.add(target, there)), 0, inside)
            return context.get_dummy_value()

        return native.types.void(*[native.types.int64] * 5), build

    return copy


def copy_shifted_rows(number: Number, most: int) -> Any:
    """Returns the instruction that does what `copy_shifted` does for some rows of up to `most` vectors.

    Its arguments: the source, where the first row's first element would stand, bytes from row to row; the target, bytes
    from row to row; rows; the first element that is copied; the first after those; the length of a row.
    """

    @instruction
    def copy(typing_context: Any, source: Any, step: Any, target: Any, pitch: Any, rows: Any, low: Any, high: Any, length: Any) -> Any:  # fmt: skip
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            source, step, target, pitch, rows, low, high, length = arguments
            emit = Emitter(builder, number)
            width = emit.lanes * number.size
            there = [emit.mask(length, j * emit.lanes) for j in range(most)]
            inside = [
                builder.and_(emit.mask(high, j * emit.lanes), builder.not_(emit.mask(low, j * emit.lanes)))
                for j in range(most)
            ]
            end = builder.append_basic_block("rows_end")
            vectors = builder.sdiv(builder.add(length, emit.i64(emit.lanes - 1)), emit.i64(emit.lanes))
            choice = builder.switch(vectors, end)
            for count in range(1, most + 1):
                block = builder.append_basic_block(f"rows_{count}")
                choice.add_case(emit.i64(count), block)
                builder.position_at_end(block)
                with native.cgutils.for_range(builder, rows) as loop:
                    here = emit.pointer(builder.add(source, builder.mul(loop.index, step)))
                    place = emit.pointer(builder.add(target, builder.mul(loop.index, pitch)))
                    for j in range(count):
                        is_last = j == count - 1
                        value = emit.load(here, j * width, inside[j])
                        emit.store(value, place, j * width, there[j] if is_last else None)
                builder.branch(end)
            builder.position_at_end(end)
            return context.get_dummy_value()

        return native.types.void(*[native.types.int64] * 8), build

    return copy


def gather_rows(number: Number, vectors: int) -> Any:
    """Returns the instruction that copies a run of up to `vectors` vectors for each k, from places of their own.

    Its arguments: the source, a table of int64 offsets to it; the target, bytes from row to row; rows; elements of a run.
    """

    @instruction
    def gather(typing_context: Any, source: Any, table: Any, target: Any, pitch: Any, length: Any, count: Any) -> Any:  # fmt: skip
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            source, table, target, pitch, length, count = arguments
            emit = Emitter(builder, number)
            width = emit.lanes * number.size
            masks = [emit.mask(count, j * emit.lanes) for j in range(vectors)]

            def rows(used: int) -> None:
                with native.cgutils.for_range(builder, length) as loop:
                    entry = emit.pointer(builder.add(table, builder.mul(loop.index, emit.i64(8))))
                    offset = builder.load(emit.at(entry, 0, emit.i64), align=8)
                    here = emit.pointer(builder.add(source, offset))
                    there = emit.pointer(builder.add(target, builder.mul(loop.index, pitch)))
                    for j in range(used):
                        emit.store(emit.load(here, j * width, masks[j]), there, j * width, masks[j])

            with builder.if_else(builder.icmp_signed("<=", count, emit.i64(emit.lanes))) as (short, long):
                with short:
                    rows(1)
                with long:
                    rows(vectors)
            return context.get_dummy_value()

        return native.types.void(*[native.types.int64] * 6), build

    return gather


# Copies between channels first and channels last: each image is a matrix (channels, pixels) that is
# transposed.


WORK = 1 << 15
"""Elements that one thread copies at a time."""


def _transpose_rows(number: Number) -> Any:
    """Returns the instruction that copies up to a vector of rows as columns.

    Its arguments: the source, bytes from row to row; the target, bytes from row to row; columns; rows.
    """

    @instruction
    def transpose(typing_context: Any, source: Any, step: Any, target: Any, pitch: Any, columns: Any, rows: Any) -> Any:  # fmt: skip
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            source, step, target, pitch, columns, rows = arguments
            emit = Emitter(builder, number)
            block, mask = Transposition(emit, step, rows), emit.mask(rows)
            lanes, size = emit.i64(emit.lanes), emit.i64(number.size)
            whole = builder.sdiv(columns, lanes)
            with native.cgutils.for_range(builder, whole) as loop:
                k = builder.mul(loop.index, lanes)
                here = emit.pointer(builder.add(source, builder.mul(k, size)))
                for group in block.parts(here):
                    for vector in group:
                        place = emit.pointer(builder.add(target, builder.mul(k, pitch)))
                        emit.store(vector, place, 0, mask)
                        k = builder.add(k, emit.i64(1))
            done = builder.mul(whole, lanes)
            with native.cgutils.for_range(builder, builder.sub(columns, done)) as loop:
                k = builder.add(done, loop.index)
                here = emit.pointer(builder.add(source, builder.mul(k, size)))
                place = emit.pointer(builder.add(target, builder.mul(k, pitch)))
                emit.store(block.column(here), place, 0, mask)
            return context.get_dummy_value()

        return native.types.void(*[native.types.int64] * 6), build

    return transpose


@lru_cache(maxsize=2)
def _turner(number: Number) -> OnTeam:
    transpose, lanes, size = _transpose_rows(number), number.lanes, number.size

    def work(index: int, args: Any) -> None:
        # args: 1 source, 2 target, 3 matrices, 4 rows, 5 columns, 6 vectors of rows for a chunk
        rows, columns = args[4], args[5]
        blocks = (rows + lanes - 1) // lanes
        for block in range(index * args[6], min(args[3] * blocks, (index + 1) * args[6])):
            matrix, row = block // blocks * rows * columns * size, block % blocks * lanes
            source, target = args[1] + matrix + row * columns * size, args[2] + matrix + row * size
            transpose(source, columns * size, target, rows * size, columns, min(lanes, rows - row))

    return on_team(work, name=f"channels_last_{number.name}")


def turn(source: Tensor, target: Tensor, rows: int, columns: int, number: Number) -> Tensor:
    """Writes each (rows, columns) of a contiguous source to the target as (columns, rows); returns the target."""
    matrices = source.numel() // (rows * columns)
    blocks = matrices * -(-rows // number.lanes)
    each = max(1, WORK // (columns * number.lanes))
    _turner(copied(number))(
        -(-blocks // each), source.data_ptr(), target.data_ptr(), matrices, rows, columns, each
    )
    return target
