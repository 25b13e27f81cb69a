"""softmax, log-softmax and masked softmax over any dimension, and their gradients (definition: `arithmetic.softmax`)."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from samebits.arithmetic.reductions.tensors import MEMORY
from samebits.arithmetic.softmax import tensors
from samebits.determinism._dispatcher import Kernel
from samebits.determinism._kernels.out_argument import into
from samebits.determinism._ops.operands import takes
from samebits.determinism._replacement import replacements


def _forward(kernel: Kernel, *, op: str, log: bool) -> Kernel:
    def softmax(self: Tensor, dim: int, half_to_float: bool, *, out: Tensor | None = None) -> Tensor:
        dtype = self.dtype
        if dtype not in MEMORY or half_to_float or not _exists(self, dim):
            takes(op, dtype)
            return kernel(self, dim, half_to_float, **({} if out is None else {"out": out}))
        result = tensors.softmax(self, dim, dtype, log=log)
        return result if out is None else into(out, result)

    return softmax


def _backward(kernel: Kernel, *, op: str, log: bool, name: str) -> Kernel:
    def gradient(
        grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype, **out: Any
    ) -> Tensor:
        takes(op, grad_output.dtype, output.dtype)
        same = grad_output.shape == output.shape and grad_output.dtype == output.dtype
        if not same or input_dtype not in MEMORY or not _exists(output, dim):
            return kernel(grad_output, output, dim, input_dtype, **out)
        result = tensors.softmax_gradient(grad_output, output, dim, input_dtype, log=log)
        return into(out[name], result) if out else result

    return gradient


def _exists(x: Tensor, dim: int) -> bool:
    rank = max(1, x.dim())
    return -rank <= dim < rank


def _masked(kernel: Kernel) -> Kernel:
    def masked_softmax(
        self: Tensor, mask: Tensor, dim: int | None = None, mask_type: int | None = None
    ) -> Tensor:
        along = self.dim() - 1 if dim is None else dim
        takes("_masked_softmax", self.dtype)
        if (
            mask.dtype != torch.bool
            or self.dtype not in MEMORY
            or not _exists(self, along)
            or not self.numel()
        ):
            return kernel(self, mask, dim, mask_type)
        wide = _as_wide(mask, self, mask_type)
        if wide is None:
            return kernel(self, mask, dim, mask_type)
        shown = self.masked_fill(wide, float("-inf"))
        return tensors.softmax(shown, along, self.dtype, log=False)

    return masked_softmax


def _as_wide(mask: Tensor, x: Tensor, mask_type: int | None) -> Tensor | None:
    """Returns the mask in the shape of `x`: 0 is one of queries by keys, 1 of batch by keys, 2 of all; None: not valid."""
    if mask_type == 0 and x.dim() == 4 and mask.shape == x.shape[2:] and x.shape[2] == x.shape[3]:
        return mask.expand(x.shape)
    if mask_type == 1 and x.dim() == 4 and mask.shape == (x.shape[0], x.shape[3]):
        return mask[:, None, None, :].expand(x.shape)
    return mask if mask_type == 2 and mask.shape == x.shape else None


def _masked_backward(kernel: Kernel) -> Kernel:
    def gradient(grad_output: Tensor, output: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
        along = output.dim() - 1 if dim is None else dim
        takes("_masked_softmax_backward", grad_output.dtype, output.dtype)
        valid = grad_output.shape == output.shape == mask.shape and mask.dtype == torch.bool
        if not valid or grad_output.dtype != output.dtype or not _exists(output, along):
            return kernel(grad_output, output, mask, dim)
        y = output.masked_fill(mask, 0)
        grad = tensors.softmax_gradient(grad_output.masked_fill(mask, 0), y, along, output.dtype, log=False)
        return grad.masked_fill(mask, 0)

    return gradient


_REASON = (
    "exp and its sum follow the machine's vectors: a fixed polynomial, and sums of 16 lanes by definition"
)

REPLACEMENTS = (
    *(
        replacement
        for op, log in (("_softmax", False), ("_log_softmax", True))
        for names, make in (
            ((op, f"{op}.out"), partial(_forward, op=op, log=log)),
            (
                (f"{op}_backward_data", f"{op}_backward_data.out"),
                partial(_backward, op=f"{op}_backward_data", log=log, name="out" if log else "grad_input"),
            ),
        )
        for replacement in replacements(names, make, _REASON)
    ),
    *replacements(["_masked_softmax"], _masked, _REASON),
    *replacements(["_masked_softmax_backward"], _masked_backward, _REASON),
)
