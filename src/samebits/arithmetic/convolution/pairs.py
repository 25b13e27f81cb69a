"""bfloat16 numbers of two channels, or of two images, in 32 bits, as `product` multiplies them: the even one's is the low half."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from samebits._native.kernel_threads import OnTeam, on_team
from samebits.arithmetic.product.packing import interleave_rows
from samebits.arithmetic.product.vectors import BFLOAT16

WORK = 1 << 15
"""Pairs that one thread makes at a time, at least one plane of them."""


@lru_cache(maxsize=1)
def _interleaver() -> OnTeam:
    interleave = interleave_rows(BFLOAT16, 1)

    def work(index: int, args: Any) -> None:
        # args: 1 source, 2 target, 3 planes of pairs, 4 pairs of a plane, 5 planes for a chunk
        size, first = 4 * args[4], index * args[5]
        count = min(args[5], args[3] - first)
        interleave(args[1] + first * size, size, args[2] + first * size, size, count, args[4])

    return on_team(work, name="pairs")


def paired(x: Tensor, dim: int, groups: int) -> Tensor:
    """Returns a contiguous bfloat16 tensor as int32 pairs along a dimension, which has some groups of channels (or images).

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
        return x.view(-1).view(torch.int32).view(sizes)
    pairs = torch.empty(sizes, dtype=torch.int32)
    some = max(1, WORK // plane)
    _interleaver()(-(-planes // some), x.data_ptr(), pairs.data_ptr(), planes, plane, some)
    return pairs
