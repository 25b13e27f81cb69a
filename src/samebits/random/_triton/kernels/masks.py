"""Bernoulli numbers and dropout: the Triton form of `samebits.random._cpu.bernoulli_masks`, which states the rule."""

import triton
import triton.language as tl

from samebits.random._triton.kernels.arithmetic import rounded, widened
from samebits.random._triton.kernels.fill import scalar
from samebits.random._triton.kernels.philox import in_order_4, lanes, main_block


@triton.jit(do_not_specialize=["rows", "below"])
def bernoulli(
    keys,
    out,
    rows: tl.uint64,
    per_row: tl.uint64,
    below: tl.uint64,
    BLOCKS: tl.constexpr,
    ONE_KEY: tl.constexpr,
):
    """Ones where the word is less than `below`, else zeros; to any dtype."""
    seed, offset, place, inside = lanes(keys, rows, per_row, 4, BLOCKS, ONE_KEY)
    w0, w1, w2, w3 = main_block(seed, offset)
    _store_condition(out + place, in_order_4(w0, w1, w2, w3) < below.to(tl.uint32), inside)


@triton.jit(do_not_specialize=["rows"])
def bernoulli_each(
    keys, out, p, rows: tl.uint64, per_row: tl.uint64, BLOCKS: tl.constexpr, ONE_KEY: tl.constexpr
):
    """As `bernoulli`, each number with its own float64 probability."""
    seed, offset, place, inside = lanes(keys, rows, per_row, 4, BLOCKS, ONE_KEY)
    w0, w1, w2, w3 = main_block(seed, offset)
    probability = tl.load(p + place, mask=inside, other=0.0)
    word = in_order_4(w0, w1, w2, w3)
    _store_condition(out + place, word.to(tl.float64) + 1.0 <= probability * 2.0**32, inside)


@triton.jit
def _store_condition(pointers, condition, mask):
    dtype: tl.constexpr = pointers.dtype.element_ty
    if dtype.is_floating():
        tl.store(pointers, rounded(tl.where(condition, 1.0, 0.0), dtype), mask=mask)
    else:
        tl.store(pointers, condition.to(dtype), mask=mask)


@triton.jit(do_not_specialize=["rows", "below"])
def dropout(
    keys, out, source, rows: tl.uint64, per_row: tl.uint64, below: tl.uint64, scale: tl.float64,
    BLOCKS: tl.constexpr, ONE_KEY: tl.constexpr,
):  # fmt: skip
    """`source` times 0 where the word is less than `below`, else times `scale`. Backward is the same, of the gradient."""
    seed, offset, place, inside = lanes(keys, rows, per_row, 4, BLOCKS, ONE_KEY)
    w0, w1, w2, w3 = main_block(seed, offset)
    x = widened(tl.load(source + place, mask=inside, other=0.0))
    factor = tl.where(in_order_4(w0, w1, w2, w3) < below.to(tl.uint32), 0.0, scalar(scale, x.dtype))
    tl.store(out + place, rounded(x * factor, out.dtype.element_ty), mask=inside)
