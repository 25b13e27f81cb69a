"""The chains of a convolution over windows with channels last: pixels times panels of weights.

Of the image nothing is copied but borders.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from samebits import _native as native
from samebits._native.kernel_threads import OnTeam, int64_at, on_team, variants
from samebits.arithmetic.convolution.borders import bordered
from samebits.arithmetic.convolution.copies import turn
from samebits.arithmetic.convolution.geometry import Window
from samebits.arithmetic.convolution.tile import tapped_kernel
from samebits.arithmetic.convolution.windows import WindowPlan
from samebits.arithmetic.product.instructions import fields_at
from samebits.arithmetic.product.mxcsr import mxcsr_of, set_mxcsr
from samebits.arithmetic.product.tiles import next_rows, register_tile
from samebits.arithmetic.product.vectors import NUMBERS, Number


class LastFields(NamedTuple):
    """The numbers of a convolution with channels last, as the kernel reads them."""

    groups: int
    total: int
    """Runs of pixels of all images."""
    per_image: int
    block: int
    """Runs that a thread takes at a time."""
    n: int
    """Outputs of a group."""
    part: int
    """Panels of outputs that a thread takes at a time; pieces of that size."""
    parts: int
    k: int
    item: int
    """Bytes from image to image, from pixel to pixel, and from group to group."""
    pixel: int
    group_bytes: int
    run: int
    """Pixels of a run."""
    out_item: int
    """Bytes of the result from image to image, and from pixel to pixel."""
    cm: int
    has_bias: int
    taps: int
    """Addresses of tables of int64."""
    runs: int


@variants(number=NUMBERS.values())
def _walker(number: Number) -> OnTeam:
    form = register_tile(number)
    most, wide, size, chunk, lanes = form.rows, form.columns, number.size, form.chunk, number.lanes
    rows_of, mxcsr, bk, read = next_rows(most), mxcsr_of(number), wide * size, fields_at(LastFields)
    broad, narrow = tapped_kernel(number, most, 2, last=True), tapped_kernel(number, most, 1, last=True)

    def work(index: int, args: Any) -> None:
        # args: 1-4 images, panels of weights, result and bias, 5 the plan
        f = read(args[5])
        before = set_mxcsr(mxcsr)
        runs = native.carray(int64_at(f.runs), (1 << 20,))
        panels = (f.n + wide - 1) // wide
        first, rest = index % f.parts * f.part, index // f.parts
        group, begin = rest % f.groups, rest // f.groups * f.block
        for k0 in range(0, f.k, chunk):
            length = min(chunk, f.k - k0)
            own, taps = f.has_bias if k0 + length == f.k else 0, f.taps + k0 * 8
            for panel in range(first, min(panels, first + f.part)):
                columns = min(wide, f.n - panel * wide)
                b = args[2] + ((group * panels + panel) * f.k + k0) * bk
                old = columns if k0 > 0 else 0
                column = group * f.n * size + panel * bk
                s = args[4] + column * f.has_bias
                for q in range(begin, min(f.total, begin + f.block)):
                    image, row = q // f.per_image, q % f.per_image
                    a0 = args[1] + image * f.item + runs[row] + group * f.group_bytes
                    c0 = args[3] + image * f.out_item + row * f.run * f.cm + column
                    x = 0
                    while x < f.run:
                        rows = rows_of(f.run - x)
                        a, c = a0 + x * f.pixel, c0 + x * f.cm
                        if columns > lanes:
                            broad(rows, a, f.pixel, b, bk, taps, c, f.cm, s, length, columns, old, own)
                        else:
                            narrow(rows, a, f.pixel, b, bk, taps, c, f.cm, s, length, columns, old, own)
                        x += rows
        set_mxcsr(before)

    return on_team(work, name=f"windows_last_{number.name}", is_vectorized=True)


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
    """Returns the plan for (batch, z, y, x, groups x channels) images and `outputs` weights of each group."""
    form, size = register_tile(number), number.size
    runs, run = window.runs
    if len(runs) == 1 and run > 256:  # rows of an image that stand side by side
        pieces = np.arange(0, run - run % 48, 48, dtype=np.int64)
        if run % 48 == 0:
            runs, run = pieces, 48
        else:
            _, _, run = window.outputs
            runs = np.arange(0, window.runs[1], run, dtype=np.int64)
    pixel = groups * channels * size
    k = channels * len(window.taps)
    panels = -(-outputs // form.columns)
    total = batch * len(runs)
    work = run * k * outputs
    wanted = 1 if threads == 1 else 4 * threads
    block = max(1, min(-(-total * groups // wanted), (1 << 16) // (run * outputs)), (1 << 18) // work)
    pieces_of_work, part = groups * -(-total // block), panels
    if pieces_of_work < wanted and work * total * groups > 1 << 19:
        part = -(-panels * pieces_of_work // wanted)
    parts = -(-panels // part)
    offsets = np.arange(channels)[:, None] * size + np.array(window.taps) * pixel
    tables = [offsets.astype(np.int64), runs * pixel]
    fields = LastFields(
        groups=groups, total=total, per_image=len(runs), block=block, n=outputs, part=part, parts=parts, k=k,
        item=len(window.residues) * window.plane * pixel, pixel=pixel, group_bytes=channels * size, run=run,
        out_item=len(runs) * run * groups * outputs * size, cm=groups * outputs * size,
        has_bias=int(is_biased), taps=tables[0].ctypes.data, runs=tables[1].ctypes.data,
    )  # fmt: skip
    return WindowPlan(fields, tables, pieces_of_work * parts)


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
    """Returns (batch, z, y, x, outputs): each output's row of `weights` along each window of its group.

    `x`: (batch, z, y, x, channels), contiguous; `weights`: (outputs, channels of a group x taps), contiguous.
    `source`: the copy for the window, if there is one.
    """
    batch, channels, outputs = x.shape[0], x.shape[4], weights.shape[0]
    if source is None:
        source = bordered(x, window, number, last=True) if window.is_copied else x
    of_group = groups, outputs // groups, channels // groups
    plan = _plan(number, window, batch, *of_group, bias is not None, torch.get_num_threads())
    packed = _panels(weights, groups, number)
    out = x.new_empty((batch, *window.outputs, outputs), dtype=number.sums)
    _walker(number)(
        plan.chunks, source.data_ptr(), packed.data_ptr(), out.data_ptr(),
        (weights if bias is None else bias).data_ptr(), plan.address,
    )  # fmt: skip
    return out
