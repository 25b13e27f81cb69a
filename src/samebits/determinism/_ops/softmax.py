"""softmax, log-softmax, masked softmax over any dimension, gradients: `arithmetic.softmax.definition`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from samebits.arithmetic.reductions import MEMORY
from samebits.arithmetic.softmax import softmax, softmax_gradient
from samebits.determinism._ops.operands import takes
from samebits.determinism._replacement import Replacement, or_torchs, replacements


def _softmax(
    self: Tensor, dim: int, half_to_float: bool, *, out: Tensor | None = None, log: bool
) -> Tensor | None:
    op = "_log_softmax" if log else "_softmax"
    if not takes(op, self.dtype) or half_to_float or not _exists(self, dim):
        return None
    return softmax(self, dim, self.dtype, log=log)


def _gradient(
    grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype, *, log: bool, **_out: Tensor
) -> Tensor | None:
    op = "_log_softmax_backward_data" if log else "_softmax_backward_data"
    takes(op, grad_output.dtype, output.dtype)
    same = grad_output.shape == output.shape and grad_output.dtype == output.dtype
    if not same or input_dtype not in MEMORY or not _exists(output, dim):
        return None
    return softmax_gradient(grad_output, output, dim, input_dtype, log=log)


def _exists(x: Tensor, dim: int) -> bool:
    rank = max(1, x.dim())
    return -rank <= dim < rank


def _masked(
    self: Tensor, mask: Tensor, dim: int | None = None, mask_type: int | None = None
) -> Tensor | None:
    along = self.dim() - 1 if dim is None else dim
    takes("_masked_softmax", self.dtype)
    if mask.dtype != torch.bool or self.dtype not in MEMORY or not _exists(self, along) or not self.numel():
        return None
    wide = _as_wide(mask, self, mask_type)
    if wide is None:
        return None
    return softmax(self.masked_fill(wide, float("-inf")), along, self.dtype, log=False)


def _as_wide(mask: Tensor, x: Tensor, mask_type: int | None) -> Tensor | None:
    """Returns the mask in the shape of `x`; types are 0 queries by keys, 1 batch by keys, 2 all."""
    if mask_type == 0 and x.dim() == 4 and mask.shape == x.shape[2:] and x.shape[2] == x.shape[3]:
        return mask.expand(x.shape)
    if mask_type == 1 and x.dim() == 4 and mask.shape == (x.shape[0], x.shape[3]):
        return mask[:, None, None, :].expand(x.shape)
    return mask if mask_type == 2 and mask.shape == x.shape else None


def _masked_gradient(
    grad_output: Tensor, output: Tensor, mask: Tensor, dim: int | None = None
) -> Tensor | None:
    along = output.dim() - 1 if dim is None else dim
    takes("_masked_softmax_backward", grad_output.dtype, output.dtype)
    valid = grad_output.shape == output.shape == mask.shape and mask.dtype == torch.bool
    if not valid or grad_output.dtype != output.dtype or not _exists(output, along):
        return None
    y = output.masked_fill(mask, 0)
    grad = softmax_gradient(grad_output.masked_fill(mask, 0), y, along, output.dtype, log=False)
    return grad.masked_fill(mask, 0)


_REASON = (
    "exp and its sum follow the machine's vectors: a fixed polynomial, and sums of 16 lanes by definition"
)


def _replacements() -> Iterator[Replacement]:
    for op, log, out in (("_softmax", False, "grad_input"), ("_log_softmax", True, "out")):
        yield from replacements((op, f"{op}.out"), or_torchs(partial(_softmax, log=log)), _REASON)
        names = (f"{op}_backward_data", f"{op}_backward_data.out")
        yield from replacements(names, or_torchs(partial(_gradient, log=log), (out,)), _REASON)
    yield from replacements(["_masked_softmax"], or_torchs(_masked), _REASON)
    yield from replacements(["_masked_softmax_backward"], or_torchs(_masked_gradient), _REASON)


REPLACEMENTS = tuple(_replacements())
