"""The kernel of one tile of a product: some rows, some vectors of columns, and one chunk of the inner dimension.

Its accumulators stay in registers: one chain of fused multiply-adds for each output, in the order of k, from zero.
"""

from __future__ import annotations

from typing import Any

from samebits import _native as native
from samebits._native import instruction
from samebits.determinism._arithmetic.product.vectors import Emitter, Number

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
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            end = builder.append_basic_block("tile_end")
            choice = builder.switch(arguments[0], end)
            for count in counts(most):
                block = builder.append_basic_block(f"tile_{count}")
                choice.add_case(native.ir.IntType(64)(count), block)
                builder.position_at_end(block)
                builder.call(_function(builder.module, number, count, vectors), arguments[1:])
                builder.branch(end)
            builder.position_at_end(end)
            return context.get_dummy_value()

        return native.types.void(*[native.types.int64] * 14), build

    return tile


def _function(module: Any, number: Number, rows: int, vectors: int) -> Any:
    """The tile's kernel as a function of its own, so that no register holds anything else."""
    ir = native.ir
    name = f"samebits_tile_{number.name}_{rows}_{vectors}"
    kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * 13)
    function = native.cgutils.get_or_insert_function(module, kind, name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    emit, arguments = Emitter(builder, number), function.args
    a, am, ak, b, bk = arguments[:5]
    sums = _chain(emit, rows, vectors, a, am, ak, b, bk, arguments[9])
    _finish(emit, rows, vectors, sums, *arguments[5:9], *arguments[10:])
    builder.ret_void()
    return function


def _chain(
    emit: Emitter,
    rows: int,
    vectors: int,
    a: Any,
    am: Any,
    ak: Any,
    b: Any,
    bk: Any,
    length: Any,
) -> list[Any]:
    """The loop over the chunk; returns the accumulators, row by row."""
    builder, width = emit.builder, emit.lanes * emit.number.size
    groups = -(-rows // 3)
    begins = [
        emit.pointer(builder.add(a, builder.mul(am, emit.i64(3 * group)))) for group in range(groups)
    ] + [emit.pointer(b)]
    steps = [ak] * groups + [bk]
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
    columns_of_b = [emit.load(pointers[-1], j * width) for j in range(vectors)]
    # In the loop, so that the compiler keeps one register for it, and not a pointer for each row.
    pitch = emit.opaque(am)
    offsets = [emit.i64(0), pitch, builder.mul(pitch, emit.i64(2))]
    sums = []
    for row in range(rows):
        element = emit.broadcast(pointers[row // 3], offsets[row % 3])
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


def _finish(
    emit: Emitter, rows: int, vectors: int, sums: list[Any], c: Any, cm: Any, s: Any, sm: Any, columns: Any, old: Any, own: Any
) -> None:  # fmt: skip
    """Adds the chunk's sums to c, and self to that; where one is not to be added, -0 is."""
    builder = emit.builder
    masks = [emit.mask(columns, j * emit.lanes) for j in range(vectors)]
    places = [emit.pointer(builder.add(c, builder.mul(cm, emit.i64(row)))) for row in range(rows)]
    with builder.if_else(builder.icmp_signed("==", builder.or_(old, own), emit.i64(0))) as (alone, added):
        with alone:
            _store(emit, sums, places, masks)
        with added:
            others = [emit.pointer(builder.add(s, builder.mul(sm, emit.i64(row)))) for row in range(rows)]
            for where, count in ((places, old), (others, own)):
                sums = _plus(emit, sums, where, [emit.mask(count, j * emit.lanes) for j in range(vectors)])
            _store(emit, sums, places, masks)


def _plus(emit: Emitter, sums: list[Any], places: list[Any], masks: list[Any]) -> list[Any]:
    vectors, width, nothing = len(masks), emit.lanes * emit.number.size, NEGATIVE_ZERO[emit.number.size]
    return [
        emit.builder.fadd(emit.load(place, j * width, masks[j], nothing), sums[row * vectors + j])
        for row, place in enumerate(places)
        for j in range(vectors)
    ]


def _store(emit: Emitter, sums: list[Any], places: list[Any], masks: list[Any]) -> None:
    width = emit.lanes * emit.number.size
    for number, value in enumerate(sums):
        row, j = divmod(number, len(masks))
        emit.store(emit.plain(value), places[row], j * width, masks[j])
