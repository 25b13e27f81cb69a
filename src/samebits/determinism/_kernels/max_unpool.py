"""Max-unpooling: each pooled value goes to the place its index names; of equal indices the last one wins."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_LAST = torch.channels_last


def max_unpool2d(self: Tensor, indices: Tensor, output_size: Sequence[int]) -> Tensor:
    """`aten::max_unpool2d` of (N, C, h, w) or (C, h, w) into `output_size` (H, W); zeros where no index points.

    Rule for duplicates within one plane: the last write in row-major order of `indices` wins.
    `max_unpool1d` comes here too, with H = 1.

    Raises:
        RuntimeError: wrong shapes or dtypes, or an index outside its plane (a device-side assert on CUDA).
    """
    return _unpool(self, indices, output_size, "max_unpool2d")


def max_unpool3d(
    self: Tensor, indices: Tensor, output_size: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    """`aten::max_unpool3d` of (N, C, d, h, w) or (C, d, h, w) into (D, H, W); rule and errors of `max_unpool2d`."""
    torch._check(
        len(stride) == len(padding) == 3, lambda: "max_unpool3d(): stride and padding need 3 numbers"
    )
    torch._check(min(stride) > 0, lambda: f"max_unpool3d(): strides must be positive, but are {list(stride)}")
    return _unpool(self, indices, output_size, "max_unpool3d")


def _unpool(self: Tensor, indices: Tensor, output_size: Sequence[int], name: str) -> Tensor:
    dims = 3 if name.endswith("3d") else 2
    _check(self, indices, output_size, dims, name)
    source, index, size = self.flatten(-dims), indices.flatten(-dims), math.prod(output_size)
    # Planes are independent and each is written in order: on the CPU by one thread, on CUDA after a stable sort.
    if dims == 2 and self.dim() == 4 and not self.is_contiguous() and self.is_contiguous(memory_format=_LAST):
        output = self.new_zeros((len(self), size, self.shape[1]))
        output.scatter_(1, index.transpose(1, 2), source.transpose(1, 2))
        return output.view(len(self), *output_size, self.shape[1]).permute(0, 3, 1, 2)
    output = self.new_zeros((*source.shape[:-1], size))
    return output.scatter_(-1, index, source).unflatten(-1, tuple(output_size))


def _check(self: Tensor, indices: Tensor, output_size: Sequence[int], dims: int, name: str) -> None:
    torch._check(
        indices.dtype == torch.int64, lambda: f"{name}(): indices must be int64, not {indices.dtype}"
    )
    torch._check(
        indices.shape == self.shape,
        lambda: f"{name}(): indices are {tuple(indices.shape)}, the input is {tuple(self.shape)}",
    )
    torch._check(
        len(output_size) == dims,
        lambda: f"{name}(): output_size needs {dims} numbers, but is {list(output_size)}",
    )
    torch._check(
        self.dim() in (dims + 1, dims + 2) and 0 not in self.shape[1:],
        lambda: (
            f"{name}(): input must have {dims + 1} or {dims + 2} dimensions, none but the batch empty, "
            f"but is {tuple(self.shape)}"
        ),
    )
