"""Scans of floats in a fixed shape, by doubling distances.

`cumsum`; of one row `cumprod` and `logcumsumexp`; and `scatter_reduce(reduce="prod")`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from samebits.determinism._cuda_decompositions.forms import accumulation_dtype
from samebits.determinism._kernels.out_argument import into

_BLOCK = 64
_Combine = Callable[[Tensor, Tensor], Tensor]


def cumsum_is_refused(
    self: Tensor, dim: int, *, dtype: torch.dtype | None = None, out: Tensor | None = None
) -> bool:
    """Returns True for floats; sums of integers are exact in any order."""
    dtype = (self if out is None else out).dtype if dtype is None else dtype
    return dtype.is_floating_point or dtype.is_complex


def cumsum(self: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """`aten::cumsum` of floats: blocks of 64 by doubling distances (Hillis and Steele), their totals alike.

    Reads and writes the data about 20 times, an unordered scan once; errors grow with the logarithm.
    """
    dtype = self.dtype if dtype is None else dtype
    if self.dim() == 0:
        return self.to(dtype, copy=True)
    sums = _inclusive(self.movedim(dim, -1).to(accumulation_dtype(dtype)), torch.add)
    return sums.to(dtype).movedim(-1, dim).contiguous()


def cumsum_out(self: Tensor, dim: int, *, dtype: torch.dtype | None = None, out: Tensor) -> Tensor:
    """`aten::cumsum.out`: without a dtype, that of `out` is summed in."""
    return into(out, cumsum(self, dim, dtype=out.dtype if dtype is None else dtype))


def one_row_varies(
    self: Tensor, dim: int, *, dtype: torch.dtype | None = None, out: Tensor | None = None
) -> bool:
    """Returns True for floats in one row, which torch runs: only several rows have a fixed order there."""
    one_row = self.dim() > 0 and self.numel() == self.shape[dim]
    return one_row and cumsum_is_refused(self, dim, dtype=dtype, out=out)


def cumprod(self: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """`aten::cumprod` of one row of floats, as `cumsum`."""
    dtype = self.dtype if dtype is None else dtype
    products = _inclusive(self.reshape(-1).to(accumulation_dtype(dtype)), torch.mul)
    return products.to(dtype).view(self.shape)


def cumprod_out(self: Tensor, dim: int, *, dtype: torch.dtype | None = None, out: Tensor) -> Tensor:
    """`aten::cumprod.out`: without a dtype, that of `out` is multiplied in."""
    return into(out, cumprod(self, dim, dtype=out.dtype if dtype is None else dtype))


def logcumsumexp(self: Tensor, dim: int) -> Tensor:
    """`aten::_logcumsumexp` of one row, as `cumsum`."""
    sums = _inclusive(self.reshape(-1).to(accumulation_dtype(self.dtype)), torch.logaddexp)
    return sums.to(self.dtype).view(self.shape)


def _inclusive(x: Tensor, combine: _Combine) -> Tensor:
    length = x.shape[-1]
    if length <= _BLOCK:
        return _doubling(x, combine)
    blocks = torch.nn.functional.pad(x, (0, -length % _BLOCK)).unflatten(-1, (-1, _BLOCK))
    sums = _doubling(blocks, combine)
    totals = _inclusive(sums[..., -1], combine)
    sums[..., 1:, :] = combine(totals[..., :-1, None], sums[..., 1:, :])
    return sums.flatten(-2)[..., :length]


def _doubling(x: Tensor, combine: _Combine) -> Tensor:
    distance = 1
    while distance < x.shape[-1]:
        x = torch.cat([x[..., :distance], combine(x[..., :-distance], x[..., distance:])], -1)
        distance *= 2
    return x


def scatter_reduce_is_refused(
    self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, **more: object
) -> bool:
    """Returns True for "prod": sums and means are sorted by torch itself, extrema are exact in any order."""
    return reduce == "prod"


def scatter_reduce(
    self: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """`aten::scatter_reduce.two` with "prod": a stable sort by index, then segmented scans of the products.

    Every writer to one place then holds the same product, so the order of the last `scatter` does not matter.

    Raises:
        RuntimeError: an index outside `self` (a device-side assert on CUDA), or shapes as torch refuses them.
    """
    if self.dim() == 0:
        parts = (x.reshape(1) for x in (self, index, src))
        result, places, source = parts
        return scatter_reduce(result, 0, places, source, reduce, include_self=include_self).reshape(())
    if index.numel() == 0:
        return self.clone()
    key, order = index.movedim(dim, -1).contiguous().sort(dim=-1, stable=True)
    source = src[tuple(slice(n) for n in index.shape)].movedim(dim, -1).to(accumulation_dtype(self.dtype))
    product = _products_of_equals(key, source.gather(-1, order))
    last = torch.searchsorted(key, key, right=True) - 1
    product = product.gather(-1, last)
    key, product = key.movedim(-1, dim), product.movedim(-1, dim)
    if include_self:
        product = product * self.gather(dim, key)
    return self.scatter(dim, key, product.to(self.dtype))


def _products_of_equals(key: Tensor, x: Tensor) -> Tensor:
    """Returns the inclusive products within runs of equal `key` along the last dimension; `key` is sorted."""
    distance = 1
    while distance < x.shape[-1]:
        same = key[..., distance:] == key[..., :-distance]
        joined = torch.where(same, x[..., :-distance] * x[..., distance:], x[..., distance:])
        x = torch.cat([x[..., :distance], joined], -1)
        distance *= 2
    return x
