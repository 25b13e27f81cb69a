"""The results of a transposed convolution's residues, put side by side."""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from samebits import _native as native
from samebits._native.kernel_threads import OnTeam, float32_at, float64_at, int64_at, on_team, variants
from samebits.arithmetic.product.instructions import fields_at
from samebits.arithmetic.product.packing import interleave_rows, two_by_two
from samebits.arithmetic.product.vectors import BFLOAT16, FLOAT64, NUMBERS, Number

WORK = 1 << 14
"""Elements that one thread copies at a time."""


class InterleavedFields(NamedTuple):
    """The numbers of a result; behind them stand the addresses of its parts, 0 for zeros."""

    planes: int
    each: int
    """Planes that a thread copies at a time."""
    kz: int
    """Steps of the residues."""
    ky: int
    kx: int
    sz: int
    """Sizes of a plane of the result."""
    sy: int
    sx: int


@variants(number=NUMBERS.values())
def _interleaver(number: Number) -> OnTeam:
    pointer = float64_at if number is FLOAT64 else float32_at
    size, read, behind = number.size, fields_at(InterleavedFields), 8 * len(InterleavedFields._fields)

    def work(index: int, args: Any) -> None:
        # args: 1 result, 2 the fields
        f = read(args[2])
        parts = native.carray(int64_at(args[2] + behind), (f.kz * f.ky * f.kx,))
        left, right = (f.sx + 1) // 2, f.sx // 2
        for plane in range(index * f.each, min(f.planes, (index + 1) * f.each)):
            for rz, ry in np.ndindex(f.kz, f.ky):
                lz, ly = (f.sz - rz + f.kz - 1) // f.kz, (f.sy - ry + f.ky - 1) // f.ky
                residue = (rz * f.ky + ry) * f.kx
                is_pair = f.kx == 2 and parts[residue] != 0 and parts[residue + 1] != 0
                for i, j in np.ndindex(lz, ly):
                    at, row = (plane * lz + i) * ly + j, (plane * f.sz + rz + i * f.kz) * f.sy + ry + j * f.ky
                    result = native.carray(pointer(args[1] + row * f.sx * size), (f.sx,))
                    if is_pair:
                        even = native.carray(pointer(parts[residue] + at * left * size), (left,))
                        odd = native.carray(pointer(parts[residue + 1] + at * right * size), (right,))
                        for x in range(right):
                            result[2 * x] = even[x]
                            result[2 * x + 1] = odd[x]
                        if left > right:
                            result[f.sx - 1] = even[right]
                        continue
                    for r in range(f.kx):
                        lx, source = (f.sx - r + f.kx - 1) // f.kx, parts[residue + r]
                        if source != 0:
                            part = native.carray(pointer(source + at * lx * size), (lx,))
                            for x in range(lx):
                                result[r + f.kx * x] = part[x]
                        else:
                            for x in range(lx):
                                result[r + f.kx * x] = 0

    return on_team(work, name=f"interleave_{number.name}")


def interleave(parts: list[Tensor | None], steps: tuple[int, int, int], out: Tensor, number: Number) -> None:
    """Writes parts, one for each residue (z, y, x) of `steps`, to (batch, channels, z, y, x); None: zeros."""
    planes, sizes = out.shape[0] * out.shape[1], out.shape[2:]
    each = max(1, WORK // (sizes[0] * sizes[1] * sizes[2]))
    fields = InterleavedFields(planes, each, *steps, *sizes)
    numbers = array("q", (*fields, *(0 if part is None else part.data_ptr() for part in parts)))
    _interleaver(number)(-(-planes // each), out.data_ptr(), numbers.buffer_info()[0])


# bfloat16 numbers of two channels, or of two images, in 32 bits, as `product` multiplies them: the even
# one's is the low half.


PAIRS_WORK = 1 << 15
"""Pairs that one thread makes at a time, at least one plane of them."""


@variants()
def _pair_interleaver() -> OnTeam:
    interleave = interleave_rows(BFLOAT16, 1)

    def work(index: int, args: Any) -> None:
        # args: 1 source, 2 target, 3 planes of pairs, 4 pairs of a plane, 5 planes for a chunk
        size, first = 4 * args[4], index * args[5]
        count = min(args[5], args[3] - first)
        interleave(args[1] + first * size, size, args[2] + first * size, size, count, args[4])

    return on_team(work, name="pairs")


def paired(x: Tensor, dim: int, groups: int) -> Tensor:
    """Returns contiguous bfloat16 as int32 pairs along the dimension of groups of channels, or of images.

    A group of an odd number gets one more, of zeros.
    """
    each = x.shape[dim] // groups
    if each % 2:
        even = x.new_zeros((*x.shape[:dim], groups, each + 1, *x.shape[dim + 1 :]))
        even.narrow(dim + 1, 0, each).copy_(x.unflatten(dim, (groups, each)))
        x = even.flatten(dim, dim + 1)
    sizes = list(x.shape)
    sizes[dim] //= 2
    plane = x.shape[dim + 1 :].numel()
    planes = x.numel() // (2 * plane)
    if plane == 1:
        return two_by_two(x, torch.int32).view(sizes)
    pairs = torch.empty(sizes, dtype=torch.int32)
    some = max(1, PAIRS_WORK // plane)
    _pair_interleaver()(-(-planes // some), x.data_ptr(), pairs.data_ptr(), planes, plane, some)
    return pairs
