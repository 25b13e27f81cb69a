"""Stochastic rounding on the CPU."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import torch

from samebits import _native as native
from samebits._native import inlined, instruction
from samebits._native.kernel_threads import (
    OnTeam,
    float32_at,
    int64_at,
    on_team,
    uint8_at,
    uint16_at,
    uint64_at,
)
from samebits._native.vector_writer import VectorWriter
from samebits._native.vectors import prefetch, stack
from samebits.random._cpu.philox import MULTIPLIERS, WEYL
from samebits.random._memory import address
from samebits.rounding._cpu.number_formats import FORMATS, Format, rounding_to
from samebits.rounding._cpu.tile_passes import LINE_BYTES, random_word, run, tile_kernel

# float32 rounded to bfloat16, 64 numbers at a time, which stay in vector registers from the cipher's
# counter on.
#
# As two loops over a tile on the stack it takes 1.4 times as long: LLVM gives the second one half-width
# registers, and its input has only just been stored. The vectors have the size of the work; LLVM splits
# them where registers are shorter. As everywhere, a word's lower half comes first: on a little-endian CPU.


_BLOCKS, _PER_BLOCK = 8, 8
"""Blocks of the cipher at a time, and random halves in each."""
_TOGETHER = _BLOCKS * _PER_BLOCK
_READ, _WRITTEN = 4 * _TOGETHER, 2 * _TOGETHER
_AHEAD = 4096
"""Bytes between the current and the prefetched address: a page, as the CPU prefetches no further."""


def _vector(bits: int, lanes: int) -> Any:
    return native.ir.VectorType(native.ir.IntType(bits), lanes)


def _constant(bits: int, values: Iterable[int]) -> Any:
    lanes = [*values]
    return native.ir.Constant(_vector(bits, len(lanes)), lanes)


def _random_halves(builder: Any, seed: Any, offset: Any) -> Any:
    """Returns 16-bit numbers of blocks (seed, offset), (seed, offset + 1), ..., as 32-bit (`philox4x32`)."""
    blocks = VectorWriter(builder, _BLOCKS)
    in_all_lanes = partial(blocks.filled, blocks.i64)
    low, shift = in_all_lanes(0xFFFFFFFF), in_all_lanes(32)
    counters = builder.add(blocks.splat(offset), _constant(64, range(_BLOCKS)))
    c0, c1 = builder.and_(counters, low), builder.lshr(counters, shift)
    c2 = c3 = in_all_lanes(0)
    k0 = blocks.splat(seed)
    k1 = builder.lshr(k0, shift)
    for _ in range(10):
        product_0 = builder.mul(in_all_lanes(int(MULTIPLIERS[0])), c0)
        product_1 = builder.mul(in_all_lanes(int(MULTIPLIERS[1])), c2)
        c0, c2 = (
            builder.and_(builder.xor(builder.xor(builder.lshr(product, shift), c), k), low)
            for product, c, k in ((product_1, c1, k0), (product_0, c3, k1))
        )
        c1, c3 = builder.and_(product_1, low), builder.and_(product_0, low)
        k0, k1 = builder.add(k0, in_all_lanes(int(WEYL[0]))), builder.add(k1, in_all_lanes(int(WEYL[1])))
    words = _interleave_words(builder, c0, c1, c2, c3)
    return builder.zext(builder.bitcast(words, _vector(16, _TOGETHER)), _vector(32, _TOGETHER))


def _interleave_words(builder: Any, *quarters: Any) -> Any:
    """Returns the words block after block; `quarters[w]` has the words w of all blocks."""
    w0, w1, w2, w3 = (builder.bitcast(words, _vector(32, 2 * _BLOCKS)) for words in quarters)
    lower = _constant(32, [lane for i in range(_BLOCKS) for lane in (2 * i, 2 * _BLOCKS + 2 * i)])
    alternate = _constant(32, [lane for i in range(_BLOCKS) for lane in (i, _BLOCKS + i)])
    first, second = (
        builder.bitcast(builder.shuffle_vector(a, b, lower), _vector(64, _BLOCKS))
        for a, b in ((w0, w1), (w2, w3))
    )
    return builder.shuffle_vector(first, second, alternate)


@instruction
def _round(_seed: Any, _offset: Any, _given: Any, _out: Any) -> Any:
    """Rounds the floats at the address `_given` as `bfloat16_by`, by blocks from (seed, offset) on."""

    def build(builder: Any, *arguments: Any) -> Any:
        seed, offset, given, out = arguments
        halves = _random_halves(builder, seed, offset)
        floats = native.ir.VectorType(native.ir.FloatType(), _TOGETHER).as_pointer()
        x = builder.load(builder.inttoptr(given, floats), align=4)
        bits = builder.bitcast(x, _vector(32, _TOGETHER))
        quiet = builder.or_(bits, _constant(32, [1 << 22] * _TOGETHER))
        rounded = builder.select(builder.fcmp_ordered("ord", x, x), builder.add(bits, halves), quiet)
        twice = builder.bitcast(rounded, _vector(16, 2 * _TOGETHER))
        upper = builder.shuffle_vector(twice, twice, _constant(32, range(1, 2 * _TOGETHER, 2)))
        builder.store(upper, builder.inttoptr(out, _vector(16, _TOGETHER).as_pointer()), align=2)
        return None

    return native.types.void(
        native.types.uint64, native.types.uint64, native.types.int64, native.types.int64
    ), build


_allocate = stack(_READ + _WRITTEN)
"""The expression for the address of room for the inputs of `_round` and then for its outputs."""


def _piece(chunk: int, args: Any) -> None:
    row, size = int64_at(args[1]), args[4]
    key, given, out = uint64_at(row[0]), row[2], row[3]
    seed, offset = key[0], key[1]
    first, last = chunk * size, min(row[1], (chunk + 1) * size)
    whole = last - (last - first) % _TOGETHER
    for at in range(first, whole, _TOGETHER):
        for line in range(0, _READ, LINE_BYTES):
            prefetch(given + 4 * at + line + _AHEAD)
        _round(seed, offset + np.uint64(at // _PER_BLOCK), given + 4 * at, out + 2 * at)
    if whole < last:
        place, some = _allocate(), last - whole
        for j in range(some):
            float32_at(place)[j] = float32_at(given)[whole + j]
        _round(seed, offset + np.uint64(whole // _PER_BLOCK), place, place + _READ)
        for j in range(some):
            uint16_at(out)[whole + j] = uint16_at(place + _READ)[j]


stochastic_round_bfloat16 = on_team(_piece, name="stochastic_round_bfloat16")
"""A kernel for `tile_passes.run`, with the addresses of the float32 and of the bfloat16."""


def stochastic_round(key: torch.Tensor, source: torch.Tensor, out: torch.Tensor) -> None:
    """Rounds `source`, float32, to `out`. Both contiguous and of one shape; key of shape (2,), contiguous."""
    run(_KERNELS[out.dtype], address(key), source.numel(), address(source), address(out))


_READS = ((2, 4),)


def _kernel(form: Format) -> OnTeam:
    rounded_by, pointer = rounding_to(form), uint8_at if form.size == 1 else uint16_at

    @inlined
    def store(words: Any, count: Any, at: Any, row: Any) -> None:
        source, out = float32_at(row[2]), pointer(row[3])
        for j in range(count):
            out[at + j] = rounded_by(source[at + j], random_word(words, 0, j))

    return tile_kernel(store, (form.width,), _READS, f"stochastic_round_{form.name}")


_KERNELS = {
    dtype: stochastic_round_bfloat16 if dtype is torch.bfloat16 else _kernel(form)
    for dtype, form in FORMATS.items()
}
