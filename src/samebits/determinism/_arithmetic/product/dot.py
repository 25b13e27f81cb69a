"""The product of two long vectors: one output, of which each chunk is a chain, so that lanes are chunks."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from samebits import _native as native
from samebits._native import instruction
from samebits._native.kernel_threads import OnTeam, int64_at, on_team
from samebits.determinism._arithmetic.product.mxcsr import set_mxcsr
from samebits.determinism._arithmetic.product.packing import Transposition
from samebits.determinism._arithmetic.product.tiles import register_tile
from samebits.determinism._arithmetic.product.vectors import Emitter, Number


def chunks_kernel(number: Number) -> Any:
    """Returns the instruction that computes the sums of up to a vector of whole chunks.

    Its arguments: a, b, bytes from chunk to chunk, the length of a chunk (a multiple of a vector), the number of
    chunks, where their sums are stored.
    """

    @instruction
    def chunks(typing_context: Any, a: Any, b: Any, step: Any, length: Any, count: Any, sums: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            a, b, step, length, count, sums = arguments
            emit = Emitter(builder, number)
            block = Transposition(emit, step, count)
            total = native.cgutils.alloca_once_value(builder, emit.zero())
            with native.cgutils.for_range(builder, builder.sdiv(length, emit.i64(emit.lanes))) as loop:
                offset = builder.mul(loop.index, emit.i64(emit.lanes * number.size))
                places = [builder.gep(emit.pointer(one), [offset]) for one in (a, b)]
                for place in places:  # the next chunks: the CPU foresees no more than a few places in a page
                    block.prefetch(place, emit.lanes * register_tile(number).chunk * number.size)
                for left, right in zip(*[block.parts(place) for place in places], strict=True):
                    for pair in zip(left, right, strict=True):
                        builder.store(emit.chained(*pair, builder.load(total)), total)
            emit.store(builder.load(total), emit.pointer(sums), 0, emit.mask(count))
            return context.get_dummy_value()

        return native.types.void(*[native.types.int64] * 6), build

    return chunks


def chain_kernel(number: Number) -> Any:
    """Returns the instruction that computes the sum of one chunk; its arguments: a, b, the length, where to store it."""

    @instruction
    def chain(typing_context: Any, a: Any, b: Any, length: Any, place: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            a, b, length, place = arguments
            emit = Emitter(builder, number)
            total = native.cgutils.alloca_once_value(builder, emit.zero())
            with native.cgutils.for_range(builder, length) as loop:
                offset = builder.mul(loop.index, emit.i64(number.size))
                left, right = (emit.broadcast(emit.pointer(one), offset) for one in (a, b))
                builder.store(emit.chained(left, right, builder.load(total)), total)
            emit.store(builder.load(total), emit.pointer(place), 0, emit.mask(emit.i64(1)))
            return context.get_dummy_value()

        return native.types.void(*[native.types.int64] * 4), build

    return chain


@lru_cache(maxsize=3)
def dotted(number: Number, _: torch.dtype) -> OnTeam:
    """Returns the kernel of products of two vectors that are contiguous; its arguments are those of `tiled`."""
    size, chunk, lanes = number.size, register_tile(number).chunk, number.lanes
    several, one = chunks_kernel(number), chain_kernel(number)

    def work(index: int, args: Any) -> None:
        plan = native.carray(int64_at(args[5]), (40,))
        before = set_mxcsr(plan[0])
        k_all, each, step = plan[4], plan[23], chunk * size
        whole = k_all // chunk
        first = index * each
        last = min(whole, first + each)
        for i in range(first, last, lanes):
            at = i * step
            several(args[1] + at, args[2] + at, step, chunk, min(lanes, last - i), args[3] + i * size)
        if last == whole and whole < first + each and whole * chunk < k_all:
            at = whole * step
            one(args[1] + at, args[2] + at, k_all - whole * chunk, args[3] + whole * size)
        set_mxcsr(before)

    return on_team(work, name=f"dot_{number.name}")
