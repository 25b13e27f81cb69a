"""Kernels that fill rows from keys: the Triton counterparts of `_philox.fill_words` and of `_distributions`."""

import triton
import triton.language as tl

from samebits.random.triton.kernels.arithmetic import fma, rounded
from samebits.random.triton.kernels.philox import above, in_order_2, in_order_4, lanes, main_block


@triton.jit
def words(keys, out, rows: tl.uint64, per_row: tl.uint64, BLOCKS: tl.constexpr, ONE_KEY: tl.constexpr):
    """The stream itself, to uint32."""
    seed, offset, place, inside = lanes(keys, rows, per_row, 4, BLOCKS, ONE_KEY)
    w0, w1, w2, w3 = main_block(seed, offset)
    tl.store(out + place, in_order_4(w0, w1, w2, w3), mask=inside)


@triton.jit
def uniform_32(
    keys, out, rows: tl.uint64, per_row: tl.uint64, low: tl.float64, span: tl.float64, DIGITS: tl.constexpr,
    BLOCKS: tl.constexpr, ONE_KEY: tl.constexpr,
):  # fmt: skip
    """Numbers of [low, low + span) from the lowest DIGITS bits of a word; to float32, float16 or bfloat16."""
    seed, offset, place, inside = lanes(keys, rows, per_row, 4, BLOCKS, ONE_KEY)
    w0, w1, w2, w3 = main_block(seed, offset)
    word = in_order_4(w0, w1, w2, w3) & ((1 << DIGITS) - 1)
    x = fma(word.to(tl.float32) * 2.0**-DIGITS, scalar(span, tl.float32), scalar(low, tl.float32))
    tl.store(out + place, rounded(x, out.dtype.element_ty), mask=inside)


@triton.jit
def uniform_64(
    keys, out, rows: tl.uint64, per_row: tl.uint64, low: tl.float64, span: tl.float64,
    BLOCKS: tl.constexpr, ONE_KEY: tl.constexpr,
):  # fmt: skip
    """Numbers of [low, low + span) from 53 bits of two words, the first one above; to float64."""
    seed, offset, place, inside = lanes(keys, rows, per_row, 2, BLOCKS, ONE_KEY)
    w0, w1, w2, w3 = main_block(seed, offset)
    word = in_order_2(above(w0, w1), above(w2, w3)) & (2**53 - 1)
    x = fma(word.to(tl.float64) * 2.0**-53, scalar(span, tl.float64), scalar(low, tl.float64))
    tl.store(out + place, x, mask=inside)


@triton.jit
def scalar(x, DTYPE: tl.constexpr):
    """A kernel's float parameter as DTYPE. They all travel as float64: Triton passes Python's floats as float32 else."""
    return tl.full((1,), x, tl.float64).to(DTYPE)
