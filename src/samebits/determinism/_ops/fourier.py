"""Fourier transforms (`torch.fft`, stft, istft): `arithmetic.fourier`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from samebits.arithmetic.fourier import complex_transform, real_inverse, real_transform
from samebits.determinism._replacement import or_torchs, replacements

_REAL, _COMPLEX = (torch.float32, torch.float64), (torch.complex64, torch.complex128)


def _factor(normalization: int, sizes: Sequence[int]) -> float:
    """Returns the factor of torch's number of a normalization: none, by the root of the size, by the size."""
    size = math.prod(sizes)
    return (1.0, 1.0 / math.sqrt(size), 1.0 / size)[normalization]


def _in_torchs_order(x: Tensor, dims: Sequence[int]) -> list[int]:
    """Returns the order of dimensions in which torch's result is contiguous: transformed ones are last."""
    others = [dim for dim in range(x.dim()) if dim not in dims]
    return [*sorted(others, key=x.stride, reverse=True), *dims]


def _by_stride(x: Tensor, dims: Sequence[int]) -> list[int]:
    return sorted(dims, key=x.stride, reverse=True)


def _put_back(x: Tensor, order: Sequence[int]) -> Tensor:
    return x.permute([order.index(dim) for dim in range(x.dim())])


def _fits(x: Tensor, dims: Sequence[int], types: Sequence[torch.dtype], normalization: int) -> bool:
    """Returns True for what is ours; else torch copies, or raises."""
    return x.dtype in types and len(dims) > 0 and x.numel() > 0 and 0 <= normalization <= 2


def _c2c(
    self: Tensor, dim: Sequence[int], normalization: int, forward: bool, **_out: Tensor
) -> Tensor | None:
    dims = [one % max(1, self.dim()) for one in dim]
    if not _fits(self, dims, _COMPLEX, normalization):
        return None
    order = _in_torchs_order(self, _by_stride(self, dims))
    x = self.permute(order).contiguous()
    factor = _factor(normalization, [self.shape[one] for one in dims])
    for one in reversed(dims):  # the order of the arguments, whatever that of memory is
        x = complex_transform(x, order.index(one), factor if one == dims[0] else 1.0, inverse=not forward)
    return _put_back(x, order)


def _r2c(
    self: Tensor, dim: Sequence[int], normalization: int, onesided: bool, **_out: Tensor
) -> Tensor | None:
    dims = [one % max(1, self.dim()) for one in dim]
    if not _fits(self, dims, _REAL, normalization):
        return None
    *others, last = dims
    order = _in_torchs_order(self, [*_by_stride(self, others), last])
    factor = _factor(normalization, [self.shape[one] for one in dims])
    x = real_transform(self.permute(order).contiguous(), 1.0 if others else factor)
    for one in reversed(others):
        x = complex_transform(x, order.index(one), factor if one == dims[0] else 1.0, inverse=False)
    if not onesided:
        x = _with_other_half(x, self.shape[last], [order.index(one) for one in others])
    return _put_back(x, order)


def _with_other_half(x: Tensor, n: int, others: Sequence[int]) -> Tensor:
    """Adds the conjugates of the other half of the last dimension; `others`: transformed dimensions."""
    rest = x.narrow(-1, 1, (n - 1) // 2).flip(-1, *others).conj()
    for axis in others:
        rest = rest.roll(1, axis)
    return torch.cat([x, rest], -1).resolve_conj()


def _c2r(
    self: Tensor, dim: Sequence[int], normalization: int, last_dim_size: int, **_out: Tensor
) -> Tensor | None:
    dims = [one % max(1, self.dim()) for one in dim]
    if not _fits(self, dims, _COMPLEX, normalization) or last_dim_size < 1:
        return None
    *others, last = dims
    if self.shape[last] != last_dim_size // 2 + 1:
        return None
    x = _c2c(self, others, 0, False) if others else self
    assert x is not None
    order = _in_torchs_order(x, [last])
    sizes = [last_dim_size, *(self.shape[one] for one in others)]
    made = real_inverse(x.permute(order).contiguous(), last_dim_size, _factor(normalization, sizes))
    return _put_back(made, order)


_REASON = (
    "MKL's plan follows the CPU and the threads: ours has passes of a fixed order and roots from integers"
)


REPLACEMENTS = tuple(
    it
    for op, compute in (("_fft_c2c", _c2c), ("_fft_r2c", _r2c), ("_fft_c2r", _c2r))
    for it in replacements((op, f"{op}.out"), or_torchs(compute), _REASON)
)
