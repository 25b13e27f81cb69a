"""The kernel of one tile of a product: some rows, some vectors of columns, and one chunk of the inner dimension.

Its accumulators stay in registers: one chain of fused multiply-adds for each output, in the order of k, from zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from samebits import _native as native
from samebits._native import instruction
from samebits.arithmetic.product.vectors import Emitter, Number

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
