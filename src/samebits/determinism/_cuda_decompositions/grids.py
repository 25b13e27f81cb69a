"""Backward of `grid_sample`. Coordinates, padding and their derivatives after torch's GridSampler.h."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from samebits.determinism._cuda_decompositions.forms import accumulation_dtype

_BILINEAR, _NEAREST, _BICUBIC = range(3)
_ZEROS, _BORDER, _REFLECTION = range(3)

Taps = tuple[Tensor, Tensor, Tensor]
"""Neighbours along one dimension, each (K, points): index, weight, its derivative by the coordinate."""


def cudnn_grid_sampler_backward(
    self: Tensor, grid: Tensor, grad_output: Tensor
) -> tuple[Tensor | None, Tensor]:
    """`aten::cudnn_grid_sampler_backward`: bilinear, zeros, aligned corners; torch refuses it as well."""
    return grid_sampler_backward(grad_output, self, grid, _BILINEAR, _ZEROS, True, (True, True))


def grid_sampler_backward(
    grad_output: Tensor,
    input: Tensor,  # noqa: A002
    grid: Tensor,
    mode: int,
    padding: int,
    aligned: bool,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor]:
    """`aten::grid_sampler_{2,3}d_backward`: the gradients of `input` (N, C, [D,] H, W) and `grid`.

    `grid` is (N, H', W', 2), or (N, D', H', W', 3) without mode 2. Modes 0 bilinear, 1 nearest, 2 bicubic;
    paddings 0 zeros, 1 border, 2 reflection. One `index_add_` of channel rows per neighbour (4, 1, 16), which
    sorts on CUDA under the switch. The first is None when the mask has it so.
    """
    dtype, sizes = accumulation_dtype(input.dtype), input.shape[2:]
    channels, points = input.shape[1], grid.shape[:-1]
    source = input.movedim(1, -1).reshape(-1, channels).to(dtype)
    grad = grad_output.movedim(1, -1).reshape(-1, channels).to(dtype)
    grad_source = torch.zeros_like(source) if output_mask[0] else None
    # The last entry of a grid point is the first spatial dimension (x, y, z against D, H, W).
    located = [
        _coordinate(grid[..., -1 - d].reshape(-1).to(dtype), n, mode, padding, aligned)
        for d, n in enumerate(sizes)
    ]
    taps = [_taps(x, n, mode, padding, aligned) for (x, _), n in zip(located, sizes, strict=True)]
    rows, inside, weights, slopes = _corners(taps, sizes)
    image = torch.arange(len(input), device=input.device) * math.prod(sizes)
    rows = rows + image.repeat_interleave(math.prod(points[1:]))
    # Zeros from outside go to rows apart: many equal rows would be added one after the other.
    apart = torch.arange(len(grad), device=input.device).remainder_(max(1, len(source)))
    values = torch.zeros_like(weights)
    for corner, row in enumerate(rows):
        if grad_source is not None:
            part = torch.where(inside[corner, :, None], grad * weights[corner, :, None], 0)
            grad_source.index_add_(0, torch.where(inside[corner], row, apart), part)
        values[corner] = (source[row] * grad).sum(1)
    values = torch.where(inside, values, 0)
    parts = [(values * s).sum(0) * factor for s, (_, factor) in zip(slopes, located, strict=True)]
    grad_grid = torch.stack(parts[::-1], -1).view(grid.shape).to(grid.dtype)
    if grad_source is None:
        return None, grad_grid
    grad_input = grad_source.view(len(input), *sizes, channels).movedim(-1, 1)
    return grad_input.to(input.dtype).contiguous(), grad_grid


def _corners(taps: Sequence[Taps], sizes: Sequence[int]) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    """Returns row in the image, True if inside, weight, derivatives, each (corners, points)."""
    dims = len(taps)
    wide = [
        tuple(t.view(*(len(t) if i == d else 1 for i in range(dims)), -1) for t in tap)
        for d, tap in enumerate(taps)
    ]
    strides = [math.prod(sizes[d + 1 :]) for d in range(dims)]
    rows = [tap[0].clamp(0, n - 1) * step for tap, n, step in zip(wide, sizes, strides, strict=True)]
    inside = [(tap[0] >= 0) & (tap[0] < n) for tap, n in zip(wide, sizes, strict=True)]
    weights = [tap[1] for tap in wide]
    slopes = [_joined(torch.mul, [*weights[:d], wide[d][2], *weights[d + 1 :]]) for d in range(dims)]
    return (_joined(torch.add, rows), _joined(torch.logical_and, inside), _joined(torch.mul, weights), slopes)


def _joined(function: Callable[[Tensor, Tensor], Tensor], parts: Sequence[Tensor]) -> Tensor:
    """Returns (corners, points), from one part per dimension."""
    return functools.reduce(function, parts).flatten(0, -2)


def _taps(x: Tensor, size: int, mode: int, padding: int, aligned: bool) -> Taps:
    if mode == _NEAREST:
        return _integer(x.round()[None]), torch.ones_like(x)[None], torch.zeros_like(x)[None]
    low = x.floor()
    t = x - low
    if mode == _BILINEAR:
        one = torch.ones_like(t)
        return _integer(torch.stack([low, low + 1])), torch.stack([1 - t, t]), torch.stack([-one, one])
    offsets = torch.arange(-1, 3, device=x.device, dtype=x.dtype)[:, None]
    places, _ = _pad(low + offsets, size, padding, aligned)
    return _integer(places), _cubic(t - offsets), _cubic_slope(t - offsets)


def _integer(x: Tensor) -> Tensor:
    """Returns integers; far and undefined coordinates become -2: outside, and safe to convert."""
    return torch.where(x.abs() < 2**30, x, -2).to(torch.int64)


def _cubic(x: Tensor) -> Tensor:
    """Returns Keys' cubic convolution kernel (1981) with a = -0.75."""
    x, a = x.abs(), -0.75
    return torch.where(x <= 1, ((a + 2) * x - (a + 3)) * x * x + 1, ((a * x - 5 * a) * x + 8 * a) * x - 4 * a)


def _cubic_slope(x: Tensor) -> Tensor:
    size, a = x.abs(), -0.75
    inner = (3 * (a + 2) * size - 2 * (a + 3)) * size
    outer = (3 * a * size - 10 * a) * size + 8 * a
    return torch.where(size <= 1, inner, outer) * torch.where(x < 0, -1, 1)


def _coordinate(x: Tensor, size: int, mode: int, padding: int, aligned: bool) -> tuple[Tensor, Tensor]:
    """Returns the position among the inputs and its derivative; bicubic pads its neighbours instead."""
    place = (x + 1) / 2 * (size - 1) if aligned else ((x + 1) * size - 1) / 2
    factor = torch.full_like(x, (size - 1) / 2 if aligned else size / 2)
    if mode == _BICUBIC:
        return place, factor
    place, slope = _pad(place, size, padding, aligned)
    return place, factor * slope


def _pad(x: Tensor, size: int, padding: int, aligned: bool) -> tuple[Tensor, Tensor]:
    slope = torch.ones_like(x)
    if padding == _ZEROS:
        return x, slope
    if padding == _REFLECTION:
        x, slope = _reflect(x, 0 if aligned else -0.5, size - 1 if aligned else size - 0.5)
    free = (x > 0) & (x < size - 1)
    return x.clamp(0, size - 1), slope * free


def _reflect(x: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    if high == low:
        return torch.zeros_like(x), torch.zeros_like(x)
    span = high - low
    away = (x - low).abs()
    rest, odd = away.fmod(span), (away / span).floor().remainder(2) == 1
    sign = torch.where(x < low, -1, 1) * torch.where(odd, -1, 1)
    return torch.where(odd, span - rest, rest) + low, sign.to(x.dtype)
