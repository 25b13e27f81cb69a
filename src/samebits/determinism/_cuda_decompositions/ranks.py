"""`median`, `nanmedian` and `kthvalue` with indices: torch's CUDA kernels return any of several equal values' indices.

Rule for equal values: the index is the one that a stable ascending sort (NaN last) puts at the rank.
"""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.determinism._cuda_decompositions.forms import out_form


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
