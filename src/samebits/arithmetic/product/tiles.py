"""The product in tiles: parts of a factor packed where that pays, each tile's chain in registers.

A tile of the output is one chunk of work (of torch's threads, not of the sum): some rows and columns of one
matrix of the batch, or several whole small ones. How an output is cut has no influence on its bits, so it may
follow the CPU and the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch

from samebits._native import inlined
from samebits._native.kernel_threads import OnTeam, on_team, variants
from samebits.arithmetic.product.definition import CHUNK
from samebits.arithmetic.product.finish import RESULTS, is_made, row_maker
from samebits.arithmetic.product.instructions import fields_at, procedure_of_cases
from samebits.arithmetic.product.mxcsr import set_mxcsr
from samebits.arithmetic.product.packing import (
    STRIPS,
    copy_element,
    copy_rows,
    copy_strips,
    interleave_rows,
    transpose_panel,
)
from samebits.arithmetic.product.records import ADDED, FIELDS, MEMORY, PARTS, RECORDS, A, B, C
from samebits.arithmetic.product.scratch import part_of_thread
from samebits.arithmetic.product.vectors import BFLOAT16, NUMBERS, Emitter, Number

# The kernel of one tile of a product: some rows, some vectors of columns, and one chunk of the inner
# dimension.
#
# Its accumulators stay in registers: one chain of fused multiply-adds for each output, in the order of k,
# from zero.


NEGATIVE_ZERO = {4: 1 << 31, 8: 1 << 63}
"""The bits of -0, which changes no number that it is added to, -0 neither."""


def counts(most: int) -> list[int]:
    """Returns the numbers of rows with a kernel (each takes time to compile): sums of few wait for sums."""
    return [rows for rows in (1, 2, 3, 4, 6, 8, 12) if rows <= most]


def tile_kernel(number: Number, most: int, vectors: int) -> Any:
    """Returns the instruction for a tile of one of `counts(most)` of rows and some `vectors` of columns.

    Its arguments, addresses and strides in bytes: rows; a, from row to row, from k to k; b, from k to k
    (columns stand side by side, whole vectors of them, whatever the number of columns); c, from row to row;
    self, from row to row; the length of the chunk (at least 1); the number of columns; of how many of them c
    is added to (all or none); to how many self is added (all or none).
    """

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

    return procedure_of_cases(number, f"tile_{vectors}", counts(most), 14, build)


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

    `begins`: pointers that go on by `steps` bytes from k to k; of those of one k `factors` returns the
    `row_pointers` of the first factor, and the place of the second.
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
    """Writes `columns` columns of c: the sums, plus `old` columns of c (all or none), plus `added()`.

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
"""The rows of the next tile of at most 12 or 6, by the rows that are left: tiles of 1 to 3 get few."""


def next_rows(most: int) -> Any:
    """Returns the part of kernels that computes how many of the rows that are left the next tile has."""
    following = _NEXT[most]

    @inlined
    def rows(left: Any) -> Any:
        return following[left] if left < 2 * most else most

    return rows


def rows_of_tiles(rows: int, most: int) -> list[int]:
    """Returns the rows of each tile of some rows, as `next_rows` computes them."""
    made = []
    while rows > 0:
        made.append(_NEXT[most][rows] if rows < 2 * most else most)
        rows -= made[-1]
    return made


@variants(number=NUMBERS.values(), dtype=RESULTS, only=is_made)
def tiled(number: Number, dtype: torch.dtype) -> OnTeam:
    """Returns the kernel of products of a kind of number, with a result of a type."""
    form = register_tile(number)
    most, wide, size, chunk = form.rows, form.columns, number.size, form.chunk
    lanes, rows_of = number.lanes, next_rows(most)
    choose, choose_narrow = tile_kernel(number, most, 2), tile_kernel(number, most, 1)
    pack, strips = _packing(number), copy_rows(number, 2)
    narrow_strips, make_row = _rows(number, -(-most // lanes)), row_maker(dtype)
    pitch = -(-most // lanes) * lanes * size
    panel_bytes, strip_bytes = wide * size * chunk, pitch * chunk
    copies, read = copy_strips(number, most), fields_at(*RECORDS)

    @inlined
    def pack_rows(f: Any, a: Any, strip: Any, rows: Any, length: Any) -> None:
        """Copies the chunk of some rows of the first factor."""
        for k in range(0, length, wide):
            strips(a + k * size, f.am, strip + k * size, chunk * size, rows, min(wide, length - k))

    @inlined
    def second_factor(f: Any, b: Any, panels: Any, j: Any, row: Any, length: Any, columns: Any) -> Any:
        """Returns the place of columns, packed with the first rows if need be, and its step from k to k."""
        step = f.bk
        if f.pack_b != 0 or columns % lanes != 0:  # the kernel loads whole vectors
            panel = panels + (j // wide if f.pack_b != 0 else 0) * panel_bytes
            if row == 0:
                pack(f.pack_b, b, f.bk, f.bn, panel, length, columns)
            b, step = panel, wide * size
        return b, step

    def work(index: int, args: Any) -> None:
        f = read(args[FIELDS])
        before = set_mxcsr(f.mxcsr)
        panels, cm = part_of_thread(args[MEMORY], args[PARTS], f.memory), f.cm
        strip = panels + ((f.tile_n + wide - 1) // wide if f.pack_b != 0 else 1) * panel_bytes
        is_final = f.is_final != 0
        if is_final:  # the sums become the result as soon as a row's tiles are done
            cm = (f.tile_n + wide - 1) // wide * wide * size
        sums = strip + (0 if f.pack_a == 0 else STRIPS * 2 * most * chunk * size)
        part, tile = index % f.parts, index // f.parts
        tile_row, tile = tile % f.grid_m * f.tile_m, tile // f.grid_m
        tile_column, first = tile % f.grid_n * f.tile_n, tile // f.grid_n * f.items
        m, n = min(f.tile_m, f.m - tile_row), min(f.tile_n, f.n - tile_column)
        k_begin, k_end = part * f.part_k * chunk, min(f.k, (part + 1) * f.part_k * chunk)
        for item in range(first, min(first + f.items, f.batch)):
            a_tile = args[A] + item * f.a_item + tile_row * f.am
            b_tile = args[B] + item * f.b_item + tile_column * f.bn
            c_tile = args[C] + item * f.c_item + tile_row * cm + tile_column * size
            s_tile = args[ADDED] + item * f.self_item + tile_row * f.sm + tile_column * size
            if is_final:
                c_tile = sums
            for k in range(k_begin, k_end, chunk):
                length = min(chunk, f.k - k)
                c_chunk = c_tile + k // chunk * f.plane
                is_old = k > k_begin and f.plane == 0
                is_own = f.is_adding != 0 and k + length == f.k
                row, packed, packed_from = 0, 0, 0
                while row < m:
                    rows = rows_of(m - row)
                    a, am, ak = a_tile + row * f.am + k * f.ak, f.am, f.ak
                    if f.pack_a == 1:
                        pack_rows(f, a, strip, rows, length)
                        a, am = strip, chunk * size
                    elif f.pack_a == 2:
                        if row >= packed:
                            packed = row
                            if m - row >= (STRIPS + 1) * most:
                                copies(a, f.ak, strip, pitch, strip_bytes, length)
                                packed += STRIPS * most
                            else:
                                narrow_strips(a, f.ak, strip, pitch, length, rows)
                                packed += rows
                            packed_from = row
                        a, am, ak = strip + (row - packed_from) // most * strip_bytes, size, pitch
                    for j in range(0, n, wide):
                        columns = min(wide, n - j)
                        b_columns = b_tile + k * f.bk + j * f.bn
                        b, bk = second_factor(f, b_columns, panels, j, row, length, columns)
                        old = columns if is_old else 0
                        own = columns if is_own else 0
                        c, s = c_chunk + row * cm + j * size, s_tile + row * f.sm + j * size
                        if is_final and f.k <= chunk:
                            c -= row * cm
                        if columns > lanes:
                            choose(rows, a, am, ak, b, bk, c, cm, s, f.sm, length, columns, old, own)
                        else:
                            choose_narrow(rows, a, am, ak, b, bk, c, cm, s, f.sm, length, columns, old, own)
                    if is_final and k + length == f.k:
                        for i in range(rows):
                            t = c_chunk + (i if f.k <= chunk else row + i) * cm
                            make_row(args, f, item, tile_row + row + i, tile_column, t, n)
                    row += rows
        set_mxcsr(before)

    return on_team(work, name=f"product_{number.name}_{dtype}", is_vectorized=True)
