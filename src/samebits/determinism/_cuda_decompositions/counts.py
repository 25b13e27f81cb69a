"""`histc` of floats and `bincount` with weights: torch's CUDA kernels add into bins with atomics."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def histc_is_refused(self: Tensor, *rest: object, **more: object) -> bool:
    """Returns True for floats; counts of integers are exact in any order."""
    return self.is_floating_point()


def histc(self: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:  # noqa: A002
    """`aten::histc` of floats: counts in `bins` equal bins over [min, max], or over the data when both are equal.

    The bin is (x - min) * bins / (max - min), as in torch's CUDA kernel; the last bin holds `max` too; NaN and what
    lies outside is not counted. Counts are made in integers, so they do not stop at 2^24 in float32.

    Raises:
        RuntimeError: no bins, or a range that is not finite or is reversed, as torch's own.
    """
    torch._check(bins > 0, lambda: f"histc(): bins must be > 0, but is {bins}")
    low, high = _range(self, float(min), float(max))
    place = ((self - low) * bins / (high - low)).nan_to_num_(nan=-1.0)
    inside = (self >= low) & (self <= high)
    index = torch.where(inside, place.to(torch.int64).clamp_(0, bins - 1), bins)
    return torch.bincount(index.reshape(-1), minlength=bins + 1)[:bins].to(self.dtype)


def bincount_is_refused(self: Tensor, weights: Tensor | None = None, minlength: int = 0) -> bool:
    """Returns True with weights; without them integers are counted, which is exact in any order."""
    return weights is not None


def bincount(self: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """`aten::bincount` with weights: row sums by `index_add_`, which sorts on CUDA under the switch.

    The result is float32 for float32 weights, else float64, as torch's.

    Raises:
        RuntimeError: negative or non-integral input, or weights of another length, as torch's own.
    """
    if weights is None:
        return torch.bincount(self, None, minlength)
    torch._check(minlength >= 0, lambda: "minlength should be >= 0")
    if self.dim() == 1 and self.numel() == 0:
        return self.new_zeros(minlength, dtype=torch.int64)
    torch._check(
        self.dim() == 1 and not self.is_floating_point() and int(self.min()) >= 0,
        lambda: "bincount only supports 1-d non-negative integral inputs.",
    )
    torch._check(
        weights.shape == self.shape, lambda: "weights should be 1-d and have the same length as input"
    )
    size = max(int(self.max()) + 1, minlength)
    dtype = torch.float32 if weights.dtype == torch.float32 else torch.float64
    result = weights.new_zeros(size, dtype=dtype)
    return result.index_add_(0, self.to(torch.int64), weights.to(dtype))


def _range(data: Tensor, low: float, high: float) -> tuple[float, float]:
    if low == high and data.numel():
        low, high = (float(x) for x in torch.aminmax(data))
    if low == high:
        low, high = low - 1, high + 1
    torch._check(
        math.isfinite(low) and math.isfinite(high), lambda: f"histc(): range of [{low}, {high}] is not finite"
    )
    torch._check(
        low < high, lambda: f"histc(): max must be larger than min, but the range is [{low}, {high}]"
    )
    return low, high
