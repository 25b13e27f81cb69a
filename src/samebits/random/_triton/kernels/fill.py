"""Kernels that fill rows from keys: the Triton counterparts of `_cpu.philox.fill_words` and of `_cpu.uniform_normal_kernels`."""

import triton
import triton.language as tl

from samebits.random._triton.kernels.arithmetic import fma, rounded
from samebits.random._triton.kernels.elementary import box_muller
from samebits.random._triton.kernels.philox import above, in_order_2, in_order_4, lanes, main_block


@triton.jit(do_not_specialize=["rows", "number", "first"])
def folded(keys, out, rows: tl.uint64, number: tl.uint64, first: tl.uint64, BLOCKS: tl.constexpr):
    """Row i of `out`, (number, rows, 2): the keys that `first` + i makes of the keys: two words of the block so far on."""
    place = tl.program_id(0).to(tl.uint64) * BLOCKS + tl.arange(0, BLOCKS).to(tl.uint64)
    rows = rows.to(tl.uint64)
    inside = place < rows * number.to(tl.uint64)
    row = place % rows
    seed = tl.load(keys + 2 * row, mask=inside, other=0)
    offset = tl.load(keys + 2 * row + 1, mask=inside, other=0)
    w0, w1, w2, w3 = main_block(seed, offset + first.to(tl.uint64) + place // rows)
    tl.store(out + 2 * place, above(w1, w0), mask=inside)
    tl.store(out + 2 * place + 1, above(w3, w2), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def words(
    keys, out, rows: tl.uint64, per_row: tl.uint64,
    BYTES: tl.constexpr, BLOCKS: tl.constexpr, ONE_KEY: tl.constexpr,
):  # fmt: skip
    """The bytes of the stream, to an unsigned dtype of BYTES bytes, little-endian."""
    seed, offset, place, inside = lanes(keys, rows, per_row, 16 // BYTES, BLOCKS, ONE_KEY)
    w0, w1, w2, w3 = main_block(seed, offset)
    if BYTES == 8:
        x = in_order_2(above(w1, w0), above(w3, w2))
    else:
        x = _parts(in_order_4(w0, w1, w2, w3), 4, BYTES)
    tl.store(out + place, x.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _parts(x, HAVE: tl.constexpr, WANT: tl.constexpr):
    """Numbers of HAVE bytes cut into such of WANT bytes, the lower ones first."""
    if HAVE == WANT:
        return x
    else:
        digits: tl.constexpr = 4 * HAVE
        return _parts(in_order_2(x & ((1 << digits) - 1), x >> digits), HAVE // 2, WANT)


@triton.jit(do_not_specialize=["rows"])
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


@triton.jit(do_not_specialize=["rows"])
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


@triton.jit(do_not_specialize=["rows"])
def normal_32(
    keys, out, rows: tl.uint64, per_row: tl.uint64, mean: tl.float64, std: tl.float64,
    BLOCKS: tl.constexpr, ONE_KEY: tl.constexpr,
):  # fmt: skip
    """Normal numbers, two from two words each; to float32, float16 or bfloat16."""
    seed, offset, place, inside = lanes(keys, rows, per_row, 4, BLOCKS, ONE_KEY)
    w0, w1, w2, w3 = main_block(seed, offset)
    x0, x1 = box_muller(float32_in_0_1(w0), float32_in_0_1(w1))
    x2, x3 = box_muller(float32_in_0_1(w2), float32_in_0_1(w3))
    x = fma(in_order_4(x0, x1, x2, x3), scalar(std, tl.float32), scalar(mean, tl.float32))
    tl.store(out + place, rounded(x, out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def normal_64(
    keys, out, rows: tl.uint64, per_row: tl.uint64, mean: tl.float64, std: tl.float64,
    BLOCKS: tl.constexpr, ONE_KEY: tl.constexpr,
):  # fmt: skip
    """Normal numbers, two from two pairs of words; to float64."""
    seed, offset, place, inside = lanes(keys, rows, per_row, 2, BLOCKS, ONE_KEY)
    w0, w1, w2, w3 = main_block(seed, offset)
    x0, x1 = box_muller(float64_in_0_1(w0, w1), float64_in_0_1(w2, w3))
    x = fma(in_order_2(x0, x1), scalar(std, tl.float64), scalar(mean, tl.float64))
    tl.store(out + place, x, mask=inside)


@triton.jit
def float32_in_0_1(word):
    """The float32 next to (float32(word) + 1/2) / 2**32; the product is exact, so the sum is all that is rounded."""
    return word.to(tl.float32) * 2.0**-32 + 2.0**-33


@triton.jit
def float64_in_0_1(high, low):
    """The float64 next to (2**32 high + low + 1/2) / 2**64."""
    least = tl.full(low.shape, 2.0**-65, tl.float64)
    scale = tl.full(low.shape, 2.0**-32, tl.float64)
    return fma(high.to(tl.float64), scale, fma(low.to(tl.float64) * 2.0**-32, scale, least))
