"""The copy of an image in which every tap finds its element: zeros around it, and residues of a stride apart."""

from __future__ import annotations

from array import array
from functools import lru_cache
from typing import Any

from torch import Tensor

from samebits import _native as native
from samebits._native import inlined
from samebits._native.kernel_threads import OnTeam, float32_at, float64_at, int64_at, on_team
from samebits.arithmetic.convolution.copies import clear_run, copy_shifted, copy_shifted_rows
from samebits.arithmetic.convolution.geometry import Window
from samebits.arithmetic.product.vectors import FLOAT64, Number, copied

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
