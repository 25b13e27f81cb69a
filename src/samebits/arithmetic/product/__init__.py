"""Products of matrices. The definition of their bits is in `definition`."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from samebits._native.kernel_rounds import Call
from samebits.arithmetic.product.finish import finish, finish_work, finisher
from samebits.arithmetic.product.plan import NOTHING, ProductCase, ProductPlan, planned
from samebits.arithmetic.product.scratch import borrow, give_back
from samebits.arithmetic.product.scratch import scratch_tensor as scratch_tensor

_PACK = struct.Struct("10q").pack


def product(
    a: Tensor,
    b: Tensor,
    added: Tensor | None = None,
    alpha: Any = 1,
    beta: Any = 1,
    out: Tensor | None = None,
) -> Tensor | None:
    """Returns alpha a b + beta added; None if these do not fit, are empty, or not of one floating-point type.

    Two matrices, equal batches of them, or a matrix and a vector. `added` is broadcast to the result's shape,
    and not read if beta is 0. `out`: an empty tensor of the result's shape and type that becomes it; its rows
    must be dense.
    """
    if beta == 0:
        added = None
    dtype = a.dtype
    if dtype == torch.float16 and b.dtype == dtype:
        a, b = a.float(), b.float()
    return _product(a, b, added, alpha, beta, dtype, out)


def _product(
    a: Tensor,
    b: Tensor,
    added: Tensor | None,
    alpha: Any,
    beta: Any,
    dtype: torch.dtype,
    out: Tensor | None = None,
) -> Tensor | None:
    """The same with a result of that type."""
    plan = _plan(
        a.dtype,
        b.dtype,
        dtype,
        a.shape,
        b.shape,
        a.stride(),
        b.stride(),
        NOTHING if added is None else (added.shape, added.stride(), added.dtype),
        alpha == 1 and beta == 1,
        torch.get_num_threads(),
        NOTHING if out is None else out.stride(),
    )
    if plan is None:
        return None
    if plan.is_copied:
        return _product(*_readable(a, b), added, alpha, beta, dtype, out)
    if out is None:
        out = torch.empty_strided(plan.shape, plan.strides, dtype=dtype)
    first, second = (b, a) if plan.is_swapped else (a, b)
    c = out.data_ptr()
    s = c if added is None else added.data_ptr()
    memory = borrow(plan.memory)
    if plan.is_simple:
        # Bytes that nobody else has: the kernel counts in them.
        plan.alone(_PACK(0, 1, first.data_ptr(), second.data_ptr(), c, s, plan.address, 0, memory[1], 1))
        give_back(memory)
        return out
    factors = array("d" if dtype == torch.float64 else "f", (alpha, beta))
    scale = factors.buffer_info()[0]
    places = plan.address, scale, memory[1], plan.memory_parts
    if plan.planes > 1:
        sums = torch.empty(plan.sums, dtype=plan.sum_dtype)
        plan.run(plan.chunks, first.data_ptr(), second.data_ptr(), sums.data_ptr(), s, *places)
        finish(sums, out, s, plan.steps, plan.adds_self, scale, plan.mxcsr)
    else:
        plan.run(plan.chunks, first.data_ptr(), second.data_ptr(), c, s, *places)
    give_back(memory)
    return out


@contextmanager
def product_calls(
    a: Tensor, b: Tensor, added: Tensor | None, out: Tensor, moves: tuple[int, int, int, int]
) -> Iterator[list[Call]]:
    """Yields the calls for `run_rounds` that make `out`, dense, the product of two matrices plus `added`.

    From round to round a, b, added and out move on by these bytes. The factors have dense rows or columns;
    those of bfloat16 an even inner dimension.
    """
    dtype = a.dtype
    more = NOTHING if added is None else (added.shape, added.stride(), added.dtype)
    shapes = a.shape, b.shape, a.stride(), b.stride()
    plan = _plan(dtype, b.dtype, dtype, *shapes, more, True, torch.get_num_threads(), NOTHING)
    assert plan is not None
    assert not plan.is_copied
    places = [(a.data_ptr(), moves[0]), (b.data_ptr(), moves[1])]
    if plan.is_swapped:
        places.reverse()
    made = out.data_ptr(), moves[3]
    own = made if added is None else (added.data_ptr(), moves[2])
    memory, factors = borrow(plan.memory), array("d" if dtype == torch.float64 else "f", (1, 1))
    scale = factors.buffer_info()[0]
    sums = torch.empty(plan.sums, dtype=plan.sum_dtype) if plan.planes > 1 else None
    target = made if sums is None else (sums.data_ptr(), 0)
    last = ((place, 0) for place in (plan.address, scale, memory[1], plan.memory_parts))
    calls = [Call(plan.run, plan.chunks, *zip(*places, target, own, *last, strict=True))]
    if sums is not None:
        chunks, fields = finish_work(sums, plan.steps, plan.adds_self, plan.mxcsr)
        given = (target, made, own, (fields.buffer_info()[0], 0), (scale, 0))
        calls.append(Call(finisher(dtype), chunks, *zip(*given, strict=True)))
    yield calls
    give_back(memory)


def _readable(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The factors with contiguous rows, and pairs without a rest."""
    if a.dtype == torch.bfloat16 and a.shape[-1] % 2:
        a = torch.nn.functional.pad(a, (0, 1))
        b = torch.nn.functional.pad(b, (0, 1) if b.dim() == 1 else (0, 0, 0, 1))
    return a.contiguous(), b.contiguous()


@lru_cache(maxsize=4096)
def _plan(*case: Any) -> ProductPlan | None:
    """Returns the plan of the `ProductCase` of these fields: one made at each call took 0.4 us of 3.4."""
    return planned(ProductCase(*case))
