"""Kernels in Triton's language: elements in memory and the numbers computed with, as the CPU's `elementwise_kernel` has them,
sums of blocks, and products of matrices.

A sum adds blocks of 256 numbers: 16 lanes, each of which adds every 16th number in order, and a tree that halves them.
A product is a tile of outputs for each program, each output the chain of the definition.
"""

import triton
import triton.language as tl

from samebits.random._triton.elementary import fma, rounded, widened

_SIGN = tl.constexpr(0x8000000000000000)
_SIZE = tl.constexpr(0x7FFFFFFFFFFFFFFF)
LANES = tl.constexpr(16)
BLOCK = tl.constexpr(256)
"""Numbers of a block of a sum."""
CHUNK = tl.constexpr(256)
"""Numbers of the inner dimension in one chain of a product."""


@triton.jit
def read(address, inside, DTYPE: tl.constexpr):
    """The numbers at addresses, 0 outside, in a type that holds them: an exact conversion."""
    return widened(tl.load(address, mask=inside, other=0)).to(DTYPE)


@triton.jit
def write(address, x, inside):
    """Rounds to float32 and then to the element's type, to nearest even; a NaN becomes the one quiet NaN."""
    DTYPE: tl.constexpr = address.dtype.element_ty
    if DTYPE == tl.float64:
        nan = tl.full(x.shape, 0x7FF8000000000000, tl.uint64).to(tl.float64, bitcast=True)
        tl.store(address, tl.where(x == x, x, nan), mask=inside)
    else:
        single = x.to(tl.float32)
        nan = tl.full(x.shape, 0x7FC00000, tl.uint32).to(tl.float32, bitcast=True)
        single = tl.where(single == single, single, nan)
        if DTYPE == tl.float16:
            # a GPU's conversion makes 0x7FFF of a NaN
            half = single.to(tl.float16)
            nan = tl.full(x.shape, 0x7E00, tl.uint16).to(tl.float16, bitcast=True)
            tl.store(address, tl.where(half == half, half, nan), mask=inside)
        else:
            tl.store(address, rounded(single, DTYPE), mask=inside)


@triton.jit
def magnitude(x):
    """The numbers without their signs."""
    if x.dtype == tl.float64:
        return (x.to(tl.uint64, bitcast=True) & _SIZE).to(tl.float64, bitcast=True)
    else:
        return (x.to(tl.uint32, bitcast=True) & 0x7FFFFFFF).to(tl.float32, bitcast=True)


@triton.jit
def with_sign_of(x, y):
    """The numbers x with the signs of y."""
    if x.dtype == tl.float64:
        bits = (x.to(tl.uint64, bitcast=True) & _SIZE) | (y.to(tl.uint64, bitcast=True) & _SIGN)
        return bits.to(tl.float64, bitcast=True)
    else:
        bits = (x.to(tl.uint32, bitcast=True) & 0x7FFFFFFF) | (y.to(tl.uint32, bitcast=True) & 0x80000000)
        return bits.to(tl.float32, bitcast=True)


@triton.jit
def row_of(x, first, ROWS: tl.constexpr):
    """The row of a table for numbers that are integers, the first row having the number `first`; row 0 for others."""
    index = x.to(tl.int64) - first
    return tl.where((index >= 0) & (index < ROWS), index, 0)


@triton.jit
def block_sums(
    x, y, out, blocks, per_row, length, DTYPE: tl.constexpr, DOT: tl.constexpr, BLOCKS: tl.constexpr
):
    """The sum of each block of `length` adjacent numbers, `per_row` blocks, and so on; with DOT, of the products x y."""
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    row = block // per_row
    first = (block % per_row) * BLOCK
    lane = first[:, None] + tl.arange(0, LANES)[None, :]
    lanes = tl.zeros((BLOCKS, LANES), DTYPE)
    for step in tl.static_range(BLOCK // LANES):
        column = lane + step * LANES
        inside = (block < blocks)[:, None] & (column < length)
        place = row[:, None] * length + column
        # a number that is not there adds +0, which changes nothing: a lane is never -0
        here = read(x + place, inside, DTYPE)
        lanes = fma(here, read(y + place, inside, DTYPE), lanes) if DOT else lanes + here
    write(out + block, tree_sum(lanes, BLOCKS, LANES), block < blocks)


@triton.jit
def tree_sum(lanes, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """The upper half of the lanes of each row is added to the lower half, until one is left."""
    if WIDTH == 1:
        return tl.reshape(lanes, (ROWS,))
    else:
        HALF: tl.constexpr = WIDTH // 2
        low, high = tl.split(tl.permute(tl.reshape(lanes, (ROWS, 2, HALF)), (0, 2, 1)))
        return tree_sum(tl.reshape(low + high, (ROWS, HALF)), ROWS, HALF)


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
