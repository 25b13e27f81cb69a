"""Backward of pools and of reflection padding, which torch's CUDA kernels compute with atomics.

Averages gather, maxima scatter after a sort, borders are folded back.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from samebits.determinism._cuda_decompositions.forms import accumulation_dtype
from samebits.determinism._cuda_decompositions.separable import Describe, Pairs, adjoint


def avg_pool3d_backward(
    grad_output: Tensor,
    self: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Tensor:
    """`aten::avg_pool3d_backward`: (N, C, d, h, w) or (C, d, h, w) to the shape of `self`.

    The divisor of a window is the product of its lengths along each dimension, so the map is separable.
    """
    kernel, step, pad = (_triple(x) for x in (kernel_size, stride or kernel_size, padding))
    maps: list[Describe | None] = [
        (_windows, (size, out, k, s, p, count_include_pad, divisor_override is not None), size)
        for size, out, k, s, p in zip(self.shape[-3:], grad_output.shape[-3:], kernel, step, pad, strict=True)
    ]
    grad = adjoint(grad_output, self.dim() - 3, maps)
    return grad if divisor_override is None else grad.div_(divisor_override)


def adaptive_avg_pool_backward(dims: int, grad_output: Tensor, self: Tensor) -> Tensor:
    """`aten::_adaptive_avg_pool{2,3}d_backward`: (N, C, [d,] h, w) or (C, [d,] h, w), to `self`'s shape."""
    maps: list[Describe | None] = [
        (_adaptive_windows, (size, out), size)
        for size, out in zip(self.shape[-dims:], grad_output.shape[-dims:], strict=True)
    ]
    return adjoint(grad_output, self.dim() - dims, maps)


def adaptive_max_pool_backward(dims: int, grad_output: Tensor, self: Tensor, indices: Tensor) -> Tensor:
    """`aten::adaptive_max_pool{2,3}d_backward`: `indices` are places in the plane or volume.

    Windows may overlap. On CUDA, under the switch, `scatter_add_` sorts (stable) and adds in that order.
    """
    plane = self.shape[-dims:]
    dtype = accumulation_dtype(self.dtype)
    grad = self.new_zeros((*self.shape[:-dims], plane.numel()), dtype=dtype)
    grad.scatter_add_(-1, indices.flatten(-dims), grad_output.flatten(-dims).to(dtype))
    return grad.unflatten(-1, plane).to(self.dtype)


def fractional_max_pool_backward(
    dims: int,
    grad_output: Tensor,
    self: Tensor,
    kernel_size: Sequence[int],
    output_size: Sequence[int],
    indices: Tensor,
) -> Tensor:
    """`aten::fractional_max_pool{2,3}d_backward`: as for the adaptive pool."""
    return adaptive_max_pool_backward(dims, grad_output, self, indices)


def _windows(size: int, out: int, kernel: int, stride: int, pad: int, with_pad: bool, raw: bool) -> Pairs:
    """Returns the pairs; window o covers inputs from o * stride - pad; weight 1 / length, or 1 if `raw`."""
    start = np.arange(out) * stride - pad
    end = np.minimum(start + kernel, size + pad)
    first, last = np.maximum(start, 0), np.minimum(end, size)
    length = end - start if with_pad else last - first
    return _spans(first, last, np.ones(out) if raw else 1 / np.maximum(length, 1))


def _adaptive_windows(size: int, out: int) -> Pairs:
    """Returns the pairs; window o covers inputs from floor(o * size / out) to ceil((o + 1) * size / out)."""
    places = np.arange(out)
    first, last = places * size // out, -((places + 1) * size // -out)
    return _spans(first, last, 1 / (last - first))


def _spans(first: np.ndarray, last: np.ndarray, weights: np.ndarray) -> Pairs:
    lengths = np.maximum(last - first, 0)
    outputs = np.repeat(np.arange(len(first)), lengths)
    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return Pairs(outputs, first[outputs] + within, weights[outputs])


def _triple(x: Sequence[int]) -> Sequence[int]:
    return x if len(x) == 3 else (x[0],) * 3


def reflection_pad_backward(grad_output: Tensor, self: Tensor, padding: Sequence[int]) -> Tensor:
    """`aten::reflection_pad{1,2,3}d_backward`: the middle, plus the mirrored borders, by dimension.

    `padding` is (left, right, top, bottom, front, back), or the first of them.
    """
    dims = len(padding) // 2
    expected = list(self.shape)
    for i in range(dims):
        expected[-1 - i] += padding[2 * i] + padding[2 * i + 1]
    torch._check(
        list(grad_output.shape) == expected,
        lambda: f"grad_output is {tuple(grad_output.shape)}, but the padded input is {tuple(expected)}",
    )
    grad = grad_output.to(accumulation_dtype(grad_output.dtype))
    for i in range(dims):
        grad = _fold_dim(grad, self.dim() - 1 - i, padding[2 * i], padding[2 * i + 1])
    return grad.to(grad_output.dtype).contiguous()


def _fold_dim(grad: Tensor, dim: int, before: int, after: int) -> Tensor:
    """Folds one dimension: output j shows input |j - before|, mirrored at the last too; padding < 0 crops."""
    if before == after == 0:
        return grad
    size = grad.shape[dim] - before - after
    low, high = max(before, 0), max(after, 0)
    middle = grad.narrow(dim, low, grad.shape[dim] - low - high)
    cropped = [0, 0] * (grad.dim() - 1 - dim) + [max(-before, 0), max(-after, 0)]
    folded = torch.constant_pad_nd(middle, cropped)  # a copy, with zeros where the forward cut off
    if low:
        folded.narrow(dim, 1, low).add_(grad.narrow(dim, 0, low).flip(dim))
    if high:
        folded.narrow(dim, size - 1 - high, high).add_(
            grad.narrow(dim, grad.shape[dim] - high, high).flip(dim)
        )
    return folded
