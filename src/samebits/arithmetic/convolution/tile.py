"""The kernels of one tile of a convolution: the product's, but each k has a place of its own in the image.

So an image is read where it stands: its pixels are the columns of the second factor, or rows of the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from samebits.arithmetic.product.instructions import procedure_of_cases
from samebits.arithmetic.product.tiles import NEGATIVE_ZERO, chain, counts, finish_tile, row_pointers
from samebits.arithmetic.product.vectors import Emitter, Number


def tapped_kernel(number: Number, most: int, vectors: int, *, last: bool = False) -> Any:
    """Returns the instruction for a tile of one of `counts(most)` of rows and some `vectors` of columns.

    Its arguments, addresses and strides in bytes: rows; a, from row to row; b, from k to k; a table of int64
    offsets to the image, one for each k; c, from row to row; the bias; the length of the chunk (at least 1);
    the number of columns; to how many of them c is added (all or none); 1 if the bias is added, else 0. Of b
    whole vectors are read, whatever the number of columns.

    layout  image  the other factor          bias for each
    first   b      a, its k side by side     row
    last    a      b                         column
    """

    def build(emit: Emitter, rows: int, arguments: Sequence[Any]) -> None:
        a, am, b, bk, table, c, cm, s, length, columns, old, own = arguments
        builder, width = emit.builder, emit.lanes * number.size
        for row in range(rows):  # what is stored at the end is on its way meanwhile
            for j in range(vectors):
                place = builder.add(c, builder.mul(cm, emit.i64(row)))
                emit.prefetch(emit.pointer(place), j * width)
        firsts, base = row_pointers(emit, a, am, rows), emit.pointer(b)
        # The pointers that advance from k to k, and their bytes: the table, and the factor that is no image.
        begins, steps = [emit.pointer(table)], [emit.i64(8)]
        begins += [base] if last else firsts
        steps += [bk] if last else [emit.i64(number.size)] * len(firsts)

        def factors(here: list[Any]) -> tuple[list[Any], Any]:
            offset = builder.load(emit.at(here[0], 0, emit.i64), align=8)
            if last:
                return [builder.gep(first, [offset]) for first in firsts], here[1]
            return here[1:], builder.gep(base, [offset])

        def biases() -> list[Any]:
            is_own = builder.icmp_signed("!=", own, emit.i64(0))
            # Without a bias, its address is that of something readable: an element.
            masks = emit.column_masks(builder.select(is_own, columns, emit.i64(0)), vectors)
            nothing = NEGATIVE_ZERO[number.size]
            if last:
                return [
                    emit.load(emit.pointer(s), j * width, masks[j], nothing) for j in range(vectors)
                ] * rows
            none = builder.bitcast(emit.constant(nothing), emit.vector)
            each = [emit.broadcast(emit.pointer(s), row * number.size) for row in range(rows)]
            return [builder.select(is_own, bias, none) for bias in each for _ in range(vectors)]

        sums = chain(emit, rows, vectors, am, length, begins, steps, factors)
        finish_tile(emit, vectors, sums, c, cm, columns, old, own, biases)

    layout = "last" if last else "first"
    return procedure_of_cases(number, f"{layout}_{vectors}", counts(most), 13, build)
