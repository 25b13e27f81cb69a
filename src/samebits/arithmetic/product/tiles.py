"""The product in tiles: parts of a factor packed where that pays, every tile's chain in registers, on torch's threads.

A tile of the output is one chunk of work (of the threads, not of the sum): some rows and columns of one matrix of the
batch, or several whole small ones. How an output is cut has no influence on its bits, so it may follow the CPU and the
number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch

from samebits import _native as native
from samebits._native import inlined, instruction
from samebits._native.kernel_threads import OnTeam, int64_at, on_team
from samebits.arithmetic.product.finish import row_finisher
from samebits.arithmetic.product.mxcsr import set_mxcsr
from samebits.arithmetic.product.packing import (
    STRIPS,
    copy_element,
    copy_rows,
    copy_strips,
    interleave_rows,
    transpose_panel,
)
from samebits.arithmetic.product.scratch import part_of_thread
from samebits.arithmetic.product.vectors import BFLOAT16, Emitter, Number

# The kernel of one tile of a product: some rows, some vectors of columns, and one chunk of the inner
# dimension.
#
# Its accumulators stay in registers: one chain of fused multiply-adds for each output, in the order of k,
# from zero.


NEGATIVE_ZERO = {4: 1 << 31, 8: 1 << 63}
"""The bits of -0, which changes no number that it is added to, -0 neither."""


def counts(most: int) -> list[int]:
    """Returns the numbers of rows for which there is a kernel (each costs time to compile): with few, sums wait for sums."""
    return [rows for rows in (1, 2, 3, 4, 6, 8, 12) if rows <= most]


def tile_kernel(number: Number, most: int, vectors: int) -> Any:
    """Returns the instruction that computes a tile of one of the `counts(most)` of rows and up to `vectors` vectors of columns.

    Its arguments, addresses and strides in bytes: rows; a, from row to row, from k to k; b, from k to k (columns stand
    side by side, whole vectors of them, whatever the number of columns); c, from row to row; self, from row to row; the length of the chunk (at least 1); the number of
    columns; of how many of them c is added to (all or none); to how many self is added (all or none).
    """

    @instruction
    def tile(typing_context: Any, rows: Any, a: Any, am: Any, ak: Any, b: Any, bk: Any, c: Any, cm: Any, s: Any, sm: Any, length: Any, columns: Any, old: Any, own: Any) -> Any:  # fmt: skip
        return tile_of_rows(number, most, f"tile_{vectors}", 14, build)

    def build(emit: Emitter, rows: int, arguments: Sequence[Any]) -> None:
        a, am, ak, b, bk, c, cm, s, sm, length, columns, old, own = arguments
        steps = [ak] * -(-rows // 3) + [bk]
        begins = [*row_pointers(emit, a, am, rows), emit.pointer(b)]
        sums = chain(emit, rows, vectors, am, length, begins, steps, lambda here: (here[:-1], here[-1]))

        def selves() -> list[Any]:
            masks, width = emit.column_masks(own, vectors), emit.lanes * number.size
            places = [
                emit.pointer(emit.builder.add(s, emit.builder.mul(sm, emit.i64(row)))) for row in range(rows)
            ]
            nothing = NEGATIVE_ZERO[number.size]
            return [
                emit.load(place, j * width, masks[j], nothing) for place in places for j in range(vectors)
            ]

        finish_tile(emit, vectors, sums, c, cm, columns, old, own, selves)

    return tile


def tile_of_rows(
    number: Number,
    most: int,
    name: str,
    count: int,
    build: Callable[[Emitter, int, Sequence[Any]], None],
) -> tuple[Any, Any]:
    """Returns the type of an instruction with `count` integers, and what builds it: the first says which tile it calls.

    There is a tile for each of the `counts(most)` of rows, a function of its own, so that no register holds anything
    else. `build` writes its instructions, from the other arguments.
    """
    ir = native.ir

    def function(module: Any, rows: int) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * (count - 1))
        made = native.cgutils.get_or_insert_function(module, kind, f"samebits_{number.name}_{name}_{rows}")
        if made.is_declaration:
            made.linkage = "internal"
            made.attributes.add("noinline")
            builder = ir.IRBuilder(made.append_basic_block("entry"))
            build(Emitter(builder, number), rows, made.args)
            builder.ret_void()
        return made

    def call(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        end = builder.append_basic_block("tile_end")
        choice = builder.switch(arguments[0], end)
        for rows in counts(most):
            block = builder.append_basic_block(f"tile_{rows}")
            choice.add_case(ir.IntType(64)(rows), block)
            builder.position_at_end(block)
            builder.call(function(builder.module, rows), arguments[1:])
            builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return native.types.void(*[native.types.int64] * count), call


def row_pointers(emit: Emitter, a: Any, am: Any, rows: int) -> list[Any]:
    """Returns where every third row of the first factor begins."""
    builder = emit.builder
    return [emit.pointer(builder.add(a, builder.mul(am, emit.i64(row)))) for row in range(0, rows, 3)]


def chain(
    emit: Emitter,
    rows: int,
    vectors: int,
    am: Any,
    length: Any,
    begins: list[Any],
    steps: list[Any],
    factors: Callable[[list[Any]], tuple[list[Any], Any]],
) -> list[Any]:
    """Writes the loop over a chunk, and returns the accumulators, row by row.

    `begins`: pointers that go on by `steps` bytes from k to k; of those of one k `factors` returns the `row_pointers` of
    the first factor, and the place of the second.
    """
    builder, width = emit.builder, emit.lanes * emit.number.size
    before, loop, after = (
        builder.block,
        builder.append_basic_block("chain"),
        builder.append_basic_block("done"),
    )
    builder.branch(loop)
    builder.position_at_end(loop)
    left = builder.phi(emit.i64)
    left.add_incoming(length, before)
    pointers = [builder.phi(begin.type) for begin in begins]
    totals = [builder.phi(emit.vector) for _ in range(rows * vectors)]
    rows_at, columns_at = factors(pointers)
    columns_of_b = [emit.load(columns_at, j * width) for j in range(vectors)]
    # In the loop, so that the compiler keeps one register for it, and not a pointer for each row.
    pitch = emit.opaque(am)
    offsets = [emit.i64(0), pitch, builder.mul(pitch, emit.i64(2))]
    sums = []
    for row in range(rows):
        element = emit.broadcast(rows_at[row // 3], offsets[row % 3])
        sums += [emit.chained(element, columns_of_b[j], totals[row * vectors + j]) for j in range(vectors)]
    for pointer, begin, step in zip(pointers, begins, steps, strict=True):
        pointer.add_incoming(begin, before)
        pointer.add_incoming(builder.gep(pointer, [step]), loop)
    for total, one in zip(totals, sums, strict=True):
        total.add_incoming(emit.zero(), before)
        total.add_incoming(one, loop)
    rest = builder.sub(left, emit.i64(1))
    left.add_incoming(rest, loop)
    builder.cbranch(builder.icmp_signed(">", rest, emit.i64(0)), loop, after)
    builder.position_at_end(after)
    return sums


def finish_tile(
    emit: Emitter,
    vectors: int,
    sums: list[Any],
    c: Any,
    cm: Any,
    columns: Any,
    old: Any,
    own: Any,
    added: Callable[[], list[Any]],
) -> None:
    """Writes c, of `columns` columns: the sums, to which `old` columns of c are added (all or none), and `added()` to that.

    `added` returns vectors like the sums, of -0 where `own` is 0.
    """
    builder, width = emit.builder, emit.lanes * emit.number.size
    rows = len(sums) // vectors
    masks = emit.column_masks(columns, vectors)
    places = [emit.pointer(builder.add(c, builder.mul(cm, emit.i64(row)))) for row in range(rows)]

    def store(values: list[Any]) -> None:
        for number, value in enumerate(values):
            row, j = divmod(number, vectors)
            emit.store(emit.plain(value), places[row], j * width, masks[j])

    with builder.if_else(builder.icmp_signed("==", builder.or_(old, own), emit.i64(0))) as (alone, more):
        with alone:
            store(sums)
        with more:
            before, totals = emit.column_masks(old, vectors), []
            for number, value in enumerate(sums):
                row, j = divmod(number, vectors)
                earlier = emit.load(places[row], j * width, before[j], NEGATIVE_ZERO[emit.number.size])
                totals.append(builder.fadd(earlier, value))
            store([builder.fadd(one, total) for one, total in zip(added(), totals, strict=True)])


CHUNK = 256
"""Elements of the inner dimension whose chain is one chunk of the sum."""
DIRECT, ROWS, COLUMNS = 0, 1, 2
"""The second factor is read where it stands, or packed: with contiguous rows, or with contiguous columns."""


class RegisterTile:
    """The tile of registers of a CPU and kind of number."""

    def __init__(self, number: Number) -> None:
        self.rows = 12 if number.masks else 6
        self.vectors = 2
        self.columns = self.vectors * number.lanes
        self.chunk = CHUNK // 2 if number is BFLOAT16 else CHUNK
        """Elements (or pairs) of a chunk of the inner dimension."""


@lru_cache(maxsize=3)
def register_tile(number: Number) -> RegisterTile:
    """Returns the tile of registers for a kind of number."""
    return RegisterTile(number)


def _rows(number: Number, vectors: int) -> Any:
    return (interleave_rows if number is BFLOAT16 else copy_rows)(number, vectors)


def _packing(number: Number) -> Any:
    """Returns the part of kernels that packs one panel of the second factor."""
    lanes, size, vectors = number.lanes, number.size, register_tile(number).vectors
    rows, columns, element = _rows(number, vectors), transpose_panel(number), copy_element(number)
    pitch = vectors * lanes * size

    @inlined
    def pack(kind: Any, b: Any, bk: Any, bn: Any, panel: Any, length: Any, count: Any) -> None:
        if kind != 2:
            rows(b, bk, panel, pitch, length, count)
        else:
            whole = length // lanes * lanes
            for j in range(0, count, lanes):
                columns(b + j * bn, bn, panel + j * size, pitch, whole, min(lanes, count - j))
            for k in range(whole, length):
                for j in range(count):
                    element(b + j * bn + k * size, panel + k * pitch + j * size)

    return pack


_NEXT = {
    12: (0, 1, 2, 3, 4, 3, 6, 4, 8, 6, 6, 8, 12, 6, 8, 8, 8, 8, 12, 8, 12, 12, 8, 12),
    6: (0, 1, 2, 3, 4, 3, 6, 4, 4, 6, 6, 4),
}
"""The rows of the next tile, by the number that is left, for tiles of at most 12 or 6: little is left to tiles of 1 to 3."""


def next_rows(most: int) -> Any:
    """Returns the part of kernels that computes how many of the rows that are left the next tile has."""
    following = _NEXT[most]

    @inlined
    def rows(left: Any) -> Any:
        return following[left] if left < 2 * most else most

    return rows


@lru_cache(maxsize=4)
def tiled(number: Number, dtype: torch.dtype) -> OnTeam:
    """Returns the kernel of products of one kind of number, and a result of a type; its arguments are listed in it."""
    form = register_tile(number)
    most, wide, size, chunk = form.rows, form.columns, number.size, form.chunk
    lanes, rows_of = number.lanes, next_rows(most)
    choose, choose_narrow = tile_kernel(number, most, 2), tile_kernel(number, most, 1)
    pack, strips = _packing(number), copy_rows(number, 2)
    narrow_strips, finish_row = _rows(number, -(-most // lanes)), row_finisher(dtype)
    pitch = -(-most // lanes) * lanes * size
    panel_bytes, strip_bytes = wide * size * chunk, pitch * chunk
    copies = copy_strips(number, most)

    def work(index: int, args: Any) -> None:
        # args: 1-4 a b c self, 5 the plan: the fields of `Layout`, `ProductCut` and `Final`, in their order, 6 alpha and beta,
        # 7-8 memory, and the number of its parts (one for each thread)
        plan = native.carray(int64_at(args[5]), (40,))
        before = set_mxcsr(plan[0])
        panels = part_of_thread(args[7], args[8], plan[1])
        m_all, n_all, k_all, batch = plan[2], plan[3], plan[4], plan[5]
        am, ak, bk, bn, cm, sm = plan[6], plan[7], plan[8], plan[9], plan[10], plan[11]
        tile_m, tile_n, grid_m, grid_n, items = plan[16], plan[17], plan[18], plan[19], plan[20]
        pack_a, pack_b, part_k, parts, plane, is_adding = (
            plan[21],
            plan[22],
            plan[23],
            plan[24],
            plan[25],
            plan[26],
        )
        strip = panels + ((tile_n + wide - 1) // wide if pack_b != 0 else 1) * panel_bytes
        is_final = plan[28] != 0
        if is_final:  # the sums become the result as soon as a row's tiles are done
            cm = (tile_n + wide - 1) // wide * wide * size
        sums = strip + (0 if pack_a == 0 else STRIPS * 2 * most * chunk * size)
        part = index % parts
        rest = index // parts
        i0 = rest % grid_m * tile_m
        rest = rest // grid_m
        j0 = rest % grid_n * tile_n
        first = rest // grid_n * items
        m, n = min(tile_m, m_all - i0), min(tile_n, n_all - j0)
        k_begin, k_end = part * part_k * chunk, min(k_all, (part + 1) * part_k * chunk)
        for item in range(first, min(first + items, batch)):
            a0 = args[1] + item * plan[12] + i0 * am
            b0 = args[2] + item * plan[13] + j0 * bn
            c0 = args[3] + item * plan[14] + i0 * cm + j0 * size
            s0 = args[4] + item * plan[15] + i0 * sm + j0 * size
            if is_final:
                c0 = sums
            for k0 in range(k_begin, k_end, chunk):
                length = min(chunk, k_all - k0)
                c1 = c0 + k0 // chunk * plane
                is_old = k0 > k_begin and plane == 0
                is_own = is_adding != 0 and k0 + length == k_all
                row, packed, packed_from = 0, 0, 0
                while row < m:
                    rows = rows_of(m - row)
                    a = a0 + row * am + k0 * ak
                    am_here, ak_here = am, ak
                    if pack_a == 1:
                        for k in range(0, length, wide):
                            strips(
                                a + k * size, am, strip + k * size, chunk * size, rows, min(wide, length - k)
                            )
                        a, am_here = strip, chunk * size
                    elif pack_a == 2:
                        if row >= packed:
                            packed = row
                            if m - row >= (STRIPS + 1) * most:
                                copies(a, ak, strip, pitch, strip_bytes, length)
                                packed += STRIPS * most
                            else:
                                narrow_strips(a, ak, strip, pitch, length, rows)
                                packed += rows
                            packed_from = row
                        a, am_here, ak_here = strip + (row - packed_from) // most * strip_bytes, size, pitch
                    for j in range(0, n, wide):
                        columns = min(wide, n - j)
                        b = b0 + k0 * bk + j * bn
                        step = bk
                        if pack_b != 0 or columns % lanes != 0:  # the kernel loads whole vectors
                            panel = panels + (j // wide if pack_b != 0 else 0) * panel_bytes
                            if row == 0:
                                pack(pack_b, b, bk, bn, panel, length, columns)
                            b, step = panel, wide * size
                        old = columns if is_old else 0
                        own = columns if is_own else 0
                        c, s = c1 + row * cm + j * size, s0 + row * sm + j * size
                        if is_final and k_all <= chunk:
                            c -= row * cm
                        if columns > lanes:
                            choose(
                                rows, a, am_here, ak_here, b, step, c, cm, s, sm, length, columns, old, own
                            )
                        else:
                            choose_narrow(
                                rows, a, am_here, ak_here, b, step, c, cm, s, sm, length, columns, old, own
                            )
                    if is_final and k0 + length == k_all:
                        for i in range(rows):
                            out = args[3] + item * plan[29] + (i0 + row + i) * plan[30] + j0 * plan[31]
                            own_row = args[4] + item * plan[32] + (i0 + row + i) * plan[33] + j0 * plan[34]
                            t = c1 + (i if k_all <= chunk else row + i) * cm
                            finish_row(t, out, plan[31], own_row, plan[34], plan[35], args[6], n)
                    row += rows
        set_mxcsr(before)

    return on_team(work, name=f"product_{number.name}_{dtype}")
