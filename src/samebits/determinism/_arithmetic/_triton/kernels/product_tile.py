"""The product of matrices: a tile of outputs for each program, each output the chain of the definition."""

import triton
import triton.language as tl

from samebits.determinism._arithmetic._triton.kernels.elements import read, write
from samebits.random._triton.elementary import fma

CHUNK = tl.constexpr(256)
"""Of the inner dimension."""


@triton.jit
def product_tile(
    a, b, added, out, rows, columns, inner,
    a_batch, a_row, a_inner, b_batch, b_inner, b_column, added_batch, added_row, added_column, out_batch, out_row, out_column,
    alpha: tl.float64, beta: tl.float64,
    ADDED: tl.constexpr, DTYPE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """alpha a b + beta added: numbers of elements, then the strides, in elements."""
    tiles_across = tl.cdiv(columns, COLUMNS)
    tiles = tl.cdiv(rows, ROWS) * tiles_across
    batch = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tl.program_id(0) % tiles
    i = (tile // tiles_across).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    j = (tile % tiles_across).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    a += batch * a_batch + i * a_row
    b += batch * b_batch + j * b_column
    inside_a, inside_b = i < rows, j < columns
    total = tl.zeros((ROWS, COLUMNS), DTYPE)
    for start in range(0, inner, CHUNK):
        chain = tl.zeros((ROWS, COLUMNS), DTYPE)
        for _ in range(start, tl.minimum(start + CHUNK, inner)):
            left = tl.load(a, mask=inside_a, other=0).to(DTYPE)
            right = tl.load(b, mask=inside_b, other=0).to(DTYPE)
            chain = fma(left[:, None], right[None, :], chain)
            a += a_inner
            b += b_inner
        total = tl.where(start == 0, chain, total + chain)
    inside = inside_a[:, None] & inside_b[None, :]
    total = total * tl.full((1, 1), alpha, tl.float64).to(DTYPE)
    if ADDED:
        if out.dtype.element_ty == tl.float16:
            total = total.to(tl.float16).to(DTYPE)
        place = batch * added_batch + i[:, None] * added_row + j[None, :] * added_column
        more = read(added + place, inside, DTYPE)
        total = total + tl.full((1, 1), beta, tl.float64).to(DTYPE) * more
    write(out + (batch * out_batch + i[:, None] * out_row + j[None, :] * out_column), total, inside)
