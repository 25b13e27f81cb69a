"""A reduction of a tensor over some of its dimensions."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from samebits._native.kernel_threads import OnTeam
from samebits.determinism._arithmetic.reductions.kernels import (
    PLAIN,
    QUOTIENT,
    ROOT,
    accumulator,
    columns,
    runs,
)
from samebits.determinism._arithmetic.reductions.plans import ReductionPlan, plan_of, result_shape
from samebits.determinism._arithmetic.reductions.steps import STEPS

MEMORY = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
}
"""The types that kernels read and write."""
_TYPES = {name: dtype for dtype, name in MEMORY.items()}
_bits = struct.Struct("q").unpack
_double = struct.Struct("d").pack


def bits_of(number: float) -> int:
    """Returns the bits of a float64 as an integer, as a kernel takes it."""
    return _bits(_double(number))[0]


def reduce(
    what: str,
    x: Tensor,
    dims: Sequence[int] = (),
    keepdim: bool = False,
    *,
    y: Tensor | None = None,
    centers: Tensor | None = None,
    dtype: torch.dtype | None = None,
    last: int = PLAIN,
    divisor: float | None = None,
) -> Tensor:
    """Returns a reduction of a tensor.

    Args:
        what: the kind of reduction, of `steps.STEPS`.
        x: of a type in `MEMORY`.
        dims: to be reduced; none for all.
        y: the second operand, with the shape and strides of `x`.
        centers: what is subtracted, one number for each result, contiguous, of the type of the lanes.
        dtype: of the result; else that of `x`. A result that is float64 in the lanes becomes float32 first.
        last: the last operations, on a result in the lanes' type.
        divisor: of the result; the number of elements, if None.
        keepdim: as torch's.

    Raises:
        IndexError: `dims` are not some dimensions of `x`, each once.
    """
    if not x.numel():
        return _of_nothing(what, x, dims, keepdim, dtype or x.dtype, last, divisor)
    kind = x.dtype if dtype is None else dtype
    run, plan, result_type, last_now, bits = _prepared(
        what, x.dtype, x.shape, x.stride(), tuple(dims), keepdim, kind, last, divisor
    )
    if plan.permuted:
        moved = x.permute(plan.permuted).contiguous()
        other = None if y is None else y.permute(plan.permuted).contiguous()
        middle = tuple(range(len(plan.permuted) - len(set(dims) or plan.permuted), len(plan.permuted)))
        made = reduce(what, moved, middle, y=other, centers=centers, dtype=kind, last=last, divisor=divisor)
        return made.view(plan.shape)
    whole = plan.again[1] == 1
    out = torch.empty(plan.shape if whole else plan.results, dtype=result_type)
    address = x.data_ptr()
    run(
        plan.chunks,
        address,
        address if y is None else y.data_ptr(),
        address if centers is None else centers.data_ptr(),
        out.data_ptr(),
        *plan.sizes,
        last_now,
        bits,
    )
    if whole:
        return out
    if divisor is None:
        divisor = plan.elements
    parts = out.view(plan.again)
    return reduce(STEPS[what].again, parts, (1,), dtype=kind, last=last, divisor=divisor).view(plan.shape)


@lru_cache(maxsize=4096)
def _prepared(
    what: str,
    memory_type: torch.dtype,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dims: tuple[int, ...],
    keepdim: bool,
    result_type: torch.dtype,
    last: int,
    divisor: float | None,
) -> tuple[OnTeam, ReductionPlan, torch.dtype, int, int]:
    """Returns the kernel of a reduction, its plan, the type of its results, and its last two arguments."""
    memory = MEMORY[memory_type]
    plan = plan_of(shape, strides, dims, keepdim, memory_type.itemsize)
    if plan.again[1] > 1:
        result_type, last = _TYPES[accumulator(what, memory)], PLAIN
    run = (columns if plan.in_columns else runs)(what, memory, MEMORY[result_type])
    return run, plan, result_type, last, bits_of(plan.elements if divisor is None else divisor)


def _of_nothing(
    what: str,
    x: Tensor,
    dims: Sequence[int],
    keepdim: bool,
    dtype: torch.dtype,
    last: int,
    divisor: float | None,
) -> Tensor:
    shape = result_shape(x.shape, dims, keepdim)
    value = np.float64(STEPS[what].start)
    if last & QUOTIENT:
        elements = x.numel() // max(1, torch.Size(shape).numel())
        with np.errstate(all="ignore"):
            value = value / np.float64(elements if divisor is None else divisor)
    value = np.sqrt(value) if last & ROOT else value
    return torch.full(shape, float("nan") if np.isnan(value) else float(value), dtype=dtype)
