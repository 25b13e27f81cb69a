"""Products with few rows, as fast as the second factor is read: nothing of it is packed.

Where its rows are contiguous, some of them are added to the sums of many columns at a time, in the order of
k; where its columns are, square blocks are transposed in registers, so that lanes are columns all the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from samebits import _native as native
from samebits._native import inlined
from samebits._native.kernel_threads import OnTeam, float32_at, on_team, variants
from samebits.arithmetic.product.finish import RESULTS, is_made, row_maker
from samebits.arithmetic.product.instructions import fields_at, procedure, procedure_of_cases
from samebits.arithmetic.product.mxcsr import set_mxcsr
from samebits.arithmetic.product.packing import Transposition
from samebits.arithmetic.product.records import ADDED, FIELDS, MEMORY, PARTS, RECORDS, A, B, C
from samebits.arithmetic.product.scratch import part_of_thread
from samebits.arithmetic.product.tiles import COLUMNS, DIRECT, NEGATIVE_ZERO, register_tile
from samebits.arithmetic.product.vectors import NUMBERS, Emitter, Number

MOST = 4
"""Rows of a product that is as fast as the second factor is read: their sums are computed together."""
DEPTH = 8
"""Rows of the second factor that are read together."""


def add_rows_kernel(number: Number, rows: int, depth: int) -> Any:
    """Returns the instruction that adds `depth` rows of b to the sums of some rows of the product.

    Its arguments: rows; a, from row to row, from k to k; b, from k to k; the sums, from row to row; the
    number of columns.
    """

    def add_rows(emit: Emitter, rows: int, arguments: Sequence[Any]) -> None:
        _add_rows(emit, rows, depth, *arguments)

    return procedure_of_cases(number, f"rows_{depth}", [rows], 9, add_rows)


def _add_rows(
    emit: Emitter,
    rows: int,
    depth: int,
    a: Any,
    am: Any,
    ak: Any,
    b: Any,
    bk: Any,
    t: Any,
    tm: Any,
    columns: Any,
) -> None:
    builder, width = emit.builder, emit.lanes * emit.number.size
    elements = [
        [
            emit.broadcast(
                emit.pointer(
                    builder.add(a, builder.add(builder.mul(am, emit.i64(row)), builder.mul(ak, emit.i64(d))))
                ),
                0,
            )
            for d in range(depth)
        ]
        for row in range(rows)
    ]
    groups = range(-(-depth // 3))
    starts = [emit.pointer(builder.add(b, builder.mul(bk, emit.i64(3 * group)))) for group in groups]
    sums = [emit.pointer(builder.add(t, builder.mul(tm, emit.i64(row)))) for row in range(rows)]

    def step(offset: Any, mask: Any) -> None:
        totals = [emit.load(sums[row], offset, mask) for row in range(rows)]
        pitch = emit.opaque(bk)
        offsets = [emit.i64(0), pitch, builder.mul(pitch, emit.i64(2))]
        for d in range(depth):
            begin = builder.gep(starts[d // 3], [offset])
            values = emit.load(begin, offsets[d % 3], mask)
            totals = [emit.chained(elements[row][d], values, totals[row]) for row in range(rows)]
        for row in range(rows):
            emit.store(totals[row], sums[row], offset, mask)

    whole = builder.sdiv(columns, emit.i64(emit.lanes))
    with native.llvm.for_range(builder, whole) as index:
        step(builder.mul(index, emit.i64(width)), None)
    done = builder.mul(whole, emit.i64(emit.lanes))
    with builder.if_then(builder.icmp_signed("<", done, columns)):
        step(builder.mul(whole, emit.i64(width)), emit.mask(builder.sub(columns, done)))


def columns_kernel(number: Number, rows: int) -> Any:
    """Returns the instruction that multiplies some rows by up to 2 vectors of columns, contiguous along k.

    Its arguments: rows; a, from row to row, from k to k; b, from column to column; the sums, from row to row;
    the length; the number of columns. The sums beyond those columns are of no use.
    """

    def columns(emit: Emitter, rows: int, arguments: Sequence[Any]) -> None:
        _columns(emit, rows, *arguments)

    return procedure_of_cases(number, "columns", [rows], 10, columns)


def _columns(
    emit: Emitter,
    rows: int,
    a: Any,
    am: Any,
    ak: Any,
    b: Any,
    bn: Any,
    t: Any,
    tm: Any,
    length: Any,
    count: Any,
) -> None:
    builder, lanes, size = emit.builder, emit.lanes, emit.number.size
    starts = [emit.pointer(builder.add(a, builder.mul(am, emit.i64(row)))) for row in range(rows)]
    second = builder.icmp_signed(">", count, emit.i64(lanes))
    rest = builder.select(second, builder.sub(count, emit.i64(lanes)), count)
    # Without a second vector of columns the first is computed twice.
    b_second = builder.select(second, builder.add(b, builder.mul(bn, emit.i64(lanes))), b)
    blocks = [Transposition(emit, bn, count), Transposition(emit, bn, rest)]
    begins = [emit.pointer(b), emit.pointer(b_second)]
    places = [emit.pointer(builder.add(t, builder.mul(tm, emit.i64(row)))) for row in range(rows)]
    accumulators = [native.llvm.local(builder, emit.vector) for _ in range(2 * rows)]
    for accumulator in accumulators:
        builder.store(emit.zero(), accumulator)

    def link(j: int, vector: Any, k: Any) -> None:
        for row in range(rows):
            element = emit.broadcast(builder.gep(starts[row], [builder.mul(k, ak)]), 0)
            place = accumulators[2 * row + j]
            builder.store(emit.chained(element, vector, builder.load(place)), place)

    whole = builder.sdiv(length, emit.i64(lanes))
    with native.llvm.for_range(builder, whole) as index:
        begin = builder.mul(index, emit.i64(lanes))
        offset = builder.mul(begin, emit.i64(size))
        for j in range(2):
            vectors = itertools.chain(*blocks[j].parts(builder.gep(begins[j], [offset])))
            for step, vector in enumerate(vectors):
                link(j, vector, builder.add(begin, emit.i64(step)))
    done = builder.mul(whole, emit.i64(lanes))
    with native.llvm.for_range(builder, builder.sub(length, done)) as index:
        k = builder.add(done, index)
        for j in range(2):
            link(j, blocks[j].column(builder.gep(begins[j], [builder.mul(k, emit.i64(size))])), k)
    for row, place in enumerate(places):
        for j in range(2):
            emit.store(builder.load(accumulators[2 * row + j]), place, j * lanes * size)


def add_sums_kernel(number: Number) -> Any:
    """Returns the instruction that adds c (or -0) to a row of sums, and self (or -0) to that, and writes c.

    Its arguments: the sums; c; self; the number of columns; is c added; is self.
    """

    def add_sums(emit: Emitter, t: Any, c: Any, s: Any, columns: Any, old: Any, own: Any) -> None:
        builder = emit.builder
        nothing = NEGATIVE_ZERO[number.size]
        sums, place, added = emit.pointer(t), emit.pointer(c), emit.pointer(s)
        step = emit.i64(emit.lanes)
        vectors = builder.sdiv(builder.add(columns, emit.i64(emit.lanes - 1)), step)
        with native.llvm.for_range(builder, vectors) as index:
            left = builder.sub(columns, builder.mul(index, step))
            offset = builder.mul(index, emit.i64(emit.lanes * number.size))
            value = emit.load(sums, offset)
            for where, is_added in ((place, old), (added, own)):
                mask = emit.mask(builder.mul(left, is_added))
                value = builder.fadd(emit.load(where, offset, mask, nothing), value)
            emit.store(emit.plain(value), place, offset, emit.mask(left))

    return procedure(number, add_sums)


@variants(
    number=NUMBERS.values(), dtype=RESULTS, rows=range(1, MOST + 1), order=(DIRECT, COLUMNS), only=is_made
)
def few(number: Number, dtype: torch.dtype, rows: int, order: int) -> OnTeam:
    """Returns the kernel of products with that number of rows; its arguments are those of `tiled`.

    `order`: what is contiguous in the second factor, its rows (DIRECT) or its COLUMNS. Each is a kernel of
    its own, as most programs need one or two, and each takes time to compile.
    """
    size, chunk, wide = number.size, register_tile(number).chunk, 2 * number.lanes
    depth = DEPTH if rows <= 2 else DEPTH // 2
    add_rows, add_row = add_rows_kernel(number, rows, depth), add_rows_kernel(number, rows, 1)
    columns, add_sums, make_row = (columns_kernel(number, rows), add_sums_kernel(number), row_maker(dtype))
    read = fields_at(*RECORDS)

    @inlined
    def by_rows(t: Any, tm: Any, a: Any, am: Any, ak: Any, b: Any, bk: Any, n: Any, length: Any) -> None:
        whole = length // depth * depth
        for k in range(0, whole, depth):
            add_rows(rows, a + k * ak, am, ak, b + k * bk, bk, t, tm, n)
        for k in range(whole, length):
            add_row(rows, a + k * ak, am, ak, b + k * bk, bk, t, tm, n)

    def work(index: int, args: Any) -> None:
        f = read(args[FIELDS])
        before = set_mxcsr(f.mxcsr)
        am, ak, bk, bn, cm, sm, plane = f.am, f.ak, f.bk, f.bn, f.cm, f.sm, f.plane
        pitch = ((f.tile_n + wide - 1) // wide * wide) * size
        is_final = f.is_final != 0
        t = part_of_thread(args[MEMORY], args[PARTS], f.memory)
        sums = t + rows * pitch
        if is_final:  # the sums become the result as soon as they are complete
            cm = pitch
        part = index % f.parts
        j0 = index // f.parts % f.grid_n * f.tile_n
        first = index // f.parts // f.grid_n * f.items
        n = min(f.tile_n, f.n - j0)
        k_begin, k_end = part * f.part_k * chunk, min(f.k, (part + 1) * f.part_k * chunk)
        for item in range(first, min(first + f.items, f.batch)):
            a0 = args[A] + item * f.a_item
            b0 = args[B] + item * f.b_item + j0 * bn
            c0 = args[C] + item * f.c_item + j0 * size
            s0 = args[ADDED] + item * f.self_item + j0 * size
            # Columns that are contiguous along k are read to their end, some at a time; rows chunk by chunk.
            width = n if order == DIRECT else wide
            for j in range(0, n, width):
                count = min(width, n - j)
                for k0 in range(k_begin, k_end, chunk):
                    length = min(chunk, f.k - k0)
                    a, b = a0 + k0 * ak, b0 + k0 * bk + j * bn
                    if order == DIRECT:
                        for i in range(rows):
                            clear = native.carray(float32_at(t + i * pitch), (count * size // 4,))
                            for x in range(count * size // 4):
                                clear[x] = 0
                        by_rows(t, pitch, a, am, ak, b, bk, count, length)
                    else:
                        columns(rows, a, am, ak, b, bn, t, pitch, length, count)
                    is_old = 1 if k0 > k_begin and plane == 0 else 0
                    is_own = 1 if f.is_adding != 0 and k0 + length == f.k else 0
                    c, s = sums if is_final else c0 + k0 // chunk * plane + j * size, s0 + j * size
                    for row in range(rows):
                        add_sums(t + row * pitch, c + row * cm, s + row * sm, count, is_old, is_own)
                if is_final:
                    for row in range(rows):
                        make_row(args, f, item, row, j0 + j, sums + row * cm, count)
        set_mxcsr(before)

    return on_team(work, name=f"few_rows_{number.name}_{dtype}_{rows}_{order}", is_vectorized=True)
