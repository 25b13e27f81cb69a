"""The chains of a weight's gradient: over the positions of all outputs, on torch's threads.

Rows are (channel, tap), columns the output channels of a group. For a chunk of positions the outputs' gradients are
transposed into panels; a strip of rows is copied for them from the image's copy with a border.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits import _native as native
from samebits._native.kernel_threads import OnTeam, float32_at, float64_at, int64_at, on_team
from samebits.arithmetic.convolution.copies import gather_rows
from samebits.arithmetic.convolution.geometry import Window
from samebits.arithmetic.convolution.tile import tapped_kernel
from samebits.arithmetic.convolution.windows import WindowPlan, bordered
from samebits.arithmetic.product.mxcsr import mxcsr_of, set_mxcsr
from samebits.arithmetic.product.packing import copy_element, transpose_panel
from samebits.arithmetic.product.tiles import next_rows, register_tile
from samebits.arithmetic.product.vectors import FLOAT64, Number

FIELDS = 24
"""Numbers of a plan before its tables."""


@lru_cache(maxsize=3)
def _walker(number: Number) -> OnTeam:
    """Returns the kernel; `_plan` lists the numbers that it reads."""
    form = register_tile(number)
    most, wide, size, chunk, lanes = form.rows, form.columns, number.size, form.chunk, number.lanes
    rows_of = next_rows(most)
    broad, narrow = tapped_kernel(number, most, 2), tapped_kernel(number, most, 1)
    gather, transpose, element = gather_rows(number, 2), transpose_panel(number), copy_element(number)
    pitch, strip_pitch, mxcsr = wide * size, chunk * size + 64, mxcsr_of(number)

    def work(index: int, args: Any) -> None:
        # args: 1-3 images, gradient of the outputs, result, 4 the plan
        plan = native.carray(int64_at(args[4]), (32,))
        before = set_mxcsr(mxcsr)
        rows_all, block, blocks, n_all, pixels, run = plan[0], plan[1], plan[2], plan[3], plan[4], plan[5]
        item, group_bytes, grad_item, positions = plan[6], plan[7], plan[8], plan[9]
        part, plane, groups = plan[10], plan[11], plan[12]
        taps, steps = args[4] + plan[13], args[4] + plan[14]
        runs = native.carray(int64_at(args[4] + plan[15]), (1 << 20,))
        panels = (n_all + wide - 1) // wide
        memory = np.empty(panels * pitch * chunk + most * strip_pitch + 128, np.uint8)
        pieces = np.empty((chunk, 3), np.int64)
        packed = (memory.ctypes.data + 63) // 64 * 64
        strip = packed + panels * pitch * chunk
        first_row = index % blocks * block
        rest = index // blocks
        group, k_begin = rest % groups, rest // groups * part * chunk
        source = args[1] + group * group_bytes
        for k0 in range(k_begin, min(positions, k_begin + part * chunk), chunk):
            length = min(chunk, positions - k0)
            done = 0
            count = 0
            while done < length:
                image, pixel = (k0 + done) // pixels, (k0 + done) % pixels
                n = min(length - done, pixels - pixel)
                grad = args[2] + image * grad_item + (group * n_all * pixels + pixel) * size
                whole = n // lanes * lanes
                for j in range(0, n_all, lanes):
                    here = grad + j * pixels * size
                    target = packed + j // wide * pitch * chunk + j % wide * size + done * pitch
                    transpose(here, pixels * size, target, pitch, whole, min(lanes, n_all - j))
                    for k in range(whole, n):
                        for i in range(lanes):
                            last = min(i, n_all - j - 1)
                            element(here + (last * pixels + k) * size, target + k * pitch + i * size)
                k = 0
                while k < n:
                    x = (pixel + k) % run
                    step = min(n - k, run - x, wide)
                    pieces[count, 0] = image * item + runs[(pixel + k) // run] + x * size
                    pieces[count, 1] = (done + k) * size
                    pieces[count, 2] = step
                    count += 1
                    k += step
                done += n
            c0 = args[3] + k0 // chunk * plane + group * rows_all * n_all * size
            row = first_row
            last = min(rows_all, first_row + block)
            while row < last:
                rows = rows_of(last - row)
                for p in range(count):
                    gather(
                        source + pieces[p, 0],
                        taps + row * 8,
                        strip + pieces[p, 1],
                        strip_pitch,
                        rows,
                        pieces[p, 2],
                    )
                for j in range(0, n_all, wide):
                    columns = min(wide, n_all - j)
                    old = columns if k0 > k_begin and plane == 0 else 0
                    b, c = packed + j // wide * pitch * chunk, c0 + (row * n_all + j) * size
                    if columns > lanes:
                        broad(
                            rows, strip, strip_pitch, b, 0, steps, c, n_all * size, c, length, columns, old, 0
                        )
                    else:
                        narrow(
                            rows, strip, strip_pitch, b, 0, steps, c, n_all * size, c, length, columns, old, 0
                        )
                row += rows
        memory[0] = 0  # until here Numba must not free it
        set_mxcsr(before)

    return on_team(work, name=f"positions_{number.name}")


@lru_cache(maxsize=3)
def _adder(number: Number) -> OnTeam:
    """Returns the kernel that adds planes in order: an adder of chunks' sums."""
    wide = number is FLOAT64
    pointer = float64_at if wide else float32_at
    kind: Any = np.float64 if wide else np.float32
    size, nan, mxcsr = number.size, kind(np.nan), mxcsr_of(number)

    def work(index: int, args: Any) -> None:
        # args: 1 planes, 2 result, 3 elements of a plane, 4 the number of planes, 5 elements for a chunk
        before = set_mxcsr(mxcsr)
        begin = index * args[5]
        count = min(args[5], args[3] - begin)
        out = native.carray(pointer(args[2] + begin * size), (count,))
        first = native.carray(pointer(args[1] + begin * size), (count,))
        for i in range(count):
            out[i] = first[i]
        for p in range(1, args[4]):
            more = native.carray(pointer(args[1] + (p * args[3] + begin) * size), (count,))
            for i in range(count):
                out[i] += more[i]
        for i in range(count):
            out[i] = nan if out[i] != out[i] else out[i]
        set_mxcsr(before)

    return on_team(work, name=f"add_planes_{number.name}")


@lru_cache(maxsize=1024)
def _plan(
    number: Number, window: Window, batch: int, groups: int, channels: int, outputs: int, threads: int
) -> tuple[WindowPlan, int]:
    """Returns the plan for groups of (channels, outputs), and the number of planes of its result."""
    form, size = register_tile(number), number.size
    runs, run = window.runs
    pixels = len(runs) * run
    rows, positions = channels * len(window.taps), batch * pixels
    chunks, strips = -(-positions // form.chunk), -(-rows // form.rows)
    part, parts, block = chunks, 1, strips
    work = groups * rows * outputs * positions
    if threads > 1 and work > 1 << 19:
        if groups < 2 * threads:
            block = -(-strips * groups // (2 * threads)) if strips * groups >= 2 * threads else strips
        if groups * -(-strips // block) < threads:
            block = strips
            part = -(-chunks // (4 * threads))
            parts = -(-chunks // part)
    planes = chunks if parts > 1 else 1
    blocks = -(-strips // block)
    tables = [
        window.table(channels, size),
        np.arange(form.chunk, dtype=np.int64) * (form.columns * size),
        runs * size,
    ]
    begins = FIELDS * 8 + 8 * np.cumsum([0, *(len(table) for table in tables[:-1])])
    group_bytes = channels * window.channel * size
    fields = [
        rows, block * form.rows, blocks, outputs, pixels, run, groups * group_bytes, group_bytes,
        groups * outputs * pixels * size, positions, part,
        groups * rows * outputs * size if parts > 1 else 0, groups, *begins,
    ]  # fmt: skip
    head = np.zeros(FIELDS, np.int64)
    head[: len(fields)] = fields
    return WindowPlan(np.concatenate([head, *tables]), blocks * groups * parts), planes


def correlated(x: Tensor, grad: Tensor, window: Window, groups: int, number: Number) -> Tensor:
    """Returns (outputs, channels of a group, taps): the chains of `x` along the window times `grad` over all positions.

    `x`: (batch, channels, z, y, x); `grad`: (batch, outputs, z, y, x), contiguous.
    """
    batch, channels = x.shape[:2]
    outputs = grad.shape[1]
    source = bordered(x, window, number) if window.is_copied else x
    plan, planes = _plan(
        number, window, batch, groups, channels // groups, outputs // groups, torch.get_num_threads()
    )
    taps = len(window.taps)
    rows, columns = channels // groups * taps, outputs // groups
    sums = torch.empty((planes, groups, rows, columns), dtype=number.sums)
    _walker(number)(plan.chunks, source.data_ptr(), grad.data_ptr(), sums.data_ptr(), plan.address)
    total = add_planes(sums, number)
    found = sums.new_empty((outputs, channels // groups, taps))
    if groups == 1:
        found.view(outputs, rows).copy_(total[0].t())
    else:
        found.view(groups, columns, rows).copy_(total.transpose(1, 2))
    return found


def add_planes(sums: Tensor, number: Number) -> Tensor:
    """Returns sums[0] + sums[1] + ..., added in order."""
    if len(sums) == 1:
        return sums[0]
    each, total = 1 << 12, sums.new_empty(sums.shape[1:])
    chunks = -(-total.numel() // each)
    _adder(number)(chunks, sums.data_ptr(), total.data_ptr(), total.numel(), len(sums), each)
    return total
