"""Sums of blocks of 256 numbers: 16 lanes, each of which adds every 16th number in order, and a tree that halves them."""

import triton
import triton.language as tl

from samebits.determinism._arithmetic._triton.kernels.elements import read, write
from samebits.random._triton.elementary import fma

LANES = tl.constexpr(16)
BLOCK = tl.constexpr(256)


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
