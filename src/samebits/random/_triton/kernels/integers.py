"""Integers below a bound without bias: the Triton counterpart of `samebits.random._cpu.bounded_integers`, which states the method."""

import triton
import triton.language as tl

from samebits.random._triton.kernels.philox import (
    above,
    block,
    in_order_2,
    in_order_4,
    lanes,
    main_block,
    repeated,
)


@triton.jit(do_not_specialize=["rows", "low", "most", "threshold"])
def integers_32(
    keys, out, rows: tl.uint64, per_row: tl.uint64, low: tl.uint64, most: tl.uint64, threshold: tl.uint64,
    BLOCKS: tl.constexpr, ONE_KEY: tl.constexpr,
):  # fmt: skip
    """low + floor(w (most + 1) / 2**32) of the words w whose product has lower digits of at least `threshold`."""
    seed, offset, place, inside = lanes(keys, rows, per_row, 4, BLOCKS, ONE_KEY)
    w0, w1, w2, w3 = main_block(seed, offset)
    upper, lower = _times_32(in_order_4(w0, w1, w2, w3), most)
    rejected = inside & (lower < threshold.to(tl.uint64))
    attempt = tl.zeros(place.shape, tl.uint32)
    position = tl.arange(0, 4 * BLOCKS).to(tl.uint32) % 4
    while _any(rejected):
        attempt += 1
        again, lower = _times_32(_first(seed, offset, attempt, position, 4), most)
        upper = tl.where(rejected, again, upper)
        rejected &= lower < threshold.to(tl.uint64)
    tl.store(out + place, (low.to(tl.uint64) + upper).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows", "low", "most", "threshold"])
def integers_64(
    keys, out, rows: tl.uint64, per_row: tl.uint64, low: tl.uint64, most: tl.uint64, threshold: tl.uint64,
    BLOCKS: tl.constexpr, ONE_KEY: tl.constexpr,
):  # fmt: skip
    """As `integers_32`, of two words each, the upper first."""
    seed, offset, place, inside = lanes(keys, rows, per_row, 2, BLOCKS, ONE_KEY)
    w0, w1, w2, w3 = main_block(seed, offset)
    upper, lower = _times_64(in_order_2(above(w0, w1), above(w2, w3)), most)
    rejected = inside & (lower < threshold.to(tl.uint64))
    attempt = tl.zeros(place.shape, tl.uint32)
    position = tl.arange(0, 2 * BLOCKS).to(tl.uint32) % 2
    while _any(rejected):
        attempt += 1
        again, lower = _times_64(_first(seed, offset, attempt, position, 2), most)
        upper = tl.where(rejected, again, upper)
        rejected &= lower < threshold.to(tl.uint64)
    tl.store(out + place, (low.to(tl.uint64) + upper).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _first(seed, offset, attempt, position, PER_BLOCK: tl.constexpr):
    """The word of attempt 1, 2, ... at every number's position in its block."""
    w0, w1, _2, _3 = block(repeated(seed, PER_BLOCK), repeated(offset, PER_BLOCK), attempt, position + 1)
    if PER_BLOCK == 4:
        return w0
    else:
        return above(w0, w1)


@triton.jit
def _times_32(word, most):
    """Upper and lower 32 bits of word (most + 1)."""
    product = word.to(tl.uint64) * most.to(tl.uint64) + word.to(tl.uint64)
    return product >> 32, product & 0xFFFFFFFF


@triton.jit
def _times_64(word, most):
    """Upper and lower 64 bits of word (most + 1)."""
    most = most.to(tl.uint64)
    lower = word * most + word
    return tl.umulhi(word, most + tl.zeros_like(word)) + (lower < word).to(tl.uint64), lower


@triton.jit
def _any(condition):
    return tl.max(condition.to(tl.int32), axis=0) > 0
