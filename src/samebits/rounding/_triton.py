"""Stochastic rounding on CUDA, with the bits of the CPU kernels, by the rule of `_cpu.number_formats`.

Integers only: nothing is fused or flushed to zero. `_stochastic_round` imports this (and Triton) when needed.
"""

import torch
import triton
import triton.language as tl

from samebits.random._triton.philox import in_order_2, in_order_4, lanes, launch_rows, main_block
from samebits.rounding._cpu.number_formats import FORMATS


@triton.jit(do_not_specialize=["rows"])
def to_bfloat16(
    keys, out, source, rows: tl.uint64, per_row: tl.uint64, BLOCKS: tl.constexpr, ONE_KEY: tl.constexpr
):
    """float32 to codes of bfloat16; half j of the stream decides about number j."""
    seed, offset, place, inside = lanes(keys, rows, per_row, 8, BLOCKS, ONE_KEY)
    w0, w1, w2, w3 = main_block(seed, offset)
    word = in_order_4(w0, w1, w2, w3)
    half = in_order_2(word & 0xFFFF, word >> 16)
    b = tl.load(source + place, mask=inside, other=0.0).to(tl.uint32, bitcast=True)
    rounded = tl.add(b, half, sanitize_overflow=False) >> 16
    code = tl.where((b & 0x7FFFFFFF) > 0x7F800000, (b >> 16) | 0x40, rounded)
    tl.store(out + place, code.to(tl.uint16), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def to_format(
    keys, out, source, rows: tl.uint64, per_row: tl.uint64,
    DIGITS: tl.constexpr, LEAST: tl.constexpr, OVERFLOW: tl.constexpr, NAN: tl.constexpr, SIZE: tl.constexpr,
    BLOCKS: tl.constexpr, ONE_KEY: tl.constexpr,
):  # fmt: skip
    """float32 to codes of a `Format`; word j of the stream decides about number j."""
    seed, offset, place, inside = lanes(keys, rows, per_row, 4, BLOCKS, ONE_KEY)
    w0, w1, w2, w3 = main_block(seed, offset)
    word = in_order_4(w0, w1, w2, w3).to(tl.uint64)
    b = tl.load(source + place, mask=inside, other=0.0).to(tl.uint32, bitcast=True)
    a = b & 0x7FFFFFFF
    mantissa = a & 0x7FFFFF
    exponent = (a >> 23).to(tl.int32)
    m = tl.where(exponent > 0, mantissa | 0x800000, mantissa)
    exponent = tl.maximum(exponent, 1)
    shift = tl.minimum(23 - DIGITS + tl.maximum(LEAST - exponent, 0), 63)
    n = tl.add((m.to(tl.uint64) << 32) >> shift.to(tl.uint64), word, sanitize_overflow=False) >> 32
    magnitude = n.to(tl.int32) + (tl.maximum(exponent - LEAST, 0) << DIGITS)
    magnitude = tl.minimum(magnitude, OVERFLOW)
    magnitude = tl.where(a > 0x7F800000, (mantissa >> (23 - DIGITS)).to(tl.int32) | NAN, magnitude)
    code = magnitude | ((b >> 31) << (8 * SIZE - 1)).to(tl.int32)
    tl.store(out + place, code.to(out.dtype.element_ty), mask=inside)


def stochastic_round(key: torch.Tensor, source: torch.Tensor, out: torch.Tensor) -> None:
    """Rounds `source`, float32, to `out`; both contiguous and of one shape, key of shape (2,)."""
    form = FORMATS[out.dtype]
    if form.width == 2:
        launch_rows(to_bfloat16, key, (out.view(torch.uint16), source), 8)
    else:
        codes = out.view(torch.uint8 if form.size == 1 else torch.uint16)
        constants = {
            "DIGITS": form.digits,
            "LEAST": form.least + 127,
            "OVERFLOW": form.overflow,
            "NAN": form.nan,
            "SIZE": form.size,
        }
        launch_rows(to_format, key, (codes, source), 4, **constants)
