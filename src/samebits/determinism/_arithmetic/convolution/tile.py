"""The kernels of one tile of a convolution: the product's, but each k has a place of its own in the image.

So an image is read where it stands, as the second factor (columns are pixels) or, with channels last, as the first (rows are).
"""

from __future__ import annotations

from typing import Any

from samebits import _native as native
from samebits._native import instruction
from samebits.determinism._arithmetic.product.tile_code import NEGATIVE_ZERO, counts
from samebits.determinism._arithmetic.product.vectors import Emitter, Number


def tapped_kernel(number: Number, most: int, vectors: int, *, last: bool = False) -> Any:
    """Returns the instruction that computes a tile of one of the `counts(most)` of rows and up to `vectors` vectors of columns.

    Its arguments, addresses and strides in bytes: rows; a, from row to row; b, from k to k; a table of int64 offsets to
    the image, one for each k; c, from row to row; the bias; the length of the chunk (at least 1); the number of columns;
    of how many of them c is added to (all or none); whether the bias is added. Of b whole vectors are read, whatever
    the number of columns. The image is b, a's k stand side by side, and there is a bias for each row; `last`: it is a, and
    there is a bias for each column.
    """

    @instruction
    def tile(typing_context: Any, rows: Any, a: Any, am: Any, b: Any, bk: Any, table: Any, c: Any, cm: Any, s: Any, length: Any, columns: Any, old: Any, own: Any) -> Any:  # fmt: skip
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            end = builder.append_basic_block("tile_end")
            choice = builder.switch(arguments[0], end)
            for count in counts(most):
                block = builder.append_basic_block(f"tile_{count}")
                choice.add_case(native.ir.IntType(64)(count), block)
                builder.position_at_end(block)
                builder.call(_function(builder.module, number, count, vectors, last), arguments[1:])
                builder.branch(end)
            builder.position_at_end(end)
            return context.get_dummy_value()

        return native.types.void(*[native.types.int64] * 13), build

    return tile


def _function(module: Any, number: Number, rows: int, vectors: int, last: bool) -> Any:
    """The tile's kernel as a function of its own, so that no register holds anything else."""
    ir = native.ir
    name = f"samebits_{'last' if last else 'first'}_{number.name}_{rows}_{vectors}"
    kind = ir.FunctionType(ir.VoidType(), [ir.IntType(64)] * 12)
    function = native.cgutils.get_or_insert_function(module, kind, name)
    if not function.is_declaration:
        return function
    function.linkage = "internal"
    function.attributes.add("noinline")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    emit = Emitter(builder, number)
    a, am, b, bk, table, c, cm, s, length, columns, old, own = function.args
    for row in range(rows):  # what is stored at the end is on its way meanwhile
        for j in range(vectors):
            place = builder.add(c, builder.mul(cm, emit.i64(row)))
            emit.prefetch(emit.pointer(place), j * emit.lanes * number.size)
    sums = _chain(emit, rows, vectors, a, am, b, bk, table, length, last)
    _finish(emit, rows, vectors, sums, c, cm, s, columns, old, own, last)
    builder.ret_void()
    return function


def _chain(
    emit: Emitter, rows: int, vectors: int, a: Any, am: Any, b: Any, bk: Any, table: Any, length: Any, last: bool
) -> list[Any]:  # fmt: skip
    """The loop over the chunk; returns the accumulators, row by row."""
    builder, width = emit.builder, emit.lanes * emit.number.size
    groups = -(-rows // 3)
    firsts = [emit.pointer(builder.add(a, builder.mul(am, emit.i64(3 * group)))) for group in range(groups)]
    base = emit.pointer(b)
    # What goes on from k to k, and by how many bytes: the table, and the factor that is no image.
    begins, steps = [emit.pointer(table)], [emit.i64(8)]
    begins += [base] if last else firsts
    steps += [bk] if last else [emit.i64(emit.number.size)] * groups
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
    offset = builder.load(emit.at(pointers[0], 0, emit.i64), align=8)
    columns_at = pointers[1] if last else builder.gep(base, [offset])
    rows_at = [builder.gep(first, [offset]) for first in firsts] if last else pointers[1:]
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


def _finish(
    emit: Emitter, rows: int, vectors: int, sums: list[Any], c: Any, cm: Any, s: Any, columns: Any, old: Any, own: Any,
    last: bool,
) -> None:  # fmt: skip
    """Adds the chunk's sums to c, and the bias to that; where one is not to be added, -0 is."""
    builder, width = emit.builder, emit.lanes * emit.number.size
    nothing = NEGATIVE_ZERO[emit.number.size]
    none = builder.bitcast(emit.constant(nothing), emit.vector)
    masks = [emit.mask(columns, j * emit.lanes) for j in range(vectors)]
    places = [emit.pointer(builder.add(c, builder.mul(cm, emit.i64(row)))) for row in range(rows)]
    with builder.if_else(builder.icmp_signed("==", builder.or_(old, own), emit.i64(0))) as (alone, added):
        with alone:
            _store(emit, sums, places, masks)
        with added:
            before = [emit.mask(old, j * emit.lanes) for j in range(vectors)]
            is_own = builder.icmp_signed("!=", own, emit.i64(0))
            # Without a bias, its address is that of something readable: an element.
            owns = [
                emit.mask(builder.select(is_own, columns, emit.i64(0)), j * emit.lanes)
                for j in range(vectors)
            ]
            totals = []
            for number, value in enumerate(sums):
                row, j = divmod(number, vectors)
                total = builder.fadd(emit.load(places[row], j * width, before[j], nothing), value)
                if last:
                    bias = emit.load(emit.pointer(s), j * width, owns[j], nothing)
                else:
                    bias = emit.broadcast(emit.pointer(s), row * emit.number.size)
                    bias = builder.select(is_own, bias, none)
                totals.append(builder.fadd(total, bias))
            _store(emit, totals, places, masks)


def _store(emit: Emitter, sums: list[Any], places: list[Any], masks: list[Any]) -> None:
    width = emit.lanes * emit.number.size
    for number, value in enumerate(sums):
        row, j = divmod(number, len(masks))
        emit.store(emit.plain(value), places[row], j * width, masks[j])
