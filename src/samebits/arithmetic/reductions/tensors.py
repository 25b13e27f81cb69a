"""A reduction of a tensor over some of its dimensions."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from samebits._native.kernel_threads import OnTeam
from samebits._strides import contiguous_strides
from samebits.arithmetic.reductions.kernels import (
    BLOCK,
    PLAIN,
    QUOTIENT,
    ROOT,
    accumulator,
    columns,
    runs,
)
from samebits.arithmetic.reductions.plans import ReductionPlan, plan_of, result_shape
from samebits.arithmetic.reductions.steps import STEPS

MEMORY = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
}
"""The types that kernels read and write."""
_TYPES = {name: dtype for dtype, name in MEMORY.items()}
_addresses = struct.Struct("6q").pack
_address = struct.Struct("q").pack
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
    run, plan, whole, strides, result_type, parts, sizes = _prepared(
        what, x.dtype, x.shape, x.stride(), tuple(dims), keepdim, kind, last, divisor
    )
    if plan.permuted:
        moved = x.permute(plan.permuted).contiguous()
        other = None if y is None else y.permute(plan.permuted).contiguous()
        middle = tuple(range(len(plan.permuted) - len(set(dims) or plan.permuted), len(plan.permuted)))
        made = reduce(what, moved, middle, y=other, centers=centers, dtype=kind, last=last, divisor=divisor)
        return made.view(plan.shape)
    out = torch.empty_strided(plan.shape if whole else (plan.results,), strides, dtype=result_type)
    room = array("q", bytes(8 * parts))
    address = x.data_ptr()
    packed = _addresses(
        0,
        plan.chunks,
        address,
        address if y is None else y.data_ptr(),
        address if centers is None else centers.data_ptr(),
        out.data_ptr(),
    )
    run.run_packed(plan.chunks, packed + sizes + _address(room.buffer_info()[0] if parts else 0))
    if whole:
        return out
    if divisor is None:
        divisor = plan.elements
    return reduce(STEPS[what].again, out.view(plan.again), (1,), dtype=kind, last=last, divisor=divisor).view(
        plan.shape
    )


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
) -> tuple[OnTeam, ReductionPlan, bool, tuple[int, ...], torch.dtype, int, bytes]:
    """Returns the kernel of a reduction, its plan, whether one pass makes the result, strides and type of what it writes,
    the numbers of 64 bits that it needs for parts, and its arguments between the addresses.
    """
    memory = MEMORY[memory_type]
    plan = plan_of(shape, strides, dims, keepdim, memory_type.itemsize)
    outer, parts, _ = plan.again
    is_one_row = not plan.in_columns and outer == 1 < parts <= BLOCK
    whole = parts == 1 or is_one_row
    if not whole:
        result_type, last = _TYPES[accumulator(what, memory)], PLAIN
    run = (columns if plan.in_columns else runs)(what, memory, MEMORY[result_type])
    strides = contiguous_strides(plan.shape) if whole else (1,)
    bits = bits_of(plan.elements if divisor is None else divisor)
    sizes = array("q", (*plan.sizes, last, bits)).tobytes()
    return run, plan, whole, strides, result_type, parts + 1 if is_one_row else 0, sizes


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
