"""The chains of a weight's gradient: over the positions of all outputs, on torch's threads.

Columns are the output channels of a group, whose gradients are packed into panels for a chunk of positions.
Rows are (channel, tap) with channels first: a strip of them is copied from the image's copy with a border.
With channels last they are (tap, channel), and a strip of them is read where it stands.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from samebits import _native as native
from samebits._native import inlined
from samebits._native.kernel_threads import OnTeam, int64_at, on_team, variants
from samebits.arithmetic.convolution.borders import bordered
from samebits.arithmetic.convolution.copies import gather_rows, turn
from samebits.arithmetic.convolution.geometry import Window
from samebits.arithmetic.convolution.tile import tapped_kernel
from samebits.arithmetic.convolution.windows import WindowPlan
from samebits.arithmetic.product.finish import finish
from samebits.arithmetic.product.instructions import fields_at
from samebits.arithmetic.product.mxcsr import mxcsr_of, set_mxcsr
from samebits.arithmetic.product.packing import copy_element, copy_rows, transpose_panel
from samebits.arithmetic.product.tiles import register_tile, rows_of_tiles
from samebits.arithmetic.product.vectors import FLOAT64, NUMBERS, Number


class PositionFields(NamedTuple):
    """The numbers of a weight's gradient, as the kernel reads them."""

    strips: int
    """Strips of rows; those that a thread takes at a time; pieces of that size."""
    block: int
    blocks: int
    rows: int
    n: int
    """Outputs of a group."""
    groups: int
    pixels: int
    """Pixels of an image; those of a run."""
    run: int
    positions: int
    part: int
    """Chunks of positions that a thread takes at a time."""
    plane: int
    """Bytes from the sums of a chunk to those of the next; 0: they are added."""
    item: int
    """Bytes of the images from image to image, from group to group, and from pixel to pixel."""
    group_bytes: int
    pixel: int
    grad_item: int
    """Bytes of the outputs' gradients from image to image, and (channels last) from pixel to pixel."""
    grad_pixel: int
    strips_at: int
    """Addresses of int64 tables: each strip's first row, place and rows; places of rows, runs and k."""
    taps: int
    runs: int
    ramp: int


def _packing(number: Number, last: bool) -> Any:
    """Returns the part of kernels that packs the outputs' gradients of a chunk of positions into panels."""
    form = register_tile(number)
    wide, size, lanes, panel_bytes = (
        form.columns,
        number.size,
        number.lanes,
        form.columns * number.size * form.chunk,
    )
    copy, transpose, element = copy_rows(number, 2), transpose_panel(number), copy_element(number)
    pitch = wide * size

    @inlined
    def pack_last(grads: Any, f: Any, group: Any, k0: Any, length: Any, packed: Any) -> None:
        for j in range(0, f.n, wide):
            here = grads + k0 * f.grad_pixel + (group * f.n + j) * size
            copy(here, f.grad_pixel, packed + j // wide * panel_bytes, pitch, length, min(wide, f.n - j))

    @inlined
    def pack_first(grads: Any, f: Any, group: Any, k0: Any, length: Any, packed: Any) -> None:
        done = 0
        while done < length:
            image, pixel = (k0 + done) // f.pixels, (k0 + done) % f.pixels
            n = min(length - done, f.pixels - pixel)
            grad = grads + image * f.grad_item + (group * f.n * f.pixels + pixel) * size
            whole = n // lanes * lanes
            for j in range(0, f.n, lanes):
                here = grad + j * f.pixels * size
                target = packed + j // wide * panel_bytes + j % wide * size + done * pitch
                transpose(here, f.pixels * size, target, pitch, whole, min(lanes, f.n - j))
                for k in range(whole, n):
                    for i in range(lanes):
                        column = min(i, f.n - j - 1)
                        element(here + (column * f.pixels + k) * size, target + k * pitch + i * size)
            done += n

    return pack_last if last else pack_first


@variants(number=NUMBERS.values(), last=(False, True))
def _walker(number: Number, last: bool) -> OnTeam:
    form = register_tile(number)
    most, wide, size, chunk, lanes = form.rows, form.columns, number.size, form.chunk, number.lanes
    broad, narrow = tapped_kernel(number, most, 2, last=True), tapped_kernel(number, most, 1, last=True)
    pack, gather, read = _packing(number, last), gather_rows(number, 2), fields_at(PositionFields)
    pitch, strip_pitch, mxcsr = wide * size, chunk * size + 64, mxcsr_of(number)
    am, strip_bytes = (size, 0) if last else (strip_pitch, most * strip_pitch)

    def work(index: int, args: Any) -> None:
        # args: 1-3 images, gradient of the outputs, result, 4 the plan
        f = read(args[4])
        before = set_mxcsr(mxcsr)
        strips = native.carray(int64_at(f.strips_at), (1 << 20,))
        runs = native.carray(int64_at(f.runs), (1 << 20,))
        panels = (f.n + wide - 1) // wide
        memory = np.empty(panels * pitch * chunk + strip_bytes + 128, np.uint8)
        offsets, pieces = np.empty(chunk, np.int64), np.empty((chunk, 3), np.int64)
        packed = (native.address_of(memory) + 63) // 64 * 64
        strip = packed + panels * pitch * chunk
        first = index % f.blocks * f.block
        rest = index // f.blocks
        group, k_begin = rest % f.groups, rest // f.groups * f.part * chunk
        source = args[1] + group * f.group_bytes
        for k0 in range(k_begin, min(f.positions, k_begin + f.part * chunk), chunk):
            length = min(chunk, f.positions - k0)
            pack(args[2], f, group, k0, length, packed)
            # Places of positions in an image: of each, or of pieces of runs, which are copied.
            k, count = 0, 0
            while k < length:
                image, pixel = (k0 + k) // f.pixels, (k0 + k) % f.pixels
                x = pixel % f.run
                place = image * f.item + runs[pixel // f.run] + x * f.pixel
                step = min(length - k, f.run - x)
                if last:
                    for i in range(step):
                        offsets[k + i] = place + i * f.pixel
                else:
                    step = min(step, wide)
                    pieces[count, 0], pieces[count, 1], pieces[count, 2] = place, k * size, step
                    count += 1
                k += step
            c0 = args[3] + k0 // chunk * f.plane + group * f.rows * f.n * size
            for number_of in range(first, min(f.strips, first + f.block)):
                row, place, rows = strips[3 * number_of], strips[3 * number_of + 1], strips[3 * number_of + 2]
                if last:
                    a, table = source + place, native.address_of(offsets)
                else:
                    a, table = strip, f.ramp
                    for p in range(count):
                        here, there = source + pieces[p, 0], strip + pieces[p, 1]
                        gather(here, f.taps + row * 8, there, strip_pitch, rows, pieces[p, 2])
                for j in range(0, f.n, wide):
                    columns = min(wide, f.n - j)
                    old = columns if k0 > k_begin and f.plane == 0 else 0
                    b, c, cm = packed + j // wide * pitch * chunk, c0 + (row * f.n + j) * size, f.n * size
                    if columns > lanes:
                        broad(rows, a, am, b, pitch, table, c, cm, c, length, columns, old, 0)
                    else:
                        narrow(rows, a, am, b, pitch, table, c, cm, c, length, columns, old, 0)
        set_mxcsr(before)

    return on_team(work, name=f"positions_{number.name}_{last}", is_vectorized=True)


@lru_cache(maxsize=1024)
def _plan(
    number: Number,
    window: Window,
    batch: int,
    groups: int,
    channels: int,
    outputs: int,
    threads: int,
    last: bool,
) -> tuple[WindowPlan, int]:
    """Returns the plan for groups of (channels, outputs), and the number of planes of its result."""
    form, size = register_tile(number), number.size
    runs, run = window.runs
    pixels, rows = len(runs) * run, channels * len(window.taps)
    positions = batch * pixels
    if last:
        pixel, group_bytes = groups * channels * size, channels * size
        item = len(window.residues) * window.plane * pixel
        places = np.array(window.taps, np.int64)[:, None] * pixel + np.arange(channels) * size
        strips = _strips(places.reshape(-1), size, form.rows)
    else:
        pixel, group_bytes = size, channels * window.channel * size
        item = groups * group_bytes
        strips = _strips(np.arange(rows), 1, form.rows)
    chunks = -(-positions // form.chunk)
    part, parts, block = chunks, 1, len(strips)
    work = groups * rows * outputs * positions
    if threads > 1 and work > 1 << 19:
        if groups < 2 * threads and len(strips) * groups >= 2 * threads:
            block = -(-len(strips) * groups // (2 * threads))
        if groups * -(-len(strips) // block) < threads:
            block = len(strips)
            part = -(-chunks // (4 * threads))
            parts = -(-chunks // part)
    planes = chunks if parts > 1 else 1
    blocks = -(-len(strips) // block)
    ramp = np.arange(form.chunk, dtype=np.int64) * size
    tables = [strips, window.table(channels, size), runs * pixel, ramp]
    strips_at, taps, runs_at, ramp_at = (table.ctypes.data for table in tables)
    fields = PositionFields(
        strips=len(strips), block=block, blocks=blocks, rows=rows, n=outputs, groups=groups, pixels=pixels,
        run=run, positions=positions, part=part, plane=groups * rows * outputs * size if parts > 1 else 0,
        item=item, group_bytes=group_bytes, pixel=pixel, grad_item=groups * outputs * pixels * size,
        grad_pixel=groups * outputs * size, strips_at=strips_at, taps=taps, runs=runs_at, ramp=ramp_at,
    )  # fmt: skip
    return WindowPlan(fields, tables, blocks * groups * parts), planes


def _strips(places: np.ndarray, step: int, most: int) -> np.ndarray:
    """For each strip of rows whose places are `step` apart: its first row, its place, its rows."""
    ends = [*(np.flatnonzero(np.diff(places) != step) + 1).tolist(), len(places)]
    made, begin = [], 0
    for end in ends:
        for rows in rows_of_tiles(end - begin, most):
            made.append((begin, places[begin], rows))
            begin += rows
    return np.array(made, np.int64)


def correlated(
    x: Tensor, grad: Tensor, window: Window, groups: int, number: Number, *, last: bool = False
) -> Tensor:
    """Returns (outputs, channels of a group, taps): chains of `x` times `grad` over a window's positions.

    `x`: (batch, channels, z, y, x); `grad`: (batch, outputs, z, y, x), contiguous. `last`: the channels of
    both are the last dimension, and `x` is contiguous too.
    """
    dim = 4 if last else 1
    batch, channels, columns = x.shape[0], x.shape[dim] // groups, grad.shape[dim] // groups
    source = bordered(x, window, number, last=last) if window.is_copied else x
    plan, planes = _plan(number, window, batch, groups, channels, columns, torch.get_num_threads(), last)
    taps = len(window.taps)
    sums = torch.empty((planes, groups, channels * taps, columns), dtype=number.sums)
    _walker(number, last)(plan.chunks, source.data_ptr(), grad.data_ptr(), sums.data_ptr(), plan.address)
    found = sums.new_empty((groups * columns, channels, taps))
    turn(_added(sums, number), found, channels * taps, columns, number)
    return turn(found, torch.empty_like(found), taps, channels, number) if last else found


def _added(sums: Tensor, number: Number) -> Tensor:
    """Returns sums[0] + sums[1] + ..., added in order."""
    if len(sums) == 1:
        return sums[0]
    total, columns = sums.new_empty(sums.shape[1:]), sums.shape[-1]
    factors = array("d" if number is FLOAT64 else "f", (1, 0))
    steps = (0, columns * number.size, number.size, 0, 0, 0)
    places = total.data_ptr(), steps, 0, factors.buffer_info()[0], mxcsr_of(number)
    finish(sums, total, *places)
    return total
