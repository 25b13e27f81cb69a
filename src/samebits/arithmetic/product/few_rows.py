"""Products with few rows, as fast as the second factor is read: nothing of it is packed.

Where its rows are contiguous, some of them are added to the sums of many columns at a time, in the order of k; where
its columns are, square blocks are transposed in registers, so that lanes are columns all the same.
"""

from __future__ import annotations

import itertools
from functools import lru_cache
from typing import Any

import torch

from samebits import _native as native
from samebits._native import inlined, instruction
from samebits._native.kernel_threads import OnTeam, float32_at, int64_at, on_team
from samebits.arithmetic.product.finish import row_finisher
from samebits.arithmetic.product.mxcsr import set_mxcsr
from samebits.arithmetic.product.packing import Transposition
from samebits.arithmetic.product.scratch import part_of_thread
from samebits.arithmetic.product.tiles import NEGATIVE_ZERO, register_tile
from samebits.arithmetic.product.vectors import Emitter, Number

MOST = 4
"""Rows whose sums are computed together."""
DEPTH = 8
"""Rows of the second factor that are read together."""


def _depth(rows: int) -> int:
    return DEPTH if rows <= 2 else DEPTH // 2


def _cases(builder: Any, rows: Any, call: Any) -> None:
    """Calls the function of a number of rows."""
    end = builder.append_basic_block("few_end")
    choice = builder.switch(rows, end)
    for count in range(1, MOST + 1):
        block = builder.append_basic_block(f"few_{count}")
        choice.add_case(native.ir.IntType(64)(count), block)
        builder.position_at_end(block)
        call(builder, count)
        builder.branch(end)
    builder.position_at_end(end)


def _function(module: Any, name: str, arguments: int) -> Any:
    """A function of integers that is not inlined, and its builder."""
    ir = native.ir
    kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * arguments)
    function = native.cgutils.get_or_insert_function(module, kind, name)
    if function.blocks:
        return function, None
    function.linkage = "internal"
    function.attributes.add("noinline")
    return function, ir.IRBuilder(function.append_basic_block("entry"))


def add_rows_kernel(number: Number, depth: int | None = None) -> Any:
    """Returns the instruction that adds some rows of b to the sums of up to 4 rows of the product.

    Its arguments: rows; a, from row to row, from k to k; b, from k to k; the sums, from row to row; the number of
    columns. `depth`: rows of b; None: as many as suit the number of rows.
    """

    @instruction
    def add_rows(typing_context: Any, rows: Any, a: Any, am: Any, ak: Any, b: Any, bk: Any, t: Any, tm: Any, columns: Any) -> Any:  # fmt: skip
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            def call(builder: Any, count: int) -> None:
                deep = depth or _depth(count)
                name = f"samebits_rows_{number.name}_{count}_{deep}"
                function, inside = _function(builder.module, name, 8)
                if inside:
                    _add_rows(Emitter(inside, number), count, deep, *function.args)
                builder.call(function, arguments[1:])

            _cases(builder, arguments[0], call)
            return context.get_dummy_value()

        return native.types.void(*[native.types.int64] * 9), build

    return add_rows


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
    with native.cgutils.for_range(builder, whole) as loop:
        step(builder.mul(loop.index, emit.i64(width)), None)
    done = builder.mul(whole, emit.i64(emit.lanes))
    with builder.if_then(builder.icmp_signed("<", done, columns)):
        step(builder.mul(whole, emit.i64(width)), emit.mask(builder.sub(columns, done)))
    builder.ret_void()


def columns_kernel(number: Number) -> Any:
    """Returns the instruction that multiplies up to 4 rows by up to 2 vectors of columns, each contiguous along k.

    Its arguments: rows; a, from row to row, from k to k; b, from column to column; the sums, from row to row; the
    length; the number of columns. The sums beyond those columns are of no use.
    """

    @instruction
    def columns(typing_context: Any, rows: Any, a: Any, am: Any, ak: Any, b: Any, bn: Any, t: Any, tm: Any, length: Any, count: Any) -> Any:  # fmt: skip
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            def call(builder: Any, count: int) -> None:
                name = f"samebits_columns_{number.name}_{count}"
                function, inside = _function(builder.module, name, 9)
                if inside:
                    _columns(Emitter(inside, number), count, *function.args)
                builder.call(function, arguments[1:])

            _cases(builder, arguments[0], call)
            return context.get_dummy_value()

        return native.types.void(*[native.types.int64] * 10), build

    return columns


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
    accumulators = [native.cgutils.alloca_once_value(builder, emit.zero()) for _ in range(2 * rows)]

    def link(j: int, vector: Any, k: Any) -> None:
        for row in range(rows):
            element = emit.broadcast(builder.gep(starts[row], [builder.mul(k, ak)]), 0)
            place = accumulators[2 * row + j]
            builder.store(emit.chained(element, vector, builder.load(place)), place)

    whole = builder.sdiv(length, emit.i64(lanes))
    with native.cgutils.for_range(builder, whole) as loop:
        begin = builder.mul(loop.index, emit.i64(lanes))
        offset = builder.mul(begin, emit.i64(size))
        for j in range(2):
            vectors = itertools.chain(*blocks[j].parts(builder.gep(begins[j], [offset])))
            for step, vector in enumerate(vectors):
                link(j, vector, builder.add(begin, emit.i64(step)))
    done = builder.mul(whole, emit.i64(lanes))
    with native.cgutils.for_range(builder, builder.sub(length, done)) as loop:
        k = builder.add(done, loop.index)
        for j in range(2):
            link(j, blocks[j].column(builder.gep(begins[j], [builder.mul(k, emit.i64(size))])), k)
    for row, place in enumerate(places):
        for j in range(2):
            emit.store(builder.load(accumulators[2 * row + j]), place, j * lanes * size)
    builder.ret_void()


def add_sums_kernel(number: Number) -> Any:
    """Returns the instruction that adds a row of sums to c, and self to that, where they are to be added; else -0.

    Its arguments: the sums; c; self; the number of columns; is c added; is self.
    """

    @instruction
    def add_sums(typing_context: Any, t: Any, c: Any, s: Any, columns: Any, old: Any, own: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            t, c, s, columns, old, own = arguments
            emit = Emitter(builder, number)
            nothing = NEGATIVE_ZERO[number.size]
            sums, place, added = emit.pointer(t), emit.pointer(c), emit.pointer(s)
            step = emit.i64(emit.lanes)
            vectors = builder.sdiv(builder.add(columns, emit.i64(emit.lanes - 1)), step)
            with native.cgutils.for_range(builder, vectors) as loop:
                left = builder.sub(columns, builder.mul(loop.index, step))
                offset = builder.mul(loop.index, emit.i64(emit.lanes * number.size))
                value = emit.load(sums, offset)
                for where, is_added in ((place, old), (added, own)):
                    mask = emit.mask(builder.mul(left, is_added))
                    value = builder.fadd(emit.load(where, offset, mask, nothing), value)
                emit.store(emit.plain(value), place, offset, emit.mask(left))
            return context.get_dummy_value()

        return native.types.void(*[native.types.int64] * 6), build

    return add_sums


@lru_cache(maxsize=4)
def few(number: Number, dtype: torch.dtype) -> OnTeam:
    """Returns the kernel of products with few rows; its arguments are those of `tiled`."""
    size, chunk, wide = number.size, register_tile(number).chunk, 2 * number.lanes
    add_rows, add_row = add_rows_kernel(number), add_rows_kernel(number, 1)
    columns, add_sums, finish_row = columns_kernel(number), add_sums_kernel(number), row_finisher(dtype)

    @inlined
    def by_rows(
        t: Any, tm: Any, m: Any, a: Any, am: Any, ak: Any, b: Any, bk: Any, n: Any, length: Any
    ) -> None:
        k = 0
        while k < length:
            deep = DEPTH if k + DEPTH <= length else 1
            for row in range(0, m, MOST):
                rows = min(MOST, m - row)
                if deep == 1:
                    add_row(rows, a + row * am + k * ak, am, ak, b + k * bk, bk, t + row * tm, tm, n)
                else:
                    add_rows(rows, a + row * am + k * ak, am, ak, b + k * bk, bk, t + row * tm, tm, n)
                    if rows > 2:
                        half = k + DEPTH // 2
                        add_rows(
                            rows, a + row * am + half * ak, am, ak, b + half * bk, bk, t + row * tm, tm, n
                        )
            k += deep

    def work(index: int, args: Any) -> None:
        plan = native.carray(int64_at(args[5]), (40,))
        before = set_mxcsr(plan[0])
        m, n_all, k_all, batch = plan[2], plan[3], plan[4], plan[5]
        am, ak, bk, bn, cm, sm = plan[6], plan[7], plan[8], plan[9], plan[10], plan[11]
        tile_n, grid_n, items = plan[17], plan[19], plan[20]
        pack_b, part_k, parts, plane, is_adding = plan[22], plan[23], plan[24], plan[25], plan[26]
        pitch = ((tile_n + wide - 1) // wide * wide) * size
        is_final = plan[28] != 0
        t = part_of_thread(args[7], args[8], plan[1])
        sums = t + m * pitch
        if is_final:  # the sums become the result as soon as they are complete
            cm = pitch
        part = index % parts
        j0 = index // parts % grid_n * tile_n
        first = index // parts // grid_n * items
        n = min(tile_n, n_all - j0)
        k_begin, k_end = part * part_k * chunk, min(k_all, (part + 1) * part_k * chunk)
        for item in range(first, min(first + items, batch)):
            a0 = args[1] + item * plan[12]
            b0 = args[2] + item * plan[13] + j0 * bn
            c0 = args[3] + item * plan[14] + j0 * size
            s0 = args[4] + item * plan[15] + j0 * size
            # Columns that are contiguous along k are read to their end, some of them at a time; rows chunk by chunk.
            width = n if pack_b == 0 else wide
            for j in range(0, n, width):
                count = min(width, n - j)
                for k0 in range(k_begin, k_end, chunk):
                    length = min(chunk, k_all - k0)
                    a, b = a0 + k0 * ak, b0 + k0 * bk + j * bn
                    if pack_b == 0:
                        for i in range(m):
                            clear = native.carray(float32_at(t + i * pitch), (count * size // 4,))
                            for x in range(count * size // 4):
                                clear[x] = 0
                        by_rows(t, pitch, m, a, am, ak, b, bk, count, length)
                    else:
                        for row in range(0, m, MOST):
                            rows = min(MOST, m - row)
                            columns(rows, a + row * am, am, ak, b, bn, t + row * pitch, pitch, length, count)
                    is_old = 1 if k0 > k_begin and plane == 0 else 0
                    is_own = 1 if is_adding != 0 and k0 + length == k_all else 0
                    c, s = sums if is_final else c0 + k0 // chunk * plane + j * size, s0 + j * size
                    for row in range(m):
                        add_sums(t + row * pitch, c + row * cm, s + row * sm, count, is_old, is_own)
                if is_final:
                    for row in range(m):
                        out = args[3] + item * plan[29] + row * plan[30] + (j0 + j) * plan[31]
                        own_row = args[4] + item * plan[32] + row * plan[33] + (j0 + j) * plan[34]
                        finish_row(
                            sums + row * cm, out, plan[31], own_row, plan[34], plan[35], args[6], count
                        )
        set_mxcsr(before)

    return on_team(work, name=f"few_rows_{number.name}_{dtype}")
