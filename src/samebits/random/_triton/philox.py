"""The Philox block of every lane of a program, the places of its numbers in the output, and the launch."""

from typing import Any

import torch
import triton
import triton.language as tl

ROUNDS = tl.constexpr(10)
PROGRAM_BLOCKS = 256
"""Philox blocks per program: of four words each, eight numbers of 32 bits for each of 128 threads."""


@triton.jit
def block(seed, offset, attempt, place, N: tl.constexpr = ROUNDS):
    """The four words of the key (seed, offset); the counter's words 2, 3 are 0 but in streams of rejections.

    Triton's Philox4x32 has our layout: the cipher key is the seed, low word first.
    """
    return tl.philox(seed, offset.to(tl.uint32), (offset >> 32).to(tl.uint32), attempt, place, N)


@triton.jit
def main_block(seed, offset):
    """The block of the main stream."""
    zero = tl.zeros(offset.shape, tl.uint32)
    return block(seed, offset, zero, zero)


@triton.jit
def above(high, low):
    """The 64-bit word of two of 32 bits."""
    return (high.to(tl.uint64) << 32) | low.to(tl.uint64)


@triton.jit
def in_order_2(x0, x1):
    """(n,) and (n,) to (2 n,): both numbers of block 0, then those of block 1. Stays in registers."""
    return tl.reshape(tl.join(x0, x1), (2 * x0.shape[0],))


@triton.jit
def in_order_4(x0, x1, x2, x3):
    """As `in_order_2`, of four."""
    return tl.reshape(tl.join(tl.join(x0, x2), tl.join(x1, x3)), (4 * x0.shape[0],))


@triton.jit
def repeated(x, TIMES: tl.constexpr):
    """(n,) to (TIMES n,): every item TIMES times in a row; TIMES is 2, 4, 8 or 16."""
    x = in_order_2(x, x)
    if TIMES == 2:
        return x
    else:
        return repeated(x, TIMES // 2)


@triton.jit
def lanes(keys, rows, per_row, PER_BLOCK: tl.constexpr, BLOCKS: tl.constexpr, ONE_KEY: tl.constexpr):
    """A program's share of `rows` rows of `per_row` numbers, row r from keys[r], PER_BLOCK to a block.

    Seed and offset of each of its BLOCKS blocks, and for every number of these its place in the output, and
    True if it has one. Places are 64-bit: a tensor may have more than 2**31 elements.
    """
    first = tl.program_id(0).to(tl.uint64) * BLOCKS
    number = first * PER_BLOCK + tl.arange(0, BLOCKS * PER_BLOCK).to(tl.uint64)
    index = first + tl.arange(0, BLOCKS).to(tl.uint64)
    per_row = per_row.to(tl.uint64)
    if ONE_KEY:  # no division, and stores of whole vectors
        seed = tl.load(keys) + tl.zeros(index.shape, tl.uint64)
        return seed, tl.load(keys + 1) + index, number, number < per_row
    else:
        blocks_per_row = (per_row + (PER_BLOCK - 1)) // PER_BLOCK
        row = index // blocks_per_row
        index = index - row * blocks_per_row
        exists = row < rows.to(tl.uint64)
        seed = tl.load(keys + 2 * row, mask=exists, other=0)
        offset = tl.load(keys + 2 * row + 1, mask=exists, other=0)
        in_row = repeated(index, PER_BLOCK) * PER_BLOCK + number % PER_BLOCK
        place = repeated(row, PER_BLOCK) * per_row + in_row
        return seed, offset + index, place, (in_row < per_row) & repeated(exists, PER_BLOCK)


def launch_rows(
    kernel: Any,
    keys: torch.Tensor,
    tensors: torch.Tensor | tuple[torch.Tensor, ...],
    per_block: int,
    *parameters: Any,
    **constants: Any,
) -> None:
    """Launches over the rows of the first of `tensors`; every block of a key gives `per_block` numbers."""
    out, *others = tensors if isinstance(tensors, tuple) else (tensors,)
    rows = keys.numel() // 2
    per_row = out.numel() // max(rows, 1)
    programs = -(-rows * -(-per_row // per_block) // PROGRAM_BLOCKS)
    constants |= {"BLOCKS": PROGRAM_BLOCKS, "ONE_KEY": rows == 1}
    launch(kernel, programs, keys, out, *others, rows, per_row, *parameters, **constants)


def launch(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
    """Launches a kernel with as many programs, on the device of its first argument.

    `enable_fp_fusion=False` keeps Triton and ptxas from contracting a multiplication and an addition that the
    CPU kernels round separately; what must be fused says so (`fma`).
    """
    if programs:
        with torch.cuda.device_of(arguments[0]):
            kernel[(programs,)](*arguments, **constants, enable_fp_fusion=False)
