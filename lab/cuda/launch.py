"""The functions of `samebits.arithmetic` over CUDA tensors; over the CPU's in Triton's interpreter, where the tests run.

`enable_fp_fusion=False` keeps Triton and ptxas from contracting a multiplication and an addition; what is to be fused says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np
import torch
import triton.language as tl
from torch import Tensor

from lab.cuda.formula_kernels import kernel_of
from lab.cuda.kernels import block_sums, product_tile
from samebits.arithmetic.elementwise_functions import ElementwiseFunction

_ROWS, _COLUMNS = 32, 64
_ELEMENTS = 256
"""Of a program."""
_BLOCKS = 16
_SUM_BLOCK = 256


def product(
    a: Tensor, b: Tensor, added: Tensor | None = None, alpha: float = 1, beta: float = 1
) -> Tensor | None:
    """Returns alpha a b + beta added, as the CPU's `product`; None where that has none, and for bfloat16."""
    if a.dtype != b.dtype or a.dtype not in (torch.float32, torch.float64, torch.float16):
        return None
    left = a if a.dim() > 1 else a.unsqueeze(0)
    right = b if b.dim() > 1 else b.unsqueeze(1)
    shape = (*left.shape[:-1], right.shape[-1])
    if left.dim() != right.dim() or left.shape[-1] != right.shape[-2] or not prod(shape) * a.shape[-1]:
        return None
    made = torch.empty(shape, dtype=a.dtype, device=a.device)
    out = made if a.dim() > 1 else made.squeeze(0)
    out = out if b.dim() > 1 else out.squeeze(-1)
    if beta == 0 or added is None:
        more = made
    else:
        more = added.expand(out.shape).reshape_as(made) if out.shape != made.shape else added.expand(shape)
    matrices = [one if one.dim() == 3 else one.unsqueeze(0) for one in (left, right, more, made)]
    batches, rows, columns = matrices[-1].shape
    programs = batches * -(-rows // _ROWS) * -(-columns // _COLUMNS)
    wide = a.dtype == torch.float64
    real = float if wide else _float32
    _launch(
        product_tile,
        programs,
        *matrices,
        rows,
        columns,
        a.shape[-1],
        *(step for one in matrices for step in one.stride()),
        real(alpha),
        real(beta),
        ADDED=more is not made,
        DTYPE=tl.float64 if wide else tl.float32,
        ROWS=_ROWS,
        COLUMNS=_COLUMNS,
    )
    return out


def applied(function: ElementwiseFunction, inputs: Sequence[Tensor], *numbers: float) -> list[Tensor]:
    """Returns the results of an elementwise function of tensors of one shape and type."""
    inputs = [one.contiguous() for one in inputs]
    first = inputs[0]
    kernel = function.kernels[first.dtype]
    wide = first.dtype == torch.float64
    computed = "float64" if wide or kernel.wide else "float32"
    name = f"{function.name}_of_{computed}"
    run, tables = kernel_of(kernel.define, name, computed, function.inputs, function.numbers)
    outs = [torch.empty_like(first) for _ in range(function.outputs)]
    elements = first.numel()
    given = [_on_device(table, first.device) for table in map(_frozen, tables)]
    values = [float(one) if wide else _float32(one) for one in numbers]
    _launch(run, -(-elements // _ELEMENTS), *inputs, *outs, *given, *values, elements, BLOCK=_ELEMENTS)
    return outs


def summed(x: Tensor, y: Tensor | None = None) -> Tensor:
    """Returns the sums along the last dimension, of the products with `y` if it is given."""
    if not x.numel():
        return x.new_zeros(x.shape[:-1])
    lanes = torch.float64 if x.dtype == torch.float64 else torch.float32
    made = _blocks_summed(x, y, x.dtype, lanes)
    while made.shape[-1] > 1:
        made = _blocks_summed(made, None, x.dtype, lanes)
    return made.squeeze(-1)


def _blocks_summed(x: Tensor, y: Tensor | None, result: torch.dtype, lanes: torch.dtype) -> Tensor:
    """Returns the sums of the blocks along the last dimension: of the result's type if there is one block."""
    x = x.contiguous()
    length = x.shape[-1]
    per_row = -(-length // _SUM_BLOCK)
    out = torch.empty(*x.shape[:-1], per_row, dtype=lanes if per_row > 1 else result, device=x.device)
    blocks, other = out.numel(), x if y is None else y.contiguous()
    constants = {"DTYPE": tl.float64 if lanes == torch.float64 else tl.float32, "DOT": y is not None}
    _launch(block_sums, -(-blocks // _BLOCKS), x, other, out, blocks, per_row, length, BLOCKS=_BLOCKS, **constants)  # fmt: skip
    return out


def _float32(number: float) -> float:
    """Returns the float32 next to a number."""
    return float(np.float32(number))


def _frozen(table: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in table)


@cache
def _on_device(table: tuple[tuple[float, ...], ...], device: torch.device) -> Tensor:
    return torch.tensor(table, dtype=torch.float64, device=device)


def _launch(kernel: Any, programs: int, *arguments: Any, **constants: Any) -> None:
    if programs:
        with torch.cuda.device_of(arguments[0]):
            kernel[(programs,)](*arguments, **constants, enable_fp_fusion=False)
