"""Group normalization: a group is one run of memory; each of its channels has a weight and a bias."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits._native import inlined, vectors
from samebits._native.kernel_threads import OnTeam, on_team, variants
from samebits.arithmetic.normalization.layers import moments, parameter, standardized
from samebits.arithmetic.reductions.definition import BLOCK
from samebits.arithmetic.reductions.running import room_of_sums, running, sum_of_run
from samebits.arithmetic.reductions.tensors import MEMORY, bits_of, lanes_type, reduce

_splat, _first_of, _one_nan, _added = vectors.splat, vectors.first_of, vectors.one_nan, vectors.added
_fma, _float64_of_bits, _for_each_vector = vectors.fma, vectors.float64_of_bits, vectors.for_each_vector


@variants(memory=vectors.SIZE)
def group_norm(memory: str) -> OnTeam:
    """args: 1-6 addresses of x, w, b, results, means, rstds; 7 groups of an item; 8 channels of a group; 9
    elements of a channel; 10 bits of eps. A chunk is a group of an item.
    """
    lanes_type = vectors.COMPUTED[memory]
    real, width, of_run = getattr(np, lanes_type), vectors.SIZE[lanes_type], moments(memory)
    read, store, size = vectors.LOAD[memory], vectors.STORE[memory], vectors.SIZE[memory]
    load_one, store_one = vectors.LOAD_ONE[lanes_type], vectors.STORE_ONE[lanes_type]

    @inlined
    def part(first: Any, some: Any, args: Any, here: Any, mean: Any, rstd: Any, w: Any, b: Any) -> None:
        h = standardized(read(args[1] + here + first * size, *some), mean, rstd)
        store(args[4] + here + first * size, _one_nan(_fma(h, w, b)), *some)

    def group(chunk: int, args: Any) -> None:
        channels, length = args[8], args[9]
        start, first = chunk * channels * length * size, chunk % args[7] * channels
        whole, rest = length >> 4, length & 15
        mean, rstd = of_run(
            args[1] + start, channels * length, real(_float64_of_bits(args[10])), room_of_sums()
        )
        store_one(args[5] + chunk * width, _one_nan(mean))
        store_one(args[6] + chunk * width, _one_nan(rstd))
        center, scale = _splat(mean), _splat(rstd)
        for c in range(channels):
            w = _splat(load_one(args[2] + (first + c) * width))
            b = _splat(load_one(args[3] + (first + c) * width))
            _for_each_vector(whole, rest, part, (args, start + c * length * size, center, scale, w, b))

    return on_team(group, name=f"group_norm_{memory}_one_definition")


@cache
def _sums_of_channel(memory: str) -> Any:
    """Returns the part of kernels for S(g h) and S(g) of a channel."""
    lanes_type = vectors.COMPUTED[memory]
    real = getattr(np, lanes_type)
    read, size = vectors.LOAD[memory], vectors.SIZE[memory]
    push, total = running(lanes_type)

    @inlined
    def sums(g: Any, x: Any, length: Any, mean: Any, rstd: Any, room: Any, other: Any) -> Any:
        blocks = (length + BLOCK - 1) >> 8
        for number in range(blocks):
            alone, both = _splat(real(0)), _splat(real(0))
            first = number * BLOCK
            count = min(BLOCK, length - first)
            for i in range(count >> 4):
                at = (first + i * 16) * size
                here = read(g + at)
                alone, both = alone + here, _fma(here, standardized(read(x + at), mean, rstd), both)
            rest = count & 15
            if rest:
                at = (first + (count >> 4) * 16) * size
                here, h = read(g + at, rest), standardized(read(x + at, rest), mean, rstd)
                alone, both = _first_of(rest, alone + here, alone), _first_of(rest, _fma(here, h, both), both)
            push(room, number, _added(both))
            push(other, number, _added(alone))
        return total(room, blocks), total(other, blocks)

    return sums


@variants(memory=vectors.SIZE, wanted=(False, True))
def group_norm_gradient(memory: str, *, wanted: bool) -> OnTeam:
    """args: 1-5 addresses of g, x, w, means, rstds; 6 of dx; 7-8 of p and q (items x channels); 9 groups of
    an item; 10 channels of a group; 11 elements of a channel. A chunk is a group of an item.
    """
    lanes_type = vectors.COMPUTED[memory]
    real, width, sums = getattr(np, lanes_type), vectors.SIZE[lanes_type], _sums_of_channel(memory)
    read, store, size = vectors.LOAD[memory], vectors.STORE[memory], vectors.SIZE[memory]
    load_one, store_one = vectors.LOAD_ONE[lanes_type], vectors.STORE_ONE[lanes_type]
    dot = sum_of_run("dot", lanes_type)

    @inlined
    def value(g: Any, x: Any, w: Any, mean: Any, rstd: Any, alone: Any, both: Any) -> Any:
        return _one_nan(rstd * _fma(standardized(x, mean, rstd), both, _fma(g, w, alone)))

    @inlined
    def part(
        first: Any, some: Any, args: Any, here: Any, w: Any, mean: Any, rstd: Any, alone: Any, both: Any
    ) -> None:
        at = here + first * size
        g, x = read(args[1] + at, *some), read(args[2] + at, *some)
        store(args[6] + at, value(g, x, w, mean, rstd, alone, both), *some)

    def group(chunk: int, args: Any) -> None:
        channels, length = args[10], args[11]
        start, first = chunk * channels * length * size, chunk % args[9] * channels
        p, q, w = (
            args[7] + chunk * channels * width,
            args[8] + chunk * channels * width,
            args[3] + first * width,
        )
        mean, rstd = _splat(load_one(args[4] + chunk * width)), _splat(load_one(args[5] + chunk * width))
        room, other = room_of_sums(), room_of_sums()
        for c in range(channels):
            here = start + c * length * size
            both, alone = sums(args[1] + here, args[2] + here, length, mean, rstd, room, other)
            store_one(p + c * width, both)
            store_one(q + c * width, alone)
        if wanted:
            count, none = real(channels * length), _splat(real(0))
            both = _splat(-(dot(w, p, channels, none, room) / count))
            alone = _splat(-(dot(w, q, channels, none, room) / count))
            for c in range(channels):
                weight, here = _splat(load_one(w + c * width)), start + c * length * size
                _for_each_vector(
                    length >> 4, length & 15, part, (args, here, weight, mean, rstd, alone, both)
                )

    return on_team(group, name=f"group_norm_gradient_{memory}_{wanted}")


# Group normalization of tensors.


def normalized_groups(
    x: Tensor, sizes: tuple[int, int, int, int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns y, means and rstds (in the lanes' type); `sizes` of `x`: items, channels, length, groups."""
    items, channels, length, groups = sizes
    kind = lanes_type(x)
    w, b = parameter(weight, channels, kind, 1), parameter(bias, channels, kind, 0)
    out = torch.empty_like(x)
    mean, rstd = torch.empty((items, groups), dtype=kind), torch.empty((items, groups), dtype=kind)
    group_norm(MEMORY[x.dtype])(
        items * groups,
        *(t.data_ptr() for t in (x, w, b, out, mean, rstd)),
        *(groups, channels // groups, length, bits_of(eps)),
    )
    return out, mean, rstd


def group_gradients(
    grad: Tensor,
    x: Tensor,
    sizes: tuple[int, int, int, int],
    weight: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    *,
    wanted: bool,
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Returns dx (if wanted), dw and db (in the lanes' type, as statistics); all tensors are contiguous."""
    items, channels, length, groups = sizes
    out = torch.empty_like(x) if wanted else None
    w = parameter(weight, channels, mean.dtype, 1)
    sums = torch.empty((2, items, channels), dtype=mean.dtype)
    group_norm_gradient(MEMORY[x.dtype], wanted=wanted)(
        items * groups,
        *(t.data_ptr() for t in (grad, x, w, mean, rstd)),
        *(0 if out is None else out.data_ptr(), sums[0].data_ptr(), sums[1].data_ptr()),
        *(groups, channels // groups, length),
    )
    made = reduce("sum", sums, (1,))
    return out, made[0], made[1]
