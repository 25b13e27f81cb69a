"""Backward of `interpolate`: linear, bilinear, bicubic, trilinear, and with antialiasing.

Pairs of inputs and outputs are those of torch's UpSample.h.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import zip_longest

import numpy as np
import torch
from torch import Tensor

from samebits.determinism._cuda_decompositions.separable import Describe, Pairs, adjoint

Floats = np.ndarray
Curve = Callable[[Floats], Floats]


def upsample_backward(
    pairs: Callable[..., Pairs],
    grad_output: Tensor,
    output_size: Sequence[int],
    input_size: Sequence[int],
    align_corners: bool,
    *scales: float | None,
) -> Tensor:
    """Returns the gradient of the input, (N, C, *input), of a resize by `pairs` (a value of `PAIRS`).

    `scales` has one for each dimension; None, or none at all, where the sizes say it.
    """
    torch._check(
        tuple(grad_output.shape) == (*input_size[:2], *output_size),
        lambda: (
            f"grad_output is {tuple(grad_output.shape)}, but the output is {(*input_size[:2], *output_size)}"
        ),
    )
    sizes = input_size[2:]
    if tuple(sizes) == tuple(output_size):  # a copy for torch's CUDA kernels too, whatever the scale
        return grad_output.clone()
    maps: list[Describe | None] = [
        (pairs, (size, out, align_corners, scale), size)
        # Torch's linear CPU kernels copy along a dimension of equal sizes; all others use the given scale.
        if size != out or (scale and not (pairs is _linear and grad_output.is_cpu))
        else None
        for size, out, scale in zip_longest(sizes, output_size, scales)
    ]
    return adjoint(grad_output, 2, maps)


def _scale(size: int, out: int, align_corners: bool, scale: float | None) -> float:
    if align_corners:
        return (size - 1) / (out - 1) if out > 1 else 0.0
    return 1 / scale if scale is not None and scale > 0 else size / out


def _centres(size: int, out: int, align_corners: bool, scale: float | None) -> Floats:
    """Returns the position of each output among the inputs."""
    step, places = _scale(size, out, align_corners, scale), np.arange(out)
    return np.asarray(step * places if align_corners else step * (places + 0.5) - 0.5, dtype=np.float64)


def _taps(centres: Floats, size: int, offsets: Sequence[int], weights: Sequence[Floats]) -> Pairs:
    lowest = np.floor(centres).astype(np.int64)
    inputs = np.concatenate([np.clip(lowest + offset, 0, size - 1) for offset in offsets])
    return Pairs(np.tile(np.arange(len(centres)), len(offsets)), inputs, np.concatenate(weights))


def _linear(size: int, out: int, align_corners: bool, scale: float | None) -> Pairs:
    centres = np.clip(_centres(size, out, align_corners, scale), 0, size - 1)
    high = centres - np.floor(centres)
    return _taps(centres, size, (0, 1), (1 - high, high))


def _cubic(size: int, out: int, align_corners: bool, scale: float | None) -> Pairs:
    centres = _centres(size, out, align_corners, scale)
    part = centres - np.floor(centres)
    weights = [_keys(np.abs(part - offset), -0.75) for offset in (-1, 0, 1, 2)]
    return _taps(centres, size, (-1, 0, 1, 2), weights)


def _keys(x: Floats, a: float) -> Floats:
    """Returns Keys' cubic convolution kernel (1981) at |x|."""
    inner = ((a + 2) * x - (a + 3)) * x * x + 1
    outer = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x < 1, inner, np.where(x < 2, outer, 0.0))


def _lanczos3(x: Floats) -> Floats:
    return np.where(x < 3, np.sinc(x) * np.sinc(x / 3), 0.0)


def _antialiased(
    curve: Curve, radius: int, size: int, out: int, align_corners: bool, scale: float | None
) -> Pairs:
    step = _scale(size, out, align_corners, scale)
    stretch = max(step, 1.0)
    centres = step * (np.arange(out) + 0.5)
    first = np.maximum((centres - radius * stretch + 0.5).astype(np.int64), 0)
    last = np.minimum((centres + radius * stretch + 0.5).astype(np.int64), size)
    inputs = first[:, None] + np.arange(max(1, int((last - first).max())))
    weights = curve(np.abs(inputs - centres[:, None] + 0.5) / stretch) * (inputs < last[:, None])
    total = weights.sum(1, keepdims=True)
    weights = np.divide(weights, total, out=weights, where=total != 0)
    used = inputs < last[:, None]
    return Pairs(np.nonzero(used)[0], inputs[used], weights[used])


PAIRS: dict[str, Callable[..., Pairs]] = {
    "upsample_linear1d_backward": _linear,
    "upsample_bilinear2d_backward": _linear,
    "upsample_trilinear3d_backward": _linear,
    "upsample_bicubic2d_backward": _cubic,
    "_upsample_bilinear2d_aa_backward": partial(_antialiased, lambda x: np.maximum(1 - x, 0.0), 1),
    "_upsample_bicubic2d_aa_backward": partial(_antialiased, lambda x: _keys(x, -0.5), 2),
    "_upsample_lanczos2d_aa_backward": partial(_antialiased, _lanczos3, 3),
}
"""The map of each op along one dimension. Antialiasing stretches it by the scale."""
