"""Matrices as the kernels take them, and their results in the caller's type."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from samebits.arithmetic.product import product


def wide(x: Tensor) -> Tensor:
    """Returns a copy (batch, rows, columns) in float64, contiguous."""
    made = x.to(torch.float64, copy=True, memory_format=torch.contiguous_format)
    return made.view(math.prod(x.shape[:-2]), *x.shape[-2:])


def readable(x: Tensor) -> Tensor:
    """Returns (batch, rows, columns) in float64, in any layout: a view of the argument where it can be."""
    return x.to(torch.float64).reshape(math.prod(x.shape[:-2]), *x.shape[-2:])


def result(x: Tensor, like: Tensor) -> Tensor:
    """Returns matrices (batch, rows, columns) in the type and batch of `like`, one NaN for every NaN.

    They may be the argument, and lie in memory by columns, as LAPACK's do.
    """
    made = x.mT.to(like.dtype).contiguous()
    made.masked_fill_(made.isnan(), math.nan)
    return made.mT.view(*like.shape[:-2], *x.shape[-2:])


def multiplied(a: Tensor, b: Tensor, added: Tensor | None = None, alpha: float = 1) -> Tensor:
    """Returns alpha a b + added of float64 batches that fit and are not empty."""
    made = product(a, b, added, alpha)
    assert made is not None
    return made


def minus_product(x: Tensor, a: Tensor, b: Tensor) -> None:
    """Takes the product of two factors from a part of a matrix."""
    if x.numel() and a.shape[-1]:
        x.copy_(multiplied(a, b, x, -1))
