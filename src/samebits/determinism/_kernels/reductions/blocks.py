"""The kernel of all reductions: blocks of a fixed size, and the blocks' results in their order."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits import _native as native
from samebits._native import inlined
from samebits._native.kernel_threads import (
    OnTeam,
    bfloat16_of,
    count_up,
    float32_at,
    float64_at,
    int64_at,
    on_team,
    uint16_at,
)
from samebits.determinism._kernels.vector_tails import is_dense

_BLOCK = 4096
"""Elements of a block: in it LLVM keeps some 64 running results, so that rounding errors add up over short chains."""
_BLOCKS = 8
"""Blocks of a chunk."""


@inlined
def _plain(x: Any, y: Any, center: Any) -> Any:
    return x


@inlined
def _number(x: Any, y: Any, center: Any) -> Any:
    return np.float32(0) if np.isnan(x) else x


@inlined
def _magnitude(x: Any, y: Any, center: Any) -> Any:
    return abs(x)


@inlined
def _product(x: Any, y: Any, center: Any) -> Any:
    return x * y


@inlined
def _deviation(x: Any, y: Any, center: Any) -> Any:
    return (x - center) * (x - center)


@inlined
def _add(x: Any, y: Any) -> Any:
    return x + y


@inlined
def _times(x: Any, y: Any) -> Any:
    return x * y


@inlined
def _of_bfloat16(word: Any) -> Any:
    return bfloat16_of(word)


@inlined
def _itself(x: Any) -> Any:
    return x


INPUTS = {
    torch.float32: (float32_at, _itself),
    torch.float64: (float64_at, _itself),
    torch.bfloat16: (uint16_at, _of_bfloat16),
}
SINGLE = (torch.float32, float32_at, np.float32)
DOUBLE = (torch.float64, float64_at, np.float64)
_TERMS = {
    "sum": (_plain, _add, 0, SINGLE),
    "nansum": (_number, _add, 0, SINGLE),
    "norm1": (_magnitude, _add, 0, SINGLE),
    "dot": (_product, _add, 0, SINGLE),
    # Factors near 1 lose the same small term in every short chain; a variance is a small difference.
    "prod": (_plain, _times, 1, DOUBLE),
    "sum64": (_plain, _add, 0, DOUBLE),
    "deviation": (_deviation, _add, 0, DOUBLE),
}


def _accumulator(what: str, dtype: torch.dtype) -> tuple[torch.dtype, Any, Any]:
    return DOUBLE if dtype == torch.float64 else _TERMS[what][3]


@cache
def _kernel(what: str, dtype: torch.dtype) -> OnTeam:
    """out[0] = term(x[i], y[i], center) combined, / divisor.

    args: 1-4 addresses of x, y, one number a block, and out; 5 elements; 6 divisor; 7 address of center; 8 zero.
    """
    pointer, load = INPUTS[dtype]
    term, combine, start, _ = _TERMS[what]
    _, result_pointer, real = _accumulator(what, dtype)

    def blocks(chunk: int, args: Any) -> None:
        count = args[5]
        last = (count + _BLOCK - 1) // _BLOCK
        x = native.carray(pointer(args[1]), (count,))
        y = native.carray(pointer(args[2]), (count,))
        results = native.carray(result_pointer(args[3]), (last,))
        center = native.carray(float64_at(args[7]), (1,))[0]
        for block in range(chunk * _BLOCKS, min(last, (chunk + 1) * _BLOCKS)):
            total = real(start)
            # Slices, because LLVM vectorises no loop whose index could be negative.
            these = x[block * _BLOCK : (block + 1) * _BLOCK]
            those = y[block * _BLOCK : (block + 1) * _BLOCK]
            for i in range(these.size):
                total = combine(total, term(load(these[i]), load(those[i]), center))
            results[block] = total
        if (
            count_up(int64_at(args.ctypes.data + 64)) == args[0] - 1
        ):  # all blocks are done: the last one ends it
            total = real(start)
            for result in results:
                total = combine(total, result)
            native.carray(result_pointer(args[4]), (1,))[0] = total / real(args[6])

    return on_team(blocks, name=f"{what}_{dtype}", reassociate=True)


def reduce(
    what: str, x: Tensor, y: Tensor | None = None, *, divisor: int = 1, center: float = 0.0, shape: Any = ()
) -> Tensor:
    """All elements of `x` (and `y`), without gaps, to one, of shape `shape` and the accumulator's type."""
    y = x if y is None else y
    blocks = -(-x.numel() // _BLOCK)
    dtype = _accumulator(what, x.dtype)[0]
    results, out = x.new_empty(blocks, dtype=dtype), x.new_empty(shape, dtype=dtype)
    middle = ctypes.c_double(center)
    _kernel(what, x.dtype)(
        -(-blocks // _BLOCKS),
        *(x.data_ptr(), y.data_ptr(), results.data_ptr(), out.data_ptr()),
        *(x.numel(), divisor, ctypes.addressof(middle), 0),
    )
    return out


def gapless(x: Tensor) -> Tensor:
    """A tensor with the same elements and no gaps: `x` itself where they fill their memory, in any order."""
    return x if x.is_contiguous() or is_dense(x) else x.contiguous()
