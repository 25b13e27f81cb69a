"""Copies of images: of some pixels to panels, and between channels first and channels last."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from samebits import _native as native
from samebits._native.kernel_threads import OnTeam, on_team, variants
from samebits.arithmetic.product.instructions import procedure
from samebits.arithmetic.product.packing import Transposition
from samebits.arithmetic.product.vectors import FLOAT32, FLOAT64, Emitter, Number, copied


def gather_rows(number: Number, vectors: int) -> Any:
    """Returns the instruction that copies a run of up to `vectors` vectors for each k.

    Its arguments: the source, a table of int64 offsets to it; the target, bytes from row to row; rows;
    elements of a run.
    """

    def gather(
        emit: Emitter, source: Any, table: Any, target: Any, pitch: Any, length: Any, count: Any
    ) -> None:
        builder = emit.builder
        width = emit.lanes * number.size
        masks = [emit.mask(count, j * emit.lanes) for j in range(vectors)]

        def rows(used: int) -> None:
            with native.llvm.for_range(builder, length) as index:
                entry = emit.pointer(builder.add(table, builder.mul(index, emit.i64(8))))
                offset = builder.load(emit.at(entry, 0, emit.i64), align=8)
                here = emit.pointer(builder.add(source, offset))
                there = emit.pointer(builder.add(target, builder.mul(index, pitch)))
                for j in range(used):
                    emit.store(emit.load(here, j * width, masks[j]), there, j * width, masks[j])

        with builder.if_else(builder.icmp_signed("<=", count, emit.i64(emit.lanes))) as (short, long):
            with short:
                rows(1)
            with long:
                rows(vectors)

    return procedure(number, gather)


# Copies between channels first and channels last: each image is a matrix (channels, pixels) that is
# transposed.


WORK = 1 << 15
"""Elements that one thread copies at a time."""


def _transpose_rows(number: Number) -> Any:
    """Returns the instruction that copies up to a vector of rows as columns.

    Its arguments: the source, bytes from row to row; the target, bytes from row to row; columns; rows.
    """

    def transpose(
        emit: Emitter, source: Any, step: Any, target: Any, pitch: Any, columns: Any, rows: Any
    ) -> None:
        builder = emit.builder
        block, mask = Transposition(emit, step, rows), emit.mask(rows)
        lanes, size = emit.i64(emit.lanes), emit.i64(number.size)
        whole = builder.sdiv(columns, lanes)
        with native.llvm.for_range(builder, whole) as index:
            k = builder.mul(index, lanes)
            here = emit.pointer(builder.add(source, builder.mul(k, size)))
            for group in block.parts(here):
                for vector in group:
                    place = emit.pointer(builder.add(target, builder.mul(k, pitch)))
                    emit.store(vector, place, 0, mask)
                    k = builder.add(k, emit.i64(1))
        done = builder.mul(whole, lanes)
        with native.llvm.for_range(builder, builder.sub(columns, done)) as index:
            k = builder.add(done, index)
            here = emit.pointer(builder.add(source, builder.mul(k, size)))
            place = emit.pointer(builder.add(target, builder.mul(k, pitch)))
            emit.store(block.column(here), place, 0, mask)

    return procedure(number, transpose)


@variants(number=(FLOAT32, FLOAT64))
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

    return on_team(work, name=f"channels_last_{number.name}", is_vectorized=True)


def turn(source: Tensor, target: Tensor, rows: int, columns: int, number: Number) -> Tensor:
    """Writes each (rows, columns) of a contiguous source as (columns, rows); returns the target."""
    matrices = source.numel() // (rows * columns)
    blocks = matrices * -(-rows // number.lanes)
    each = max(1, WORK // (columns * number.lanes))
    _turner(copied(number))(
        -(-blocks // each), source.data_ptr(), target.data_ptr(), matrices, rows, columns, each
    )
    return target
