"""The results of a transposed convolution's residues, put side by side."""

from __future__ import annotations

from array import array
from functools import lru_cache
from typing import Any

from torch import Tensor

from samebits import _native as native
from samebits._native.kernel_threads import OnTeam, float32_at, float64_at, int64_at, on_team
from samebits.arithmetic.product.vectors import FLOAT64, Number

WORK = 1 << 14
"""Elements that one thread copies at a time."""


@lru_cache(maxsize=2)
def _interleaver(number: Number) -> OnTeam:
    pointer = float64_at if number is FLOAT64 else float32_at
    size = number.size

    def work(index: int, args: Any) -> None:
        # args: 1 result, 2 numbers
        numbers = native.carray(int64_at(args[2]), (1 << 20,))
        planes, each, kz, ky, kx = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
        sz, sy, sx = numbers[5], numbers[6], numbers[7]
        left, right = (sx + 1) // 2, sx // 2
        for plane in range(index * each, min(planes, (index + 1) * each)):
            for rz in range(kz):
                lz = (sz - rz + kz - 1) // kz
                for ry in range(ky):
                    ly = (sy - ry + ky - 1) // ky
                    residue = 8 + (rz * ky + ry) * kx
                    is_pair = kx == 2 and numbers[residue] != 0 and numbers[residue + 1] != 0
                    at = plane * lz * ly
                    for z in range(rz, sz, kz):
                        for y in range(ry, sy, ky):
                            result = native.carray(
                                pointer(args[1] + ((plane * sz + z) * sy + y) * sx * size), (sx,)
                            )
                            if is_pair:
                                even = native.carray(pointer(numbers[residue] + at * left * size), (left,))
                                odd = native.carray(
                                    pointer(numbers[residue + 1] + at * right * size), (right,)
                                )
                                for x in range(right):
                                    result[2 * x] = even[x]
                                    result[2 * x + 1] = odd[x]
                                if left > right:
                                    result[sx - 1] = even[right]
                            else:
                                for r in range(kx):
                                    lx = (sx - r + kx - 1) // kx
                                    source = numbers[residue + r]
                                    if source != 0:
                                        part = native.carray(pointer(source + at * lx * size), (lx,))
                                        for x in range(lx):
                                            result[r + kx * x] = part[x]
                                    else:
                                        for x in range(lx):
                                            result[r + kx * x] = 0
                            at += 1

    return on_team(work, name=f"interleave_{number.name}")


def interleave(parts: list[Tensor | None], steps: tuple[int, int, int], out: Tensor, number: Number) -> None:
    """Writes the parts, one for each residue (z, y, x) of `steps`, to (batch, channels, z, y, x); None: zeros."""
    planes, sizes = out.shape[0] * out.shape[1], out.shape[2:]
    each = max(1, WORK // (sizes[0] * sizes[1] * sizes[2]))
    addresses = [0 if part is None else part.data_ptr() for part in parts]
    numbers = array("q", (planes, each, *steps, *sizes, *addresses))
    _interleaver(number)(-(-planes // each), out.data_ptr(), numbers.buffer_info()[0])
