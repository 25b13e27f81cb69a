"""The chains of a weight's gradient with channels last: rows (tap, channel) are read where they stand in the image's copy."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits import _native as native
from samebits._native.kernel_threads import OnTeam, int64_at, on_team
from samebits.arithmetic.convolution.geometry import Window
from samebits.arithmetic.convolution.positions import add_planes
from samebits.arithmetic.convolution.tile import tapped_kernel
from samebits.arithmetic.convolution.windows import WindowPlan
from samebits.arithmetic.convolution.windows_last import bordered_last
from samebits.arithmetic.product.mxcsr import mxcsr_of, set_mxcsr
from samebits.arithmetic.product.packing import copy_rows
from samebits.arithmetic.product.tiles import register_tile
from samebits.arithmetic.product.vectors import Number

FIELDS = 24
"""Numbers of a plan before its tables."""


@lru_cache(maxsize=3)
def _walker(number: Number) -> OnTeam:
    """Returns the kernel; `_plan` lists the numbers that it reads."""
    form = register_tile(number)
    most, wide, size, chunk, lanes = form.rows, form.columns, number.size, form.chunk, number.lanes
    broad, narrow = tapped_kernel(number, most, 2, last=True), tapped_kernel(number, most, 1, last=True)
    copy = copy_rows(number, 2)
    panel_bytes, mxcsr = wide * size * chunk, mxcsr_of(number)

    def work(index: int, args: Any) -> None:
        # args: 1-3 images, gradient of the outputs, result, 4 the plan
        plan = native.carray(int64_at(args[4]), (32,))
        before = set_mxcsr(mxcsr)
        strips_all, block, blocks, n_all, pixels, run = plan[0], plan[1], plan[2], plan[3], plan[4], plan[5]
        item, pixel, group_bytes, grad_pixel, positions = plan[6], plan[7], plan[8], plan[9], plan[10]
        part, plane, groups, rows_all = plan[11], plan[12], plan[13], plan[14]
        strips = native.carray(int64_at(args[4] + plan[15]), (1 << 20,))
        runs = native.carray(int64_at(args[4] + plan[16]), (1 << 20,))
        panels = (n_all + wide - 1) // wide
        memory = np.zeros(panels * panel_bytes + 128, np.uint8)
        offsets = np.empty(chunk, np.int64)
        packed = (memory.ctypes.data + 63) // 64 * 64
        first = index % blocks * block
        rest = index // blocks
        group, k_begin = rest % groups, rest // groups * part * chunk
        source = args[1] + group * group_bytes
        for k0 in range(k_begin, min(positions, k_begin + part * chunk), chunk):
            length = min(chunk, positions - k0)
            for k in range(length):
                image, rest = (k0 + k) // pixels, (k0 + k) % pixels
                offsets[k] = image * item + runs[rest // run] + rest % run * pixel
            grad = args[2] + k0 * grad_pixel + group * n_all * size
            for j in range(0, n_all, wide):
                panel = packed + j // wide * panel_bytes
                copy(grad + j * size, grad_pixel, panel, wide * size, length, min(wide, n_all - j))
            c0 = args[3] + k0 // chunk * plane + group * rows_all * n_all * size
            for strip in range(first, min(strips_all, first + block)):
                row, place, rows = strips[3 * strip], strips[3 * strip + 1], strips[3 * strip + 2]
                for j in range(0, n_all, wide):
                    columns = min(wide, n_all - j)
                    old = columns if k0 > k_begin and plane == 0 else 0
                    b, c = packed + j // wide * panel_bytes, c0 + (row * n_all + j) * size
                    a, table, cm = source + place, offsets.ctypes.data, n_all * size
                    if columns > lanes:
                        broad(rows, a, size, b, wide * size, table, c, cm, c, length, columns, old, 0)
                    else:
                        narrow(rows, a, size, b, wide * size, table, c, cm, c, length, columns, old, 0)
        memory[0] = 0  # until here Numba must not free it
        offsets[0] = 0
        set_mxcsr(before)

    return on_team(work, name=f"positions_last_{number.name}")


@lru_cache(maxsize=1024)
def _plan(
    number: Number, window: Window, batch: int, groups: int, channels: int, outputs: int, threads: int
) -> tuple[WindowPlan, int]:
    """Returns the plan for groups of (channels, outputs), and the number of planes of its result."""
    form, size = register_tile(number), number.size
    runs, run = window.runs
    pixels, pixel = len(runs) * run, groups * channels * size
    rows, positions = channels * len(window.taps), batch * pixels
    strips = _strips(window, channels, groups, form.rows, size)
    chunks = -(-positions // form.chunk)
    part, parts, block = chunks, 1, len(strips)
    work = groups * rows * outputs * positions
    if threads > 1 and work > 1 << 19 and groups < 2 * threads:
        if len(strips) * groups >= 2 * threads:
            block = -(-len(strips) * groups // (2 * threads))
        else:
            part = -(-chunks // (4 * threads))
            parts = -(-chunks // part)
    planes = chunks if parts > 1 else 1
    blocks = -(-len(strips) // block)
    tables = [strips.reshape(-1), runs * pixel]
    begins = FIELDS * 8 + 8 * np.cumsum([0, *(len(table) for table in tables[:-1])])
    fields = [
        len(strips), block, blocks, outputs, pixels, run, len(window.residues) * window.plane * pixel, pixel,
        channels * size, groups * outputs * size, positions, part,
        groups * rows * outputs * size if parts > 1 else 0, groups, rows, *begins,
    ]  # fmt: skip
    head = np.zeros(FIELDS, np.int64)
    head[: len(fields)] = fields
    return WindowPlan(np.concatenate([head, *tables]), blocks * groups * parts), planes


def _strips(window: Window, channels: int, groups: int, most: int, size: int) -> np.ndarray:
    """For each strip of rows that stand side by side in an image: its first row (tap, channel), its place, its rows."""
    places = np.array(window.taps)[:, None] * (groups * channels) + np.arange(channels)
    places = places.reshape(-1)
    ends = [*(np.flatnonzero(np.diff(places) != 1) + 1).tolist(), len(places)]
    made, begin = [], 0
    for end in ends:
        while begin < end:
            rows = min(most, end - begin)
            rows = max(count for count in (1, 2, 3, 4, 6, 8, 12) if count <= rows)
            made.append((begin, places[begin] * size, rows))
            begin += rows
    return np.array(made, np.int64)


def correlated_last(x: Tensor, grad: Tensor, window: Window, groups: int, number: Number) -> Tensor:
    """Returns (outputs, channels of a group, taps): the chains of `x` along the window times `grad` over all positions.

    `x`: (batch, z, y, x, channels); `grad`: (batch, z, y, x, outputs); both contiguous.
    """
    batch, channels = x.shape[0], x.shape[4]
    outputs = grad.shape[4]
    source = bordered_last(x, window, number) if window.is_copied else x
    plan, planes = _plan(
        number, window, batch, groups, channels // groups, outputs // groups, torch.get_num_threads()
    )
    taps, each = len(window.taps), channels // groups
    sums = torch.empty((planes, groups, taps * each, outputs // groups), dtype=number.sums)
    _walker(number)(plan.chunks, source.data_ptr(), grad.data_ptr(), sums.data_ptr(), plan.address)
    total = add_planes(sums, number).view(groups, taps, each, outputs // groups)
    found = sums.new_empty((outputs, each, taps))
    found.view(groups, outputs // groups, each, taps).copy_(total.permute(0, 3, 2, 1))
    return found
