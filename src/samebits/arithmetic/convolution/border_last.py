"""The copy of an image in channels last in which every tap finds its pixel: zeros around it, and residues of a stride apart."""

from __future__ import annotations

from array import array
from functools import lru_cache
from typing import Any

from torch import Tensor

from samebits import _native as native
from samebits._native.kernel_threads import OnTeam, int64_at, on_team
from samebits.arithmetic.convolution.copies import clear_run, copy_shifted
from samebits.arithmetic.convolution.geometry import Window
from samebits.arithmetic.product.vectors import Number, copied

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
