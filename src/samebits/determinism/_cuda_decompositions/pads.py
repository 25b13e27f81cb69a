"""Backward of reflection padding: the middle, plus each mirrored border folded back, one dimension after the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from samebits.determinism._cuda_decompositions.forms import accumulation_dtype


def reflection_pad1d_backward(grad_output: Tensor, self: Tensor, padding: Sequence[int]) -> Tensor:
    """`aten::reflection_pad1d_backward`: (..., W + left + right) to the shape of `self`."""
    return _fold(grad_output, self, padding)


def reflection_pad2d_backward(grad_output: Tensor, self: Tensor, padding: Sequence[int]) -> Tensor:
    """`aten::reflection_pad2d_backward`: `padding` is (left, right, top, bottom)."""
    return _fold(grad_output, self, padding)


def reflection_pad3d_backward(grad_output: Tensor, self: Tensor, padding: Sequence[int]) -> Tensor:
    """`aten::reflection_pad3d_backward`: `padding` is (left, right, top, bottom, front, back)."""
    return _fold(grad_output, self, padding)


def _fold(grad_output: Tensor, self: Tensor, padding: Sequence[int]) -> Tensor:
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
    """Folds one dimension. Output j of the padding shows input |j - before|, mirrored at the last input too; negative
    padding crops.
    """
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
