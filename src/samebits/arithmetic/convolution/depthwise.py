"""The chains of a depthwise convolution's weight gradient: vectors of channels, which stand side by side."""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from samebits import _native as native
from samebits._native.kernel_threads import OnTeam, float32_at, float64_at, int64_at, on_team, variants
from samebits.arithmetic.convolution.borders import bordered
from samebits.arithmetic.convolution.geometry import Window
from samebits.arithmetic.product.definition import CHUNK
from samebits.arithmetic.product.instructions import cases, fields_at, procedure
from samebits.arithmetic.product.mxcsr import KEPT, set_mxcsr
from samebits.arithmetic.product.vectors import FLOAT64, NUMBERS, Emitter, Number

COUNTS = (9, 4, 2, 1)
"""Taps whose chains go on together."""


def _add_taps(number: Number) -> Any:
    """Returns the instruction that continues the chains of one of `COUNTS` of taps over positions of a row.

    Its arguments: taps; the gradient, bytes from position to position; the image, bytes from position to
    position; a table of int64 offsets to it, one for each tap; the sums, a vector for each tap; positions (at
    least 1); channels.
    """

    def add(
        emit: Emitter, taps: Any, grad: Any, gm: Any, x: Any, xm: Any, table: Any, sums: Any, length: Any,
        channels: Any,
    ) -> None:  # fmt: skip
        def write(count: int) -> None:
            _continue(emit, count, grad, gm, x, xm, table, sums, length, channels)

        cases(emit, taps, COUNTS, write)

    return procedure(number, add)


def _continue(
    emit: Emitter, count: int, grad: Any, gm: Any, x: Any, xm: Any, table: Any, sums: Any, length: Any,
    channels: Any,
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


class DepthwiseFields(NamedTuple):
    """The numbers of a depthwise convolution's weight gradient, as the kernel reads them."""

    channels: int
    width: int
    """Channels of a block."""
    blocks: int
    taps: int
    pixels: int
    """Pixels of an image; those of a run; those of all images."""
    run: int
    positions: int
    item: int
    """Bytes from block to block of the images, and from pixel to pixel."""
    pixel: int
    taps_at: int
    """Addresses of tables of int64: places of the taps, and of the runs."""
    runs_at: int


@variants(number=NUMBERS.values())
def _walker(number: Number) -> OnTeam:
    add, lanes, size, read = _add_taps(number), number.lanes, number.size, fields_at(DepthwiseFields)
    pointer = float64_at if number is FLOAT64 else float32_at
    kind: Any = np.float64 if number is FLOAT64 else np.float32
    nan, chunk = kind(np.nan), CHUNK

    def work(index: int, args: Any) -> None:
        # args: 1-3 images, gradient of the outputs, result, 4 the fields
        f = read(args[4])
        before = set_mxcsr(KEPT)
        runs = native.carray(int64_at(f.runs_at), (1 << 20,))
        here = min(lanes, f.channels - index * lanes)
        block, offset = index * lanes // f.width, index * lanes % f.width * size
        sums, total = np.zeros(f.taps * lanes, kind), np.zeros(f.taps * lanes, kind)
        done = 0
        while done < f.positions:
            image, rest = done // f.pixels, done % f.pixels
            # to the end of the row or of the chunk
            length = min(f.run - rest % f.run, chunk - done % chunk, f.positions - done)
            place = args[1] + (image * f.blocks + block) * f.item + runs[rest // f.run]
            place += rest % f.run * f.pixel + offset
            grad = args[2] + ((image * f.blocks + block) * f.pixels + rest) * f.pixel + offset
            tap = 0
            while tap < f.taps:
                left = f.taps - tap
                count = 9 if left >= 9 else 4 if left >= 4 else 2 if left >= 2 else 1
                target = native.address_of(sums) + tap * lanes * size
                add(count, grad, f.pixel, place, f.pixel, f.taps_at + tap * 8, target, length, here)
                tap += count
            done += length
            if done % chunk == 0 or done == f.positions:
                for i in range(f.taps * lanes):
                    total[i] = sums[i] if done <= chunk else total[i] + sums[i]
                    sums[i] = 0
        for channel in range(here):
            result = native.carray(pointer(args[3] + (index * lanes + channel) * f.taps * size), (f.taps,))
            for tap in range(f.taps):
                one = total[tap * lanes + channel]
                result[tap] = nan if one != one else one  # noqa: PLR0124
        set_mxcsr(before)

    return on_team(work, name=f"depthwise_{number.name}")


def correlated_depthwise(x: Tensor, grad: Tensor, window: Window, number: Number) -> Tensor:
    """Returns (channels, 1, taps): the chains of each channel of `x` along the window times that of `grad`.

    `x` and `grad`: (batch, blocks, z, y, x, channels of a block), contiguous; of several blocks each has a
    vector of channels.
    """
    batch, blocks, width = x.shape[0], x.shape[1], x.shape[5]
    channels, x = blocks * width, x.flatten(0, 1)
    source = bordered(x, window, number, last=True) if window.is_copied else x
    runs, run = window.runs
    pixels, pixel = len(runs) * run, width * number.size
    taps, places = np.array(window.taps, np.int64) * pixel, runs * pixel
    fields = DepthwiseFields(
        channels=channels, width=width, blocks=blocks, taps=len(taps), pixels=pixels, run=run,
        positions=batch * pixels, item=len(window.residues) * window.plane * pixel, pixel=pixel,
        taps_at=taps.ctypes.data, runs_at=places.ctypes.data,
    )  # fmt: skip
    found, numbers = x.new_empty((channels, 1, len(taps))), array("q", fields)
    _walker(number)(
        -(-channels // number.lanes),
        source.data_ptr(),
        grad.data_ptr(),
        found.data_ptr(),
        numbers.buffer_info()[0],
    )
    return found
