"""The chains of a convolution over windows with channels last: pixels times panels of weights, with nothing copied but borders."""

from __future__ import annotations

from array import array
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits import _native as native
from samebits._native.kernel_threads import OnTeam, int64_at, on_team
from samebits.arithmetic.convolution.copies import clear_run, copy_shifted, turn
from samebits.arithmetic.convolution.geometry import Window
from samebits.arithmetic.convolution.tile import tapped_kernel
from samebits.arithmetic.convolution.windows import WindowPlan
from samebits.arithmetic.product.mxcsr import mxcsr_of, set_mxcsr
from samebits.arithmetic.product.tiles import next_rows, register_tile
from samebits.arithmetic.product.vectors import Number, copied

# The copy of an image in channels last in which every tap finds its pixel: zeros around it, and residues of
# a stride apart.


WORK = 1 << 15
"""Elements that one thread copies at a time."""
SLACK = 64
"""Zeros at the end: kernels read whole vectors."""


@lru_cache(maxsize=2)
def _copier(number: Number) -> OnTeam:
    copy, clear, size = copy_shifted(number), clear_run(number), number.size

    def work(index: int, args: Any) -> None:
        # args: 1 source, 2 target, 3 numbers
        numbers = native.carray(int64_at(args[3]), (64,))
        rows, each, channels = numbers[0], numbers[1], numbers[2]
        sz, sy, sx = numbers[3], numbers[4], numbers[5]
        lz, ly, lx = numbers[6], numbers[7], numbers[8]
        kz, ky, kx = numbers[9], numbers[10], numbers[11]
        residues = numbers[12]
        pixel = channels * size
        for row in range(index * each, min(rows, (index + 1) * each)):
            target = args[2] + row * lx * pixel
            j, rest = row % ly, row // ly
            i, rest = rest % lz, rest // lz
            r, image = rest % residues, rest // residues
            z, y, x0 = numbers[13 + 3 * r] + kz * i, numbers[14 + 3 * r] + ky * j, numbers[15 + 3 * r]
            # the first and the last pixel of the row that the source has
            low = min(lx, max(0, (kx - 1 - x0) // kx))
            high = max(low, min(lx, (sx - x0 + kx - 1) // kx))
            if z < 0 or z >= sz or y < 0 or y >= sy or high <= low:
                clear(target, lx * channels)
            else:
                here = args[1] + (((image * sz + z) * sy + y) * sx + x0) * pixel
                if kx == 1:
                    copy(here, target, low * channels, high * channels, lx * channels)
                else:
                    clear(target, low * channels)
                    clear(target + high * pixel, (lx - high) * channels)
                    for x in range(low, high):
                        copy(here + x * kx * pixel, target + x * pixel, 0, channels, channels)
            if row == rows - 1:
                clear(target + lx * pixel, numbers[13 + 3 * residues])

    return on_team(work, name=f"border_last_{number.name}")


def bordered_last(x: Tensor, window: Window, number: Number) -> Tensor:
    """Returns the copy of (batch, z, y, x, channels) for a window: (batch, residues, rows, `SLACK` zeros at the end)."""
    batch, channels = x.shape[0], x.shape[4]
    residues = window.residues
    z, y, length = window.lengths
    elements = batch * len(residues) * window.plane * channels
    out = x.new_empty(elements + SLACK)
    rows = batch * len(residues) * z * y
    each = max(1, WORK // (length * channels))
    numbers = [
        rows,
        each,
        channels,
        *x.shape[1:4],
        *window.lengths,
        *(line.step for line in window.lines),
        len(residues),
    ]
    for residue in residues:
        numbers += [line.step * line.first + r for line, r in zip(window.lines, residue, strict=True)]
    numbers.append(SLACK)
    packed = array("q", numbers)
    _copier(copied(number))(-(-rows // each), x.data_ptr(), out.data_ptr(), packed.buffer_info()[0])
    return out


FIELDS = 24
"""Numbers of a plan before its tables."""


@lru_cache(maxsize=3)
def _walker(number: Number) -> OnTeam:
    """Returns the kernel; `_plan` lists the numbers that it reads."""
    form = register_tile(number)
    most, wide, size, chunk, lanes = form.rows, form.columns, number.size, form.chunk, number.lanes
    rows_of, mxcsr = next_rows(most), mxcsr_of(number)
    broad, narrow = tapped_kernel(number, most, 2, last=True), tapped_kernel(number, most, 1, last=True)

    def work(index: int, args: Any) -> None:
        # args: 1-4 images, panels of weights, result and bias, 5 the plan
        plan = native.carray(int64_at(args[5]), (32,))
        before = set_mxcsr(mxcsr)
        total, per_image, block, n_all, part, parts = plan[0], plan[1], plan[2], plan[3], plan[4], plan[5]
        k_all, item, pixel, channels, run = plan[6], plan[7], plan[8], plan[9], plan[10]
        out_item, cm, groups, has_bias = plan[11], plan[12], plan[13], plan[14]
        taps = args[5] + plan[15]
        runs = native.carray(int64_at(args[5] + plan[16]), (1 << 20,))
        panels = (n_all + wide - 1) // wide
        first = index % parts * part
        rest = index // parts
        group = rest % groups
        begin = rest // groups * block
        for k0 in range(0, k_all, chunk):
            length = min(chunk, k_all - k0)
            own = has_bias if k0 + length == k_all else 0
            for panel in range(first, min(panels, first + part)):
                columns = min(wide, n_all - panel * wide)
                b = args[2] + ((group * panels + panel) * k_all + k0) * wide * size
                old = columns if k0 > 0 else 0
                column = (group * n_all + panel * wide) * size
                s = args[4] + column * has_bias
                for q in range(begin, min(total, begin + block)):
                    image, row = q // per_image, q % per_image
                    a0 = args[1] + image * item + runs[row] + group * channels
                    c0 = args[3] + image * out_item + row * run * cm + column
                    x = 0
                    while x < run:
                        rows = rows_of(run - x)
                        a, c = a0 + x * pixel, c0 + x * cm
                        if columns > lanes:
                            broad(
                                rows,
                                a,
                                pixel,
                                b,
                                wide * size,
                                taps + k0 * 8,
                                c,
                                cm,
                                s,
                                length,
                                columns,
                                old,
                                own,
                            )
                        else:
                            narrow(
                                rows,
                                a,
                                pixel,
                                b,
                                wide * size,
                                taps + k0 * 8,
                                c,
                                cm,
                                s,
                                length,
                                columns,
                                old,
                                own,
                            )
                        x += rows
        set_mxcsr(before)

    return on_team(work, name=f"windows_last_{number.name}")


@lru_cache(maxsize=1024)
def _plan(
    number: Number,
    window: Window,
    batch: int,
    groups: int,
    outputs: int,
    channels: int,
    is_biased: bool,
    threads: int,
) -> WindowPlan:
    """Returns the plan for (batch, z, y, x, groups x channels) images and `outputs` weights for each group."""
    form, size = register_tile(number), number.size
    runs, run = window.runs
    if len(runs) == 1 and run > 256:  # rows of an image that stand side by side
        pieces = np.arange(0, run - run % 48, 48, dtype=np.int64)
        if run % 48 == 0:
            runs, run = pieces, 48
        else:
            _, _, run = window.outputs
            runs = np.arange(0, window.runs[1], run, dtype=np.int64)
    pixels = len(runs) * run
    pixel = groups * channels * size
    k = channels * len(window.taps)
    panels = -(-outputs // form.columns)
    total = batch * len(runs)
    work = run * k * outputs
    wanted = 1 if threads == 1 else 4 * threads
    block = max(1, min(-(-total * groups // wanted), (1 << 16) // (run * outputs)), (1 << 18) // work)
    part = panels
    pieces_of_work = groups * -(-total // block)
    if pieces_of_work < wanted and work * total * groups > 1 << 19:
        part = -(-panels * pieces_of_work // wanted)
    parts = -(-panels // part)
    table = (np.arange(channels)[:, None] * size + np.array(window.taps) * pixel).reshape(-1)
    tables = [table.astype(np.int64), runs * pixel]
    begins = FIELDS * 8 + 8 * np.cumsum([0, *(len(table) for table in tables[:-1])])
    fields = [
        total, len(runs), block, outputs, part, parts, k, len(window.residues) * window.plane * pixel, pixel,
        channels * size, run, pixels * groups * outputs * size, groups * outputs * size, groups, int(is_biased), *begins,
    ]  # fmt: skip
    head = np.zeros(FIELDS, np.int64)
    head[: len(fields)] = fields
    return WindowPlan(np.concatenate([head, *tables]), pieces_of_work * parts)


def _panels(weights: Tensor, groups: int, number: Number) -> Tensor:
    """Returns (outputs, k) as (groups, panels, k, columns of a tile), with zeros beyond the last output."""
    outputs, k = weights.shape
    each, wide = outputs // groups, register_tile(number).columns
    count = -(-each // wide)
    if each % wide:
        wider = weights.new_zeros((groups, count * wide, k))
        wider[:, :each] = weights.view(groups, each, k)
        weights = wider
    return turn(weights, weights.new_empty((groups, count, k, wide)), wide, k, number)


def windowed_last(
    x: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    window: Window,
    groups: int,
    number: Number,
    source: Tensor | None = None,
) -> Tensor:
    """Returns (batch, z, y, x, outputs): each output channel's row of `weights` along each window of its group.

    `x`: (batch, z, y, x, channels), contiguous; `weights`: (outputs, channels of a group x taps), contiguous. `source`: the copy
    for the window, if there is one.
    """
    batch, channels = x.shape[0], x.shape[4]
    outputs = weights.shape[0]
    if source is None:
        source = bordered_last(x, window, number) if window.is_copied else x
    plan = _plan(
        number,
        window,
        batch,
        groups,
        outputs // groups,
        channels // groups,
        bias is not None,
        torch.get_num_threads(),
    )
    packed = _panels(weights, groups, number)
    out = x.new_empty((batch, *window.outputs, outputs), dtype=number.sums)
    _walker(number)(
        plan.chunks, source.data_ptr(), packed.data_ptr(), out.data_ptr(),
        (weights if bias is None else bias).data_ptr(), plan.address,
    )  # fmt: skip
    return out
