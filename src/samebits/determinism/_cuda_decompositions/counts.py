"""Counts, bags and order statistics: ours count in integers, or sort.

Torch's CUDA kernels of `histc` of floats, `bincount` with weights and the backward of
`embedding_bag(mode="max")` add with atomics; `median`, `nanmedian` and `kthvalue` return the index of any of
several equal values. Ours is the one that a stable ascending sort (NaN last) puts at the rank.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from samebits.determinism._cuda_decompositions.forms import accumulation_dtype
from samebits.determinism._kernels.out_argument import out_form

_MAX = 2  # at::native::EmbeddingBagMode


def histc_is_refused(self: Tensor, *rest: object, **more: object) -> bool:
    """Returns True for floats; counts of integers are exact in any order."""
    return self.is_floating_point()


def histc(self: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:  # noqa: A002
    """`aten::histc` of floats: counts in `bins` equal bins over [min, max], or the data if both are equal.

    The bin is (x - min) * bins / (max - min), as in torch's CUDA kernel; the last bin holds `max` too; NaN
    and elements outside are not counted. Counts are made in integers, so they do not stop at 2^24 in float32.

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


def embedding_bag_is_refused(
    grad: Tensor,
    indices: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    *rest: object,
) -> bool:
    """Returns True for max; sums and means have a deterministic kernel."""
    return mode == _MAX


def embedding_bag_dense_backward(
    grad: Tensor,
    indices: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor:
    """`aten::_embedding_bag_dense_backward` for max: (bags, F) to (num_weights, F).

    `maximum_indices` (bags, F) names the row that each maximum came from, -1 for a bag without any (its
    gradient goes nowhere). `scatter_add_` sorts on CUDA under the switch.
    """
    dtype, features = accumulation_dtype(grad.dtype), grad.shape[1]
    result = grad.new_zeros((num_weights, features), dtype=dtype)
    filled = maximum_indices >= 0
    if grad.is_cpu:  # torch's CPU forward has 0 for an empty bag
        filled &= bag_size[: len(grad), None] > 0
    rows = torch.where(filled, maximum_indices, 0).to(torch.int64)
    return result.scatter_add_(0, rows, torch.where(filled, grad.to(dtype), 0)).to(grad.dtype)


def _median(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Rank (n - 1) // 2, or the first NaN if there is one."""
    if not self.is_floating_point():
        return _at_rank(self, dim, keepdim, (_length(self, dim) - 1) // 2)
    numbers = _numbers(self, dim)
    rank = torch.where(numbers < _length(self, dim), numbers, (_length(self, dim) - 1) // 2)
    return _at_rank(self, dim, keepdim, rank)


def _nanmedian(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Rank (n - 1) // 2 among those that are numbers; NaN where none is."""
    if not self.is_floating_point():
        return _median(self, dim, keepdim)
    return _at_rank(self, dim, keepdim, ((_numbers(self, dim) - 1) // 2).clamp_(min=0))


def _kthvalue(self: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Rank k - 1; NaN counts as the largest."""
    torch._check(
        1 <= k <= _length(self, dim),
        lambda: f"kthvalue(): selected number k out of range for dimension {dim}",
    )
    return _at_rank(self, dim, keepdim, k - 1)


def _length(self: Tensor, dim: int) -> int:
    length = self.shape[dim] if self.dim() else 1
    torch._check_index(length > 0, lambda: f"Expected reduction dim {dim} to have non-zero size.")
    return length


def _numbers(self: Tensor, dim: int) -> Tensor:
    return (self == self).sum(dim, keepdim=True)  # noqa: PLR0124 (false for NaN alone)


def _at_rank(self: Tensor, dim: int, keepdim: bool, rank: Tensor | int) -> tuple[Tensor, Tensor]:
    values, indices = self.sort(stable=True, dim=dim)
    if isinstance(rank, int):
        rank = torch.full_like(indices.narrow(dim, 0, 1) if self.dim() else indices, rank)
    chosen = values.gather(dim, rank), indices.gather(dim, rank)
    return chosen if keepdim or self.dim() == 0 else (chosen[0].squeeze(dim), chosen[1].squeeze(dim))


median = out_form(_median, "values", "indices")
"""`aten::median.dim_values`; `aten::median.dim` comes here."""
nanmedian = out_form(_nanmedian, "values", "indices")
"""`aten::nanmedian.dim_values`; `aten::nanmedian.dim` comes here."""
kthvalue = out_form(_kthvalue, "values", "indices")
"""`aten::kthvalue.values`; `aten::kthvalue` comes here."""
