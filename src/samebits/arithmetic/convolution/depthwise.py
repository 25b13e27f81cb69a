"""The chains of a depthwise convolution's weight gradient: vectors over channels, which stand side by side."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from torch import Tensor

from samebits import _native as native
from samebits._native import instruction
from samebits._native.kernel_threads import OnTeam, float32_at, float64_at, int64_at, on_team
from samebits.arithmetic.convolution.geometry import Window
from samebits.arithmetic.convolution.windows_last import bordered_last
from samebits.arithmetic.product.mxcsr import KEPT, set_mxcsr
from samebits.arithmetic.product.vectors import FLOAT64, Emitter, Number

COUNTS = (9, 4, 2, 1)
"""Taps whose chains go on together."""


def _add_taps(number: Number) -> Any:
    """Returns the instruction that continues the chains of one of `COUNTS` of taps over some positions of a row.

    Its arguments: taps; the gradient, bytes from position to position; the image, bytes from position to position; a table of
    int64 offsets to it, one for each tap; the sums, a vector for each tap; positions (at least 1); channels.
    """

    @instruction
    def add(typing_context: Any, taps: Any, grad: Any, gm: Any, x: Any, xm: Any, table: Any, sums: Any, length: Any, channels: Any) -> Any:  # fmt: skip
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            end = builder.append_basic_block("taps_end")
            choice = builder.switch(arguments[0], end)
            for count in COUNTS:
                block = builder.append_basic_block(f"taps_{count}")
                choice.add_case(native.ir.IntType(64)(count), block)
                builder.position_at_end(block)
                _continue(Emitter(builder, number), count, *arguments[1:])
                builder.branch(end)
            builder.position_at_end(end)
            return context.get_dummy_value()

        return native.types.void(*[native.types.int64] * 9), build

    return add


def _continue(
    emit: Emitter, count: int, grad: Any, gm: Any, x: Any, xm: Any, table: Any, sums: Any, length: Any, channels: Any
) -> None:  # fmt: skip
    builder, width = emit.builder, emit.lanes * emit.number.size
    mask, place = emit.mask(channels), emit.pointer(sums)
    starts = [emit.load(place, tap * width) for tap in range(count)]
    offsets = [builder.load(emit.at(emit.pointer(table), 8 * tap, emit.i64), align=8) for tap in range(count)]
    before, loop, after = (
        builder.block,
        builder.append_basic_block("taps"),
        builder.append_basic_block("taps_done"),
    )
    builder.branch(loop)
    builder.position_at_end(loop)
    left, g, image = (builder.phi(emit.i64) for _ in range(3))
    totals = [builder.phi(emit.vector) for _ in range(count)]
    error = emit.load(emit.pointer(g), 0, mask)
    found = [
        emit.chained(error, emit.load(emit.pointer(builder.add(image, offset)), 0, mask), total)
        for offset, total in zip(offsets, totals, strict=True)
    ]
    steps = ((left, length, emit.i64(-1)), (g, grad, gm), (image, x, xm))
    for phi, begin, step in steps:
        phi.add_incoming(begin, before)
        phi.add_incoming(builder.add(phi, step), loop)
    for total, start, one in zip(totals, starts, found, strict=True):
        total.add_incoming(start, before)
        total.add_incoming(one, loop)
    builder.cbranch(builder.icmp_signed(">", left, emit.i64(1)), loop, after)
    builder.position_at_end(after)
    for tap, one in enumerate(found):
        emit.store(one, place, tap * width)


@lru_cache(maxsize=2)
def _walker(number: Number) -> OnTeam:
    add, lanes, size = _add_taps(number), number.lanes, number.size
    pointer = float64_at if number is FLOAT64 else float32_at
    kind: Any = np.float64 if number is FLOAT64 else np.float32
    nan = kind(np.nan)

    def work(index: int, args: Any) -> None:
        # args: 1-3 images, gradient of the outputs, result, 4-6 addresses of taps, runs and numbers
        numbers = native.carray(int64_at(args[6]), (16,))
        before = set_mxcsr(KEPT)
        taps, pixels, run, positions = numbers[0], numbers[1], numbers[2], numbers[3]
        channels, item, pixel, chunk = numbers[4], numbers[5], numbers[6], numbers[7]
        width, blocks = numbers[8], numbers[9]
        runs = native.carray(int64_at(args[5]), (1 << 20,))
        here = min(lanes, channels - index * lanes)
        block, offset = index * lanes // width, index * lanes % width * size
        sums, total = np.zeros(taps * lanes, kind), np.zeros(taps * lanes, kind)
        done = 0
        while done < positions:
            image, rest = done // pixels, done % pixels
            # to the end of the row or of the chunk
            length = min(run - rest % run, chunk - done % chunk, positions - done)
            place = (
                args[1] + (image * blocks + block) * item + runs[rest // run] + rest % run * pixel + offset
            )
            grad = args[2] + ((image * blocks + block) * pixels + rest) * pixel + offset
            tap = 0
            while tap < taps:
                count = 9 if taps - tap >= 9 else 4 if taps - tap >= 4 else 2 if taps - tap >= 2 else 1
                target = sums.ctypes.data + tap * lanes * size
                add(count, grad, pixel, place, pixel, args[4] + tap * 8, target, length, here)
                tap += count
            done += length
            if done % chunk == 0 or done == positions:
                for i in range(taps * lanes):
                    total[i] = sums[i] if done <= chunk else total[i] + sums[i]
                    sums[i] = 0
        for channel in range(here):
            result = native.carray(pointer(args[3] + (index * lanes + channel) * taps * size), (taps,))
            for tap in range(taps):
                one = total[tap * lanes + channel]
                result[tap] = nan if one != one else one  # noqa: PLR0124
        set_mxcsr(before)

    return on_team(work, name=f"depthwise_{number.name}")


def correlated_depthwise(x: Tensor, grad: Tensor, window: Window, number: Number) -> Tensor:
    """Returns (channels, 1, taps): the chains of each channel of `x` along the window times that of `grad`.

    `x` and `grad`: (batch, blocks, z, y, x, channels of a block), contiguous; with several blocks each is a vector of channels.
    """
    batch, blocks, width = x.shape[0], x.shape[1], x.shape[5]
    channels, x = blocks * width, x.flatten(0, 1)
    source = bordered_last(x, window, number) if window.is_copied else x
    runs, run = window.runs
    pixels, pixel = len(runs) * run, width * number.size
    taps = np.array(window.taps, np.int64) * pixel
    places = runs * pixel
    item = len(window.residues) * window.plane * pixel
    numbers = np.array(
        (len(taps), pixels, run, batch * pixels, channels, item, pixel, 256, width, blocks), np.int64
    )
    found = x.new_empty((channels, 1, len(taps)))
    _walker(number)(
        -(-channels // number.lanes), source.data_ptr(), grad.data_ptr(), found.data_ptr(),
        taps.ctypes.data, places.ctypes.data, numbers.ctypes.data,
    )  # fmt: skip
    return found
