"""Norms of the elements of a tensor, distances, and variances with their means and roots."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from samebits.arithmetic.reductions import MEMORY, PLAIN, QUOTIENT, ROOT, ROOT_OF_QUOTIENT, reduce
from samebits.determinism._dispatcher import Kernel
from samebits.determinism._ops.operands import takes
from samebits.determinism._replacement import Replacement, or_torchs, replacements

_KINDS = {0: ("norm0", PLAIN), 1: ("norm1", PLAIN), 2: ("square", ROOT)}
_EXTREMES = (float("inf"), float("-inf"))


def _vector_norm(
    self: Tensor,
    ord: Any = 2,  # noqa: A002 (torch's name)
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
    out: Any = None,
) -> Tensor | None:
    if self.is_complex() and dtype is None:
        self = self.abs()
    if not takes("linalg_vector_norm", self.dtype, dtype or self.dtype) or ord in _EXTREMES:
        return None  # an extreme is exact in any order
    try:
        return _of(self if dtype is None else self.to(dtype), ord, dim or (), keepdim)
    except IndexError:
        return None


def _of(x: Tensor, order: float, dims: Any, keepdim: bool) -> Tensor | None:
    if order in _KINDS:
        what, last = _KINDS[order]
        return reduce(what, x, dims, keepdim, last=last)
    if order < 0 and not x.numel():
        return None
    wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    total = reduce("sum", wide.abs().pow(order), dims, keepdim)
    return total.pow(1 / order).to(x.dtype)


def _moments(
    self: Tensor,
    dim: Any = None,
    *,
    correction: Any = None,
    keepdim: bool = False,
    out: Any = None,
    root: bool,
    mean: bool,
) -> Any:
    if not takes("var", self.dtype) or (out is not None and not out.is_floating_point()):
        return None  # into others torch raises
    freedom = 1 if correction is None else correction
    try:
        center, spread = _center_and_spread(self, dim or (), keepdim, freedom, root)
    except IndexError:
        return None
    if mean:
        return spread, center.to(self.dtype)
    return spread if out is None else spread.to(out.dtype)


def _center_and_spread(
    x: Tensor, dims: Any, keepdim: bool, correction: float, root: bool
) -> tuple[Tensor, Tensor]:
    center = reduce("wide sum", x, dims, keepdim, dtype=torch.float64, last=QUOTIENT)
    elements = x.numel() / center.numel() if center.numel() else 0
    freedom = max(0.0, elements - correction)  # as torch: with 0 the result is infinite or NaN
    last = ROOT_OF_QUOTIENT if root else QUOTIENT
    return center, reduce("deviation", x, dims, keepdim, centers=center, last=last, divisor=freedom)


def _cdist(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None) -> Tensor | None:
    """Returns the distances; None for what torch checks, or computes by a product through the dispatcher."""
    takes("_cdist_forward", x1.dtype, x2.dtype)
    if not _are_points(x1, x2) or 0 in (*x1.shape, *x2.shape) or (p == 2 and compute_mode == 1):
        return None
    others = x2.unsqueeze(-3)
    distances = [
        torch.linalg.vector_norm(rows.unsqueeze(-2) - others, p, -1)
        for rows in x1.split(_rows_at_once(x1, x2), -2)
    ]
    return torch.cat(distances, -2)


def _cdist_of_any_size(kernel: Kernel) -> Kernel:
    """cdist: by differences for any number of rows; torch composes it of products from 26 rows on."""

    def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: int | None = None) -> Tensor:
        return kernel(x1, x2, p, 2 if compute_mode in (None, 0) else compute_mode)

    return cdist


def _rows_at_once(x1: Tensor, x2: Tensor) -> int:
    """The rows of `x1` whose differences from all of `x2` are held at the same time."""
    others = math.prod(x2.shape) * max(1, math.prod(x1.shape[:-2]))
    return max(1, _DIFFERENCES // max(1, others))


_DIFFERENCES = 1 << 24


def _are_points(x1: Tensor, x2: Tensor) -> bool:
    return x1.dtype == x2.dtype in MEMORY and x1.dim() > 1 < x2.dim() and x1.shape[-1] == x2.shape[-1]


def _cdist_gradient(grad: Tensor, x1: Tensor, x2: Tensor, p: float, cdist: Tensor) -> Tensor | None:
    takes("_cdist_backward", grad.dtype, x1.dtype, x2.dtype)
    batch = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
    if not _are_points(x1, x2) or 0 in (*x1.shape, *x2.shape):
        return None
    count, others = _rows_at_once(x1, x2), x2.unsqueeze(-3)
    parts = zip(*(x.split(count, -2) for x in (x1, grad, cdist)), strict=True)
    slopes = [
        _slope(rows.unsqueeze(-2) - others, slope.unsqueeze(-1), distance.unsqueeze(-1), p).sum(-2)
        for rows, slope, distance in parts
    ]
    return torch.cat(slopes, -2).expand(*batch, *x1.shape[-2:]).contiguous()


def _slope(difference: Tensor, grad: Tensor, distance: Tensor, p: float) -> Tensor:
    """Returns the gradient of each distance by each coordinate, times `grad`; 0 where the points are one."""
    if p == 0:
        return torch.zeros_like(difference)
    if p == 1:
        return difference.sign() * grad
    if p == 2:
        made = difference * (grad / distance)
    elif p == float("inf"):
        return difference.sign() * (difference.abs() == distance) * grad
    else:
        powers = difference.abs().pow(p - 1)
        made = difference.sign() * powers * (grad / distance.pow(p - 1))
    return made.masked_fill(distance == 0, 0)


def _pdist(self: Tensor, p: float = 2.0) -> Tensor | None:
    if not takes("_pdist_forward", self.dtype) or self.dim() != 2 or len(self) < 2:
        return None
    first, second = torch.triu_indices(len(self), len(self), 1)
    return torch.linalg.vector_norm(self[first] - self[second], p, 1)


def _pdist_gradient(grad: Tensor, self: Tensor, p: float, pdist: Tensor) -> Tensor | None:
    takes("_pdist_backward", grad.dtype, self.dtype)
    if self.dtype not in MEMORY or self.dim() != 2 or len(self) < 2:
        return None
    count = len(self)
    first, second = torch.triu_indices(count, count, 1)
    made = _slope(self[first] - self[second], grad.unsqueeze(1), pdist.unsqueeze(1), p)
    square = self.new_zeros((count, count, self.shape[1]))
    square[first, second], square[second, first] = made, -made
    return square.sum(1)


_REASON = "torch's sums have lanes that follow the machine's vectors: 16 lanes by definition"


def _replacements() -> Iterator[Replacement]:
    names = ("linalg_vector_norm", "linalg_vector_norm.out")
    yield from replacements(names, or_torchs(_vector_norm), _REASON)
    for op, root, mean in (
        ("var", False, False),
        ("std", True, False),
        ("var_mean", False, True),
        ("std_mean", True, True),
    ):
        forms = (f"{op}.correction",) if mean else (f"{op}.correction", f"{op}.correction_out")
        compute = partial(_moments, root=root, mean=mean)
        yield from replacements(forms, or_torchs(compute), _REASON + "; in float64")
    for name, compute in (
        ("_cdist_forward", _cdist),
        ("_cdist_backward", _cdist_gradient),
        ("_pdist_forward", _pdist),
        ("_pdist_backward", _pdist_gradient),
    ):
        yield from replacements([name], or_torchs(compute), _REASON)
    reason = "from 26 rows on torch takes products of matrices: differences, for any number"
    yield from replacements(["cdist"], _cdist_of_any_size, reason, "AutogradCPU")


REPLACEMENTS = tuple(_replacements())
