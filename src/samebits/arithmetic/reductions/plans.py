"""The way of a reduction through a tensor, found once for each shape, strides and dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from samebits.arithmetic.reductions.kernels import BLOCK, PART, TILE

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
    """Returns the way through a tensor with at least one element. `dims`: none for all; `size`: bytes of an element.

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
