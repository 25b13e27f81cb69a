"""Norms of the elements of a tensor, distances, and variances with their means and roots."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from samebits.arithmetic.reductions.kernels import PLAIN, QUOTIENT, ROOT, ROOT_OF_QUOTIENT
from samebits.arithmetic.reductions.tensors import MEMORY, reduce
from samebits.determinism._dispatcher import Kernel
from samebits.determinism._kernels.out_argument import into
from samebits.determinism._ops.operands import takes
from samebits.determinism._replacement import Replacement, replacements

_KINDS = {0: ("norm0", PLAIN), 1: ("norm1", PLAIN), 2: ("square", ROOT)}
_EXTREMES = (float("inf"), float("-inf"))


def _vector_norm(kernel: Kernel) -> Kernel:
    def norm(
        self: Tensor,
        ord: Any = 2,  # noqa: A002 (torch's name)
        dim: Any = None,
        keepdim: bool = False,
        *,
        dtype: Any = None,
        out: Any = None,
    ) -> Tensor:
        kwargs = {"dtype": dtype, **({} if out is None else {"out": out})}
        if not takes("linalg_vector_norm", self.dtype, dtype or self.dtype) or ord in _EXTREMES:
            return kernel(self, ord, dim, keepdim, **kwargs)  # an extreme is exact in any order
        x = self if dtype is None else self.to(dtype)
        try:
            result = _of(x, ord, dim or (), keepdim)
        except IndexError:
            result = None
        if result is None:
            return kernel(self, ord, dim, keepdim, **kwargs)
        return result if out is None else into(out, result)

    return norm


def _of(x: Tensor, order: float, dims: Any, keepdim: bool) -> Tensor | None:
    if order in _KINDS:
        what, last = _KINDS[order]
        return reduce(what, x, dims, keepdim, last=last)
    if order < 0 and not x.numel():
        return None
    wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    total = reduce("sum", wide.abs().pow(order), dims, keepdim)
    return total.pow(1 / order).to(x.dtype)


def _moments(kernel: Kernel, *, root: bool, mean: bool) -> Kernel:
    def moments(
        self: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False, out: Any = None
    ) -> Any:
        made = None
        if takes("var", self.dtype) and (out is None or out.is_floating_point()):  # into others torch raises
            try:
                made = _center_and_spread(
                    self, dim or (), keepdim, 1 if correction is None else correction, root
                )
            except IndexError:
                made = None
        if made is None:
            kwargs = {} if out is None else {"out": out}
            return kernel(self, dim, correction=correction, keepdim=keepdim, **kwargs)
        center, spread = made
        if mean:
            return spread, center.to(self.dtype)
        return spread if out is None else into(out, spread.to(out.dtype))

    return moments


def _center_and_spread(
    x: Tensor, dims: Any, keepdim: bool, correction: float, root: bool
) -> tuple[Tensor, Tensor]:
    center = reduce("wide sum", x, dims, keepdim, dtype=torch.float64, last=QUOTIENT)
    elements = x.numel() / center.numel() if center.numel() else 0
    freedom = max(0.0, elements - correction)  # as torch: with 0 the result is infinite or NaN
    last = ROOT_OF_QUOTIENT if root else QUOTIENT
    return center, reduce("deviation", x, dims, keepdim, centers=center, last=last, divisor=freedom)


def _cdist(kernel: Kernel) -> Kernel:
    def forward(x1: Tensor, x2: Tensor, p: float, compute_mode: int | None) -> Tensor:
        takes("_cdist_forward", x1.dtype, x2.dtype)
        if not _are_points(x1, x2) or 0 in (*x1.shape, *x2.shape) or (p == 2 and compute_mode == 1):
            return kernel(x1, x2, p, compute_mode)  # checks; a product of matrices, through the dispatcher
        others = x2.unsqueeze(-3)
        distances = [
            torch.linalg.vector_norm(rows.unsqueeze(-2) - others, p, -1)
            for rows in x1.split(_rows_at_once(x1, x2), -2)
        ]
        return torch.cat(distances, -2)

    return forward


def _cdist_of_any_size(kernel: Kernel) -> Kernel:
    """cdist, which torch composes of products from 26 rows on: here of the differences, for any number of rows."""

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


def _cdist_backward(kernel: Kernel) -> Kernel:
    def backward(grad: Tensor, x1: Tensor, x2: Tensor, p: float, cdist: Tensor) -> Tensor:
        takes("_cdist_backward", grad.dtype, x1.dtype, x2.dtype)
        batch = torch.broadcast_shapes(x1.shape[:-2], x2.shape[:-2])
        if not _are_points(x1, x2) or 0 in (*x1.shape, *x2.shape):
            return kernel(grad, x1, x2, p, cdist)
        count, others = _rows_at_once(x1, x2), x2.unsqueeze(-3)
        parts = zip(*(x.split(count, -2) for x in (x1, grad, cdist)), strict=True)
        slopes = [
            _slope(rows.unsqueeze(-2) - others, slope.unsqueeze(-1), distance.unsqueeze(-1), p).sum(-2)
            for rows, slope, distance in parts
        ]
        return torch.cat(slopes, -2).expand(*batch, *x1.shape[-2:]).contiguous()

    return backward


def _slope(difference: Tensor, grad: Tensor, distance: Tensor, p: float) -> Tensor:
    """Returns the gradient of each distance with respect to each coordinate, times `grad`; 0 where the points are one."""
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


def _pdist(kernel: Kernel) -> Kernel:
    def forward(self: Tensor, p: float = 2.0) -> Tensor:
        takes("_pdist_forward", self.dtype)
        if self.dtype not in MEMORY or self.dim() != 2 or len(self) < 2:
            return kernel(self, p)
        first, second = torch.triu_indices(len(self), len(self), 1)
        return torch.linalg.vector_norm(self[first] - self[second], p, 1)

    return forward


def _pdist_backward(kernel: Kernel) -> Kernel:
    def backward(grad: Tensor, self: Tensor, p: float, pdist: Tensor) -> Tensor:
        takes("_pdist_backward", grad.dtype, self.dtype)
        if self.dtype not in MEMORY or self.dim() != 2 or len(self) < 2:
            return kernel(grad, self, p, pdist)
        count = len(self)
        first, second = torch.triu_indices(count, count, 1)
        made = _slope(self[first] - self[second], grad.unsqueeze(1), pdist.unsqueeze(1), p)
        square = self.new_zeros((count, count, self.shape[1]))
        square[first, second], square[second, first] = made, -made
        return square.sum(1)

    return backward


_REASON = "torch's sums have lanes that follow the machine's vectors: 16 lanes by definition"
_FORMS = (
    ("var.correction", False, False),
    ("var.correction_out", False, False),
    ("std.correction", True, False),
    ("std.correction_out", True, False),
    ("var_mean.correction", False, True),
    ("std_mean.correction", True, True),
)

REPLACEMENTS = (
    *replacements(["linalg_vector_norm", "linalg_vector_norm.out"], _vector_norm, _REASON),
    *(
        replacement
        for name, root, mean in _FORMS
        for replacement in replacements(
            [name], partial(_moments, root=root, mean=mean), _REASON + "; in float64"
        )
    ),
    *(
        replacement
        for name, make in (
            ("_cdist_forward", _cdist),
            ("_cdist_backward", _cdist_backward),
            ("_pdist_forward", _pdist),
            ("_pdist_backward", _pdist_backward),
        )
        for replacement in replacements([name], make, _REASON)
    ),
    Replacement(
        "aten::cdist",
        _cdist_of_any_size,
        "from 26 rows on torch takes products of matrices: differences, for any number",
        device="AutogradCPU",
    ),
)
