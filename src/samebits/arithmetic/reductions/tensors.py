"""A reduction of a tensor over some of its dimensions."""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from samebits._native.kernel_threads import OnTeam
from samebits._strides import contiguous_strides
from samebits.arithmetic.reductions.definition import BLOCK
from samebits.arithmetic.reductions.kernels import (
    PART,
    PLAIN,
    QUOTIENT,
    ROOT,
    TILE,
    accumulator,
    columns,
    runs,
)
from samebits.arithmetic.reductions.steps import STEPS

# The way of a reduction through a tensor, found once for each shape, strides and dimensions.


Axes = list[tuple[int, int]]
"""Sizes and strides, the outermost dimension first."""
_GRAIN = 1 << 15
"""Elements of a chunk, about: the work that is worth a thread."""


class ReductionPlan(NamedTuple):
    """One pass of a kernel over a tensor, whose results are reduced again where a row has several parts."""

    shape: tuple[int, ...]
    """Of the result."""
    elements: int
    """Of which each result is made."""
    results: int
    in_columns: bool
    chunks: int
    sizes: tuple[int, ...]
    """The kernel's arguments from the fifth to the thirteenth; strides in bytes."""
    again: tuple[int, int, int]
    """Outer, parts and inner of the results of this pass."""
    permuted: tuple[int, ...]
    """The order of dimensions of the contiguous copy that has to be made; empty: none."""


def _joined(axes: Axes) -> Axes:
    """Returns the axes without those of one element, neighbours in one where they lie behind each other."""
    found: Axes = []
    for size, stride in axes:
        if size == 1:
            continue
        if found and found[-1][1] == stride * size:
            found[-1] = (found[-1][0] * size, stride)
        else:
            found.append((size, stride))
    return found


def plan_of(
    shape: tuple[int, ...], strides: tuple[int, ...], dims: tuple[int, ...], keepdim: bool, size: int
) -> ReductionPlan:
    """Returns the way through a tensor that is not empty. `dims`: none for all; `size`: bytes of an element.

    Raises:
        IndexError: a dimension that the tensor does not have, or twice.
    """
    rank = len(shape)
    over = _reduced(rank, dims)
    reduced_dims = [dim for dim in range(rank) if dim in over]
    kept_dims = [dim for dim in range(rank) if dim not in over]
    result = result_shape(shape, dims, keepdim)
    kept = _joined([(shape[dim], strides[dim]) for dim in kept_dims])
    reduced = _joined([(shape[dim], strides[dim]) for dim in reduced_dims])
    elements = math.prod(shape[dim] for dim in reduced_dims)
    permuted: tuple[int, ...] = ()
    walk = _in_runs(kept, reduced, size) or _in_columns(kept, reduced, size)
    if walk is None:
        permuted = (*kept_dims, *reduced_dims)
        rows = math.prod(size for size, _ in kept)
        walk = _in_runs([(rows, elements)], [(elements, 1)], size)
        assert walk is not None
    in_columns, results, chunks, sizes, again = walk
    return ReductionPlan(result, elements, results, in_columns, chunks, sizes, again, permuted)


def result_shape(shape: Sequence[int], dims: Sequence[int], keepdim: bool) -> tuple[int, ...]:
    """Returns the shape of a reduction over `dims`; over all, if there are none."""
    over = _reduced(len(shape), dims)
    return tuple(1 if dim in over else size for dim, size in enumerate(shape) if keepdim or dim not in over)


def _reduced(rank: int, dims: Sequence[int]) -> set[int]:
    limit = max(rank, 1)
    over = {dim % limit for dim in dims} or set(range(rank))
    if any(not -limit <= dim < limit for dim in dims) or (dims and len(over) != len(dims)):
        raise IndexError
    return over


_Walk = tuple[bool, int, int, tuple[int, ...], tuple[int, int, int]]


def _in_runs(kept: Axes, reduced: Axes, size: int) -> _Walk | None:
    if len(kept) > 2 or len(reduced) > 2 or (reduced and reduced[-1][1] != 1):
        return None
    (outer, outer_stride), (inner, inner_stride) = _two(kept)
    (runs, between), (run, _) = _two(reduced)
    elements = runs * run
    parts = -(-elements // PART)
    results = outer * inner * parts
    piece = max(1, _GRAIN // min(elements, PART))
    strides = (outer_stride * size, inner_stride * size)
    sizes = (results, parts, piece, inner, *strides, elements, run, between * size)
    return False, results, -(-results // piece), sizes, (outer * inner, parts, 1)


def _in_columns(kept: Axes, reduced: Axes, size: int) -> _Walk | None:
    if not kept or kept[-1][1] != 1 or len(kept) > 2 or len(reduced) > 2:
        return None
    (outer, outer_stride), (columns, _) = _two(kept)
    (runs, between), (run, stride) = _two(reduced)
    rows = runs * run
    blocks = -(-rows // BLOCK)
    group = min(-(-columns // TILE), max(1, _GRAIN // (TILE * min(rows, BLOCK)))) * TILE
    groups = -(-columns // group)
    sizes = (columns, rows, blocks, groups, group, outer_stride * size, run, stride * size, between * size)
    return True, outer * blocks * columns, outer * blocks * groups, sizes, (outer, blocks, columns)


def _two(axes: Sequence[tuple[int, int]]) -> Axes:
    return [(1, 0)] * (2 - len(axes)) + list(axes)


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


def lanes_type(x: Tensor) -> torch.dtype:
    """Returns the type that a tensor is computed in."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


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
    """Returns the kernel of a reduction, its plan, whether one pass makes the result, strides and type of
    what it writes, the numbers of 64 bits that it needs for parts, and its arguments between the addresses.
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
