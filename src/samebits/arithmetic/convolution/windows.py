"""The chains of a convolution over windows: rows of weights times panels of output pixels, on torch's threads.

A panel is some output pixels of one image. Its elements are read where they stand in the image (its pixels are in
one row then), or copied side by side first; which has no influence on bits.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits import _native as native
from samebits._native import inlined
from samebits._native.kernel_threads import OnTeam, float32_at, float64_at, int64_at, on_team
from samebits.arithmetic.convolution.copies import clear_run, copy_shifted, copy_shifted_rows, gather_rows
from samebits.arithmetic.convolution.geometry import Window
from samebits.arithmetic.convolution.tile import tapped_kernel
from samebits.arithmetic.product.mxcsr import mxcsr_of, set_mxcsr
from samebits.arithmetic.product.tiles import next_rows, register_tile
from samebits.arithmetic.product.vectors import FLOAT64, Number, copied

# The copy of an image in which every tap finds its element: zeros around it, and residues of a stride
# apart.


WORK = 1 << 15
"""Elements that one thread copies at a time."""
SLACK = 64
"""Zeros at the end: kernels read whole vectors."""


def plane_copier(number: Number) -> Any:
    """Returns the part of kernels that copies one image's channel, from an address to another; see `border_numbers`."""
    copy, clear, size = copy_shifted(number), clear_run(number), number.size
    pointer = float64_at if number is FLOAT64 else float32_at
    copy_rows, short = copy_shifted_rows(number, 4), 4 * number.lanes

    @inlined
    def copy_plane(source: Any, target: Any, numbers: Any) -> None:
        dz, dy, dx, sz, sy, sx = numbers[5], numbers[6], numbers[7], numbers[8], numbers[9], numbers[10]
        lz, ly, lx, kz, ky, kx = numbers[11], numbers[12], numbers[13], numbers[14], numbers[15], numbers[16]
        to = target
        for r in range(numbers[17]):
            z0, y0, x0 = numbers[20 + 3 * r], numbers[21 + 3 * r], numbers[22 + 3 * r]
            # the first and the last element of a row that the source has
            low = min(lx, max(0, (kx - 1 - x0) // kx))
            high = max(low, min(lx, (sx - x0 + kx - 1) // kx))
            top = min(ly, max(0, (ky - 1 - y0) // ky))
            bottom = max(top, min(ly, (sy - y0 + ky - 1) // ky))
            for i in range(lz):
                z = z0 + kz * i
                if kx == 1 and dx == size and lx <= short and z >= 0 and z < sz:
                    here = source + z * dz + (y0 + ky * top) * dy + x0 * dx
                    clear(to, top * lx)
                    copy_rows(here, ky * dy, to + top * lx * size, lx * size, bottom - top, low, high, lx)
                    clear(to + bottom * lx * size, (ly - bottom) * lx)
                    to += ly * lx * size
                    continue
                for j in range(ly):
                    y = y0 + ky * j
                    if z < 0 or z >= sz or y < 0 or y >= sy or high <= low:
                        clear(to, lx)
                    else:
                        here = source + z * dz + y * dy + x0 * dx
                        if kx == 1 and dx == size:
                            copy(here, to, low, high, lx)
                        else:
                            if low > 0:
                                clear(to, low)
                            if high < lx:
                                clear(to + high * size, lx - high)
                            here += kx * low * dx
                            step = kx * dx
                            row = native.carray(pointer(to + low * size), (high - low,))
                            for x in range(high - low):
                                row[x] = native.carray(pointer(here + x * step), (1,))[0]
                    to += lx * size

    return copy_plane


@lru_cache(maxsize=2)
def _copier(number: Number) -> OnTeam:
    copy_plane, clear, size = plane_copier(number), clear_run(number), number.size

    def work(index: int, args: Any) -> None:
        # args: 1 source, 2 target, 3 numbers
        numbers = native.carray(int64_at(args[3]), (1 << 10,))
        planes, each, channels, item, channel = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
        for plane in range(index * each, min(planes, (index + 1) * each)):
            source = args[1] + plane // channels * item + plane % channels * channel
            target = args[2] + plane * numbers[18]
            copy_plane(source, target, numbers)
            if plane == planes - 1:
                clear(target + numbers[17] * numbers[11] * numbers[12] * numbers[13] * size, numbers[19])

    return on_team(work, name=f"border_{number.name}")


def border_numbers(x: Tensor, window: Window, number: Number) -> array[int]:
    """Returns what `plane_copier` reads of (batch, channels, z, y, x), at its places: strides, sizes, steps, residues."""
    batch, channels = x.shape[:2]
    size = number.size
    residues = window.residues
    numbers = [
        batch * channels,
        max(1, WORK // window.channel),
        channels,
        *(stride * size for stride in x.stride()),
    ]
    numbers += [*x.shape[2:], *window.lengths, *(line.step for line in window.lines), len(residues)]
    numbers += [window.channel * size, SLACK + window.channel - window.plane * len(residues)]
    for residue in residues:
        numbers += [line.step * line.first + r for line, r in zip(window.lines, residue, strict=True)]
    return array("q", numbers)


def bordered(x: Tensor, window: Window, number: Number) -> Tensor:
    """Returns the copy of (batch, channels, z, y, x) for a window: (batch, channels, `window.channel`), and `SLACK` zeros."""
    planes = x.shape[0] * x.shape[1]
    out = x.new_empty(planes * window.channel + SLACK)
    numbers = border_numbers(x, window, number)
    _copier(copied(number))(-(-planes // numbers[1]), x.data_ptr(), out.data_ptr(), numbers.buffer_info()[0])
    return out


FIELDS = 24
"""Numbers of a plan before its tables."""


@inlined
def _copy_nothing(source: Any, target: Any, numbers: Any) -> None:
    """Stands for the copy of a plane in a kernel that copies none, and compiles faster."""


@lru_cache(maxsize=6)
def _walker(number: Number, fused: bool) -> OnTeam:
    """Returns the kernel; `_plan` lists the numbers that it reads. `fused`: it copies borders, too."""
    form = register_tile(number)
    most, wide, size, chunk, lanes = form.rows, form.columns, number.size, form.chunk, number.lanes
    rows_of = next_rows(most)
    broad, narrow = tapped_kernel(number, most, 2), tapped_kernel(number, most, 1)
    gather, copy_plane = gather_rows(number, 2), plane_copier(number) if fused else _copy_nothing
    pitch, mxcsr = wide * size, mxcsr_of(number)

    def work(index: int, args: Any) -> None:
        # args: 1-4 images, weights, result and bias, 5 the plan, 6 the numbers of a border that is copied here (0: none)
        plan = native.carray(int64_at(args[5]), (32,))
        before = set_mxcsr(mxcsr)
        total, per_image, block, m_all, m_block, m_blocks = (
            plan[0],
            plan[1],
            plan[2],
            plan[3],
            plan[4],
            plan[5],
        )
        k_all, item, group_bytes, am = plan[6], plan[7], plan[8], plan[9]
        out_item, cm, groups, is_packed, run, has_bias = (
            plan[10],
            plan[11],
            plan[12],
            plan[13],
            plan[14],
            plan[15],
        )
        taps, steps = args[5] + plan[16], args[5] + plan[17]
        panels = native.carray(int64_at(args[5] + plan[18]), (3 * per_image,))
        runs = native.carray(int64_at(args[5] + plan[19]), (1 << 20,))
        scratch = plan[20] + 64 if args[6] != 0 else 0
        memory = np.empty(is_packed * (pitch * chunk + 64) + scratch * size + 128, np.uint8)
        border = native.carray(int64_at(args[6]), (1 << 10,))
        if is_packed != 0:
            memory[:] = 0  # the kernel reads whole vectors
        packed = (memory.ctypes.data + 63) // 64 * 64
        m0 = index % m_blocks * m_block
        m = min(m_block, m_all - m0)
        at = index // m_blocks * block
        end = min(at + block, groups * total)
        plane = packed + is_packed * pitch * chunk
        while at < end:
            group = at // total
            q0 = at % total
            q1 = min(total, q0 + end - at)
            at += q1 - q0
            a0 = args[2] + (group * m_all + m0) * am
            c0 = args[3] + (group * m_all + m0) * cm
            s0 = args[4] + (group * m_all + m0) * size * has_bias
            for k0 in range(0, k_all, chunk):
                length = min(chunk, k_all - k0)
                own = has_bias if k0 + length == k_all else 0
                copied = -1
                for q in range(q0, q1):
                    image = q // per_image
                    panel = 3 * (q % per_image)
                    first, columns = panels[panel], panels[panel + 2]
                    source = args[1] + image * item + group * group_bytes
                    if scratch != 0:
                        if image != copied:
                            copy_plane(args[1] + image * border[3] + group * border[4], plane, border)
                            copied = image
                        source = plane
                    c1 = c0 + image * out_item + panels[panel + 1]
                    old = columns if k0 > 0 else 0
                    if is_packed != 0:
                        j = 0
                        while j < columns:
                            x = (first + j) % run
                            n = min(columns - j, run - x)
                            start = source + runs[(first + j) // run] + x * size
                            gather(start, taps + k0 * 8, packed + j * size, pitch, length, n)
                            j += n
                        b, table = packed, steps
                    else:
                        b, table = source + first, taps + k0 * 8
                    row = 0
                    while row < m:
                        rows = rows_of(m - row)
                        a, c, s = a0 + row * am + k0 * size, c1 + row * cm, s0 + row * size * has_bias
                        if columns > lanes:
                            broad(rows, a, am, b, 0, table, c, cm, s, length, columns, old, own)
                        else:
                            narrow(rows, a, am, b, 0, table, c, cm, s, length, columns, old, own)
                        row += rows
        memory[0] = 0  # until here Numba must not free it
        set_mxcsr(before)

    return on_team(work, name=f"windows_{number.name}_{fused}")


class WindowPlan:
    """Numbers of one convolution, at an address at which the kernel reads them."""

    def __init__(self, numbers: np.ndarray, chunks: int) -> None:
        self._numbers = numbers
        self.address = numbers.ctypes.data
        self.chunks = chunks
        self.is_merged = False
        """The result is (outputs, batch, pixels)."""


@lru_cache(maxsize=1024)
def _plan(
    number: Number,
    window: Window,
    batch: int,
    groups: int,
    m: int,
    channels: int,
    is_biased: bool,
    threads: int,
) -> WindowPlan:
    """Returns the plan for (batch, groups, channels) images and m rows of weights for each group."""
    form, size = register_tile(number), number.size
    runs, run = window.runs
    is_packed = _packs(number, window, m)
    image = groups * channels * window.channel
    is_merged = (
        is_packed
        and not _is_fused(window, channels)
        and batch > 1
        and _wasted(len(runs) * run, form.columns) > 1 / 8
    )
    if is_merged:  # panels go on from image to image
        runs = (np.arange(batch, dtype=np.int64)[:, None] * image + runs).reshape(-1)
        batch = 1
    pixels = len(runs) * run
    panels = (
        _packed_panels(pixels, form.columns, size)
        if is_packed
        else _direct_panels(runs, run, form.columns, size)
    )
    k = channels * len(window.taps)
    total = batch * len(panels)
    block, m_block = _blocks(groups * total, m, form.rows, k * form.columns, threads)
    m_blocks = -(-m // m_block)
    am = (k if k * size % 2048 else k + 16) * size
    tables = [
        window.table(channels, size),
        np.arange(form.chunk, dtype=np.int64) * (form.columns * size),
        panels.reshape(-1),
        runs * size,
    ]
    begins = FIELDS * 8 + 8 * np.cumsum([0, *(len(table) for table in tables[:-1])])
    fields = [
        total, len(panels), block, m, m_block, m_blocks, k, image * size, channels * window.channel * size, am,
        groups * m * pixels * size, pixels * size, groups, int(is_packed), run, int(is_biased), *begins, window.channel,
    ]  # fmt: skip
    head = np.zeros(FIELDS, np.int64)
    head[: len(fields)] = fields
    plan = WindowPlan(np.concatenate([head, *tables]), -(-groups * total // block) * m_blocks)
    plan.is_merged = is_merged
    return plan


def _is_fused(window: Window, channels: int) -> bool:
    """Returns True if each thread copies the border of what it is about to read: of one channel, which then is near."""
    return window.is_copied and channels == 1 and window.channel <= 1 << 15


def _blocks(total: int, m: int, rows: int, work: int, threads: int) -> tuple[int, int]:
    """Returns how many of `total` panels, and of `m` rows, one thread takes at a time; `work`: multiply-adds of a row and panel."""
    wanted = 1 if threads == 1 else 4 * threads
    block = max(1, min(32, -(-total // wanted)), (1 << 18) // (work * m))
    if total >= wanted or m < 2 * rows or m * total * work <= 1 << 19:
        return block, m
    return block, -(-m * total // (wanted * rows)) * rows


def _wasted(pixels: int, wide: int) -> float:
    """Returns the part of panels that is beyond the last pixel."""
    return 1 - pixels / (-(-pixels // wide) * wide)


def _packs(number: Number, window: Window, m: int) -> bool:
    """Returns True if panels are copied: rows are short, or their elements would fall on few lines of the cache."""
    runs, run = window.runs
    lanes, wide = number.lanes, register_tile(number).columns
    pixels = len(runs) * run
    if not window.is_copied and run % lanes:
        return True  # whole vectors are read, and nothing stands behind the last
    if window.channel * number.size % 2048 == 0:
        return m >= 4
    direct = len(runs) * -(-run // lanes) * lanes * (1.1 if run > lanes else 1.4)
    if len(window.taps) < 4 and m > 16:
        direct *= 1.3  # each channel is in another page of memory
    packed = -(-pixels // wide) * wide * (1 + 8 / m)
    return packed < direct


def _packed_panels(pixels: int, wide: int, size: int) -> np.ndarray:
    """For each panel: its first pixel, its place in the result, its pixels."""
    first = np.arange(0, pixels, wide, dtype=np.int64)
    return np.stack([first, first * size, np.minimum(wide, pixels - first)], 1)


def _direct_panels(runs: np.ndarray, run: int, wide: int, size: int) -> np.ndarray:
    """For each panel: its place in the image and in the result, its pixels."""
    x = np.arange(0, run, wide, dtype=np.int64)
    places = (runs[:, None] + x) * size
    targets = (np.arange(len(runs), dtype=np.int64)[:, None] * run + x) * size
    counts = np.broadcast_to(np.minimum(wide, run - x), places.shape)
    return np.stack([places.reshape(-1), targets.reshape(-1), counts.reshape(-1)], 1)


def windowed(
    x: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    window: Window,
    groups: int,
    number: Number,
    source: Tensor | None = None,
) -> Tensor:
    """Returns (batch, outputs, z, y, x): each output channel's row of `weights` along each window of its group.

    `x`: (batch, channels, z, y, x); `weights`: (outputs, channels of a group x taps), contiguous. `source`: the copy
    for the window, if there is one.
    """
    batch, channels = x.shape[:2]
    outputs, k = weights.shape
    fused = None
    if source is None and _is_fused(window, channels // groups):
        source, fused = x, border_numbers(x, window, number)
    elif source is None:
        source = bordered(x, window, number) if window.is_copied else x
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
    if k * number.size % 2048 == 0:
        wider = weights.new_empty((outputs, k + 16))
        wider[:, :k] = weights
        weights = wider
    sizes = (outputs, batch) if plan.is_merged else (batch, outputs)
    out = x.new_empty((*sizes, *window.outputs), dtype=number.sums)
    _walker(number, fused is not None)(
        plan.chunks, source.data_ptr(), weights.data_ptr(), out.data_ptr(),
        (weights if bias is None else bias).data_ptr(), plan.address, fused.buffer_info()[0] if fused else 0,
    )  # fmt: skip
    return out.transpose(0, 1).contiguous() if plan.is_merged else out
