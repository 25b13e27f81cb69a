"""The chains of a convolution over windows: rows of weights times panels of pixels, on torch's threads.

A panel is some output pixels of one image. Its elements are read where they stand in the image (its pixels
are in one row then), or copied side by side first. Bits do not depend on it.
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
from samebits.arithmetic.convolution.borders import border_numbers, bordered, plane_copier
from samebits.arithmetic.convolution.copies import gather_rows
from samebits.arithmetic.convolution.geometry import Window
from samebits.arithmetic.convolution.tile import tapped_kernel
from samebits.arithmetic.product.instructions import fields_at
from samebits.arithmetic.product.mxcsr import mxcsr_of, set_mxcsr
from samebits.arithmetic.product.tiles import next_rows, register_tile
from samebits.arithmetic.product.vectors import NUMBERS, Number


class WindowFields(NamedTuple):
    """The numbers of a convolution with channels first, as the kernel reads them."""

    total: int
    """Panels of a group, of all images."""
    per_image: int
    block: int
    """Panels that a thread takes at a time."""
    m: int
    """Rows of weights of a group; those that a thread takes at a time; pieces of that size."""
    m_block: int
    m_blocks: int
    k: int
    item: int
    """Bytes from image to image, from group to group, and from row to row of weights."""
    group_bytes: int
    am: int
    out_item: int
    """Bytes of the result from image to image, and from row to row."""
    cm: int
    groups: int
    is_packed: int
    run: int
    has_bias: int
    scratch: int
    """Elements of the copy of a channel with its border."""
    taps: int
    """Addresses of tables of int64."""
    steps: int
    panels: int
    runs: int


@inlined
def _copy_nothing(images: Any, image: Any, channel: Any, target: Any, border: Any) -> None:
    """Stands for the copy of a plane in a kernel that copies none, and compiles faster."""


@variants(number=NUMBERS.values(), fused=(False, True))
def _walker(number: Number, fused: bool) -> OnTeam:
    """Returns the kernel. `fused`: it copies borders, too."""
    form = register_tile(number)
    most, wide, size, chunk, lanes = form.rows, form.columns, number.size, form.chunk, number.lanes
    rows_of, read = next_rows(most), fields_at(WindowFields)
    broad, narrow = tapped_kernel(number, most, 2), tapped_kernel(number, most, 1)
    gather, copy_plane = gather_rows(number, 2), plane_copier(number) if fused else _copy_nothing
    pitch, mxcsr = wide * size, mxcsr_of(number)

    def work(index: int, args: Any) -> None:
        # args: 1-4 images, weights, result and bias, 5 the plan, 6 numbers of a border to copy here, or 0
        f = read(args[5])
        before = set_mxcsr(mxcsr)
        panels = native.carray(int64_at(f.panels), (3 * f.per_image,))
        runs = native.carray(int64_at(f.runs), (1 << 20,))
        scratch = f.scratch + 64 if args[6] != 0 else 0
        memory = np.empty(f.is_packed * (pitch * chunk + 64) + scratch * size + 128, np.uint8)
        if f.is_packed != 0:
            memory[:] = 0  # the kernel reads whole vectors
        packed = (native.address_of(memory) + 63) // 64 * 64
        m0 = index % f.m_blocks * f.m_block
        m = min(f.m_block, f.m - m0)
        at = index // f.m_blocks * f.block
        end = min(at + f.block, f.groups * f.total)
        plane = packed + f.is_packed * pitch * chunk
        while at < end:
            group = at // f.total
            q0 = at % f.total
            q1 = min(f.total, q0 + end - at)
            at += q1 - q0
            a0 = args[2] + (group * f.m + m0) * f.am
            c0 = args[3] + (group * f.m + m0) * f.cm
            s0 = args[4] + (group * f.m + m0) * size * f.has_bias
            for k0 in range(0, f.k, chunk):
                length = min(chunk, f.k - k0)
                own = f.has_bias if k0 + length == f.k else 0
                copied = -1
                for q in range(q0, q1):
                    image = q // f.per_image
                    panel = 3 * (q % f.per_image)
                    first, columns = panels[panel], panels[panel + 2]
                    source = args[1] + image * f.item + group * f.group_bytes
                    if scratch != 0:
                        if image != copied:
                            copy_plane(args[1], image, group, plane, args[6])
                            copied = image
                        source = plane
                    c1 = c0 + image * f.out_item + panels[panel + 1]
                    old = columns if k0 > 0 else 0
                    if f.is_packed != 0:
                        j = 0
                        while j < columns:
                            x = (first + j) % f.run
                            n = min(columns - j, f.run - x)
                            start = source + runs[(first + j) // f.run] + x * size
                            gather(start, f.taps + k0 * 8, packed + j * size, pitch, length, n)
                            j += n
                        b, table = packed, f.steps
                    else:
                        b, table = source + first, f.taps + k0 * 8
                    row = 0
                    while row < m:
                        rows = rows_of(m - row)
                        a, c, s = a0 + row * f.am + k0 * size, c1 + row * f.cm, s0 + row * size * f.has_bias
                        if columns > lanes:
                            broad(rows, a, f.am, b, 0, table, c, f.cm, s, length, columns, old, own)
                        else:
                            narrow(rows, a, f.am, b, 0, table, c, f.cm, s, length, columns, old, own)
                        row += rows
        set_mxcsr(before)

    return on_team(work, name=f"windows_{number.name}_{fused}", is_vectorized=True)


class WindowPlan:
    """The fields of a convolution, at an address at which the kernel reads them, and their tables."""

    def __init__(self, fields: tuple[int, ...], tables: list[np.ndarray], chunks: int) -> None:
        self._fields = array("q", fields)
        self._tables = tables
        self.address = self._fields.buffer_info()[0]
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
    tables = [
        window.table(channels, size),
        np.arange(form.chunk, dtype=np.int64) * (form.columns * size),
        panels,
        runs * size,
    ]
    taps, steps, panels_at, runs_at = (table.ctypes.data for table in tables)
    fields = WindowFields(
        total=total, per_image=len(panels), block=block, m=m, m_block=m_block, m_blocks=m_blocks, k=k,
        item=image * size, group_bytes=channels * window.channel * size,
        am=(k if k * size % 2048 else k + 16) * size, out_item=groups * m * pixels * size, cm=pixels * size,
        groups=groups, is_packed=int(is_packed), run=run, has_bias=int(is_biased), scratch=window.channel,
        taps=taps, steps=steps, panels=panels_at, runs=runs_at,
    )  # fmt: skip
    plan = WindowPlan(fields, tables, -(-groups * total // block) * m_blocks)
    plan.is_merged = is_merged
    return plan


def _is_fused(window: Window, channels: int) -> bool:
    """Returns True if a thread copies the border of the one channel that it reads next: it is near then."""
    return window.is_copied and channels == 1 and window.channel <= 1 << 15


def _blocks(total: int, m: int, rows: int, work: int, threads: int) -> tuple[int, int]:
    """Returns the panels (of `total`) and rows (of `m`) that a thread takes at a time.

    `work`: multiply-adds of a row and panel.
    """
    wanted = 1 if threads == 1 else 4 * threads
    block = max(1, min(32, -(-total // wanted)), (1 << 18) // (work * m))
    if total >= wanted or m < 2 * rows or m * total * work <= 1 << 19:
        return block, m
    return block, -(-m * total // (wanted * rows)) * rows


def _wasted(pixels: int, wide: int) -> float:
    """Returns the part of panels that is beyond the last pixel."""
    return 1 - pixels / (-(-pixels // wide) * wide)


def _packs(number: Number, window: Window, m: int) -> bool:
    """Returns True if panels are copied: rows are short, or would fall on few lines of the cache."""
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
    """Returns (batch, outputs, z, y, x): each output's row of `weights` along each window of its group.

    `x`: (batch, channels, z, y, x); `weights`: (outputs, channels of a group x taps), contiguous. `source`:
    the copy for the window, if there is one.
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
