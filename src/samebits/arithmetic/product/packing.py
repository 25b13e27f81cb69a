"""Copies of parts of a factor as a tile reads them: some columns side by side, for each k of a chunk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, dtype

from samebits import _native as native
from samebits._native.vector_writer import features
from samebits.arithmetic.product.instructions import procedure
from samebits.arithmetic.product.vectors import BFLOAT16, Emitter, Number


def copy_rows(number: Number, vectors: int) -> Any:
    """Returns the instruction that copies rows of up to `vectors` vectors, with zeros beyond `columns`.

    Its arguments: the source, bytes from row to row; the target, bytes from row to row; length; columns.
    """

    def copy(
        emit: Emitter, source: Any, step: Any, target: Any, pitch: Any, length: Any, columns: Any
    ) -> None:
        builder = emit.builder
        width = emit.lanes * number.size
        masks = [emit.mask(columns, j * emit.lanes) for j in range(vectors)]
        with native.llvm.for_range(builder, length) as index:
            here = emit.pointer(builder.add(source, builder.mul(index, step)))
            there = emit.pointer(builder.add(target, builder.mul(index, pitch)))
            for j in range(vectors):
                emit.store(emit.load(here, j * width, masks[j]), there, j * width)

    return procedure(number, copy)


STRIPS = 4
"""Strips of contiguous rows that are packed together: a page is visited once for all of them."""


def copy_strips(number: Number, rows: int) -> Any:
    """Returns the instruction that copies strips of `rows` contiguous rows; a vector of rows follows.

    Its arguments: the source, bytes from k to k (of pairs: from pair to pair); the target, bytes from k to k,
    bytes from strip to strip; the length.
    """

    def copy(emit: Emitter, source: Any, step: Any, target: Any, pitch: Any, strip: Any, length: Any) -> None:
        builder = emit.builder
        width = emit.lanes * number.size
        half = builder.sdiv(step, emit.i64(2))
        with native.llvm.for_range(builder, length) as index:
            here = emit.pointer(builder.add(source, builder.mul(index, step)))
            there = builder.add(target, builder.mul(index, pitch))
            for one in range(STRIPS):
                place = emit.pointer(builder.add(there, builder.mul(strip, emit.i64(one))))
                for j in range(-(-rows // emit.lanes)):
                    first = one * rows + j * emit.lanes
                    if number is BFLOAT16:
                        value = _interleaved(emit, _short(emit), here, half, emit.i64(first))
                    else:
                        value = emit.load(here, first * number.size)
                    emit.store(value, place, j * width)

    return procedure(number, copy)


def interleave_rows(number: Number, vectors: int) -> Any:
    """Returns the instruction that copies `length` pairs of rows of 16-bit numbers as rows of pairs.

    Its arguments are those of `copy_rows`: bytes from pair to pair; what is beyond `columns` is not written.
    """

    def copy(
        emit: Emitter, source: Any, step: Any, target: Any, pitch: Any, length: Any, columns: Any
    ) -> None:
        builder = emit.builder
        half = builder.sdiv(step, emit.i64(2))
        whole = builder.sdiv(columns, emit.i64(emit.lanes))
        done = builder.mul(whole, emit.i64(emit.lanes))
        is_rest, mask = builder.icmp_signed("<", done, columns), emit.mask(builder.sub(columns, done))
        with native.llvm.for_range(builder, length) as index:
            here = emit.pointer(builder.add(source, builder.mul(index, step)))
            there = emit.pointer(builder.add(target, builder.mul(index, pitch)))
            with native.llvm.for_range(builder, whole) as inner:
                first = builder.mul(inner, emit.i64(emit.lanes))
                pairs = _interleaved(emit, _short(emit), here, half, first)
                emit.store(pairs, there, builder.mul(first, emit.i64(4)))
            if "avx512bw" in features():  # a load of some elements of 16 bits
                with builder.if_then(is_rest):
                    pairs = _interleaved(emit, _short(emit), here, half, done, mask)
                    emit.store(pairs, there, builder.mul(done, emit.i64(4)), mask)
            else:
                with native.llvm.for_range(builder, columns, start=done) as one:
                    pair = _interleaved(emit, native.ir.IntType(16), here, half, one)
                    builder.store(pair, emit.at(there, builder.mul(one, emit.i64(4)), emit.word), align=4)

    return procedure(number, copy)


def _short(emit: Emitter) -> Any:
    """A vector of 16-bit numbers, one for each lane."""
    return native.ir.VectorType(native.ir.IntType(16), emit.lanes)


def _interleaved(emit: Emitter, kind: Any, here: Any, half: Any, first: Any, mask: Any = None) -> Any:
    """The pairs of columns from `first` on (of those of a mask); the low half is the even row's number."""
    builder = emit.builder
    wide = emit.words if hasattr(kind, "count") else emit.word
    offset = builder.mul(first, emit.i64(2))
    places = [emit.at(builder.gep(row, [offset]), 0, kind) for row in (here, builder.gep(here, [half]))]
    if mask is None:
        loaded = [builder.load(place, align=2) for place in places]
    else:
        nothing = native.ir.Constant(kind, [0] * emit.lanes)
        name = f"llvm.masked.load.v{emit.lanes}i16.p0"
        loaded = [emit.call(name, kind, place, emit.i32(2), mask, nothing) for place in places]
    even, odd = (builder.zext(numbers, wide) for numbers in loaded)
    shift = emit.constant(16) if wide is emit.words else emit.word(16)
    pairs = builder.or_(builder.shl(odd, shift), even)
    return builder.bitcast(pairs, emit.vector) if wide is emit.words else pairs


class Transposition:
    """A square block of rows (columns to be) that are contiguous along k, as vectors over its rows."""

    def __init__(self, emit: Emitter, step: Any, rows: Any) -> None:
        """`step`: bytes from row to row; rows from the number `rows` on are read as the last one before."""
        self._emit = emit
        builder = emit.builder
        last = builder.sub(rows, emit.i64(1))
        self._offsets = []
        for row in range(emit.lanes):
            there = builder.icmp_signed("<", emit.i64(row), last)
            self._offsets.append(builder.mul(builder.select(there, emit.i64(row), last), step))

    def parts(self, pointer: Any) -> Iterator[list[Any]]:
        """Yields the block's vectors, one for each k, in groups of those that 128 bits of a row hold.

        All of a row's line is read before the next row's: lines of many rows may share a place in the cache.
        """
        emit = self._emit
        lanes = emit.lanes
        part = 16 // emit.number.size
        short = native.ir.VectorType(emit.scalar, part)
        begins = range(0, lanes, part)
        rows: dict[int, list[Any]] = {begin: [] for begin in begins}
        for row in range(part):
            made: dict[int, Any] = {}
            for within in begins:
                place = emit.builder.gep(pointer, [self._offsets[within + row]])
                for begin in begins:
                    piece = emit.builder.load(emit.at(place, begin * emit.number.size, short), align=1)
                    made[begin] = _inserted(emit, made.get(begin), piece, within)
            for begin in begins:
                rows[begin].append(made[begin])
        for begin in begins:
            yield _transposed(emit, rows[begin])

    def column(self, pointer: Any) -> Any:
        """The vector of one k, element by element."""
        emit = self._emit
        vector: Any = native.ir.Constant(emit.vector, native.ir.Undefined)
        for row, offset in enumerate(self._offsets):
            element = emit.builder.load(emit.at(pointer, offset, emit.scalar), align=1)
            vector = emit.builder.insert_element(vector, element, emit.i32(row))
        return vector


def _inserted(emit: Emitter, vector: Any, piece: Any, lane: int) -> Any:
    """The vector with 128 bits of it, from `lane` on, replaced; None: a vector of unknown other bits."""
    part, lanes = piece.type.count, emit.lanes
    wide = emit.shuffled(piece, piece, [min(i, part - 1) for i in range(lanes)])
    if vector is None:
        return wide
    return emit.shuffled(
        vector, wide, [lanes + i - lane if lane <= i < lane + part else i for i in range(lanes)]
    )


def _transposed(emit: Emitter, rows: list[Any]) -> list[Any]:
    """Transposes the square blocks that stand in the 128-bit parts of some vectors."""
    lanes, part = emit.lanes, len(rows)
    if part == 2:
        picks = [[i + j * lanes for i in range(k, lanes, 2) for j in range(2)] for k in range(2)]
        return [emit.shuffled(rows[0], rows[1], pick) for pick in picks]
    low = [i + x + y * lanes for i in range(0, lanes, 4) for x in (0, 1) for y in (0, 1)]
    high = [i + x + y * lanes for i in range(0, lanes, 4) for x in (2, 3) for y in (0, 1)]
    first = [emit.shuffled(rows[0], rows[1], low), emit.shuffled(rows[0], rows[1], high)]
    second = [emit.shuffled(rows[2], rows[3], low), emit.shuffled(rows[2], rows[3], high)]
    front = [i + x + y * lanes for i in range(0, lanes, 4) for y in (0, 1) for x in (0, 1)]
    back = [i + x + y * lanes for i in range(0, lanes, 4) for y in (0, 1) for x in (2, 3)]
    return [
        emit.shuffled(one, two, pick)
        for one, two in zip(first, second, strict=True)
        for pick in (front, back)
    ]


def transpose_panel(number: Number) -> Any:
    """Returns the instruction that copies up to a vector of columns, contiguous along k, as a row for each k.

    Its arguments: the source, bytes from column to column; the target, bytes from k to k; the length along k,
    a multiple of a vector; the number of columns (the vector's other lanes repeat the last one).
    """

    def transpose(
        emit: Emitter, source: Any, step: Any, target: Any, pitch: Any, length: Any, columns: Any
    ) -> None:
        builder = emit.builder
        block = Transposition(emit, step, columns)
        size = emit.i64(emit.lanes * number.size)
        with native.llvm.for_range(builder, builder.sdiv(length, emit.i64(emit.lanes))) as index:
            here = emit.pointer(builder.add(source, builder.mul(index, size)))
            k = builder.mul(index, emit.i64(emit.lanes))
            for group in block.parts(here):
                for vector in group:
                    place = emit.pointer(builder.add(target, builder.mul(k, pitch)))
                    emit.store(vector, place, 0)
                    k = builder.add(k, emit.i64(1))

    return procedure(number, transpose)


def copy_element(number: Number) -> Any:
    """Returns the instruction that copies one element from an address to another."""

    def copy(emit: Emitter, source: Any, target: Any) -> None:
        builder = emit.builder
        value = builder.load(emit.at(emit.pointer(source), 0, emit.word), align=1)
        builder.store(value, emit.at(emit.pointer(target), 0, emit.word), align=1)

    return procedure(number, copy)


def two_by_two(x: Tensor, pair: dtype) -> Tensor:
    """Returns the elements of contiguous `x`, an even number, as a row of pairs, of a type of twice the size.

    A view, but a copy from an odd offset of its memory on, where torch views none.
    """
    row = x.view(-1)
    return (row.clone() if row.storage_offset() % 2 else row).view(pair)
