"""The last steps of a product where the tiles do not take them: sums of chunks added in order, alpha, beta and self, one rounding."""

from __future__ import annotations

from array import array
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits import _native as native
from samebits._native import inlined
from samebits._native.float_bits import of_bfloat16, of_float16, to_bfloat16, to_float16
from samebits._native.kernel_threads import (
    OnTeam,
    float32_at,
    float64_at,
    int64_at,
    on_team,
    uint16_at,
)
from samebits.arithmetic.product.mxcsr import set_mxcsr


@inlined
def _same(x: Any) -> Any:
    return x


FORMS = {
    torch.float32: (float32_at, 4, _same, _same),
    torch.float64: (float64_at, 8, _same, _same),
    torch.bfloat16: (uint16_at, 2, of_bfloat16, to_bfloat16),
    torch.float16: (uint16_at, 2, of_float16, to_float16),
}
"""By type: pointer, bytes, how it becomes the type of the sums, and how that becomes it."""
BLOCK = 512
"""Elements of a row that are finished together."""


def _finished(dtype: torch.dtype) -> Any:
    """Returns the part of kernels that rounds a sum to the result's type, with the one NaN."""
    rounded = FORMS[dtype][3]
    if dtype == torch.bfloat16:  # its NaN is that one
        return rounded
    nan: Any = (np.float64 if dtype == torch.float64 else np.float32)(np.nan)

    @inlined
    def finished(x: Any) -> Any:
        return rounded(nan if x != x else x)  # noqa: PLR0124 (not a number)

    return finished


@lru_cache(maxsize=4)
def row_finisher(dtype: torch.dtype) -> Any:
    """Returns the part of kernels that makes a row of the result of a row of sums.

    Its arguments, addresses and bytes from column to column: sums (side by side); result; self; is self added; alpha
    and beta; the number of columns.
    """
    at, bytes_of_one, read, rounded = FORMS[dtype]
    pointer = float64_at if dtype == torch.float64 else float32_at
    finished = _finished(dtype)

    @inlined
    def rounded_and_read(x: Any) -> Any:
        return read(rounded(x))

    in_type = rounded_and_read if bytes_of_one == 2 else _same

    @inlined
    def finish_row(t: Any, out: Any, out_step: Any, s: Any, s_step: Any, is_adding: Any, scale: Any, count: Any) -> None:  # fmt: skip
        factors = native.carray(pointer(scale), (2,))
        alpha, beta = factors[0], factors[1]
        sums = native.carray(pointer(t), (count,))
        if is_adding != 0 and s_step == bytes_of_one:
            more = native.carray(at(s), (count,))
            for j in range(count):
                sums[j] = in_type(sums[j] * alpha) + beta * read(more[j])
        elif is_adding != 0:
            for j in range(count):
                sums[j] = in_type(sums[j] * alpha) + beta * read(native.carray(at(s + j * s_step), (1,))[0])
        elif alpha != 1:
            for j in range(count):
                sums[j] = sums[j] * alpha
        if out_step == bytes_of_one:
            result = native.carray(at(out), (count,))
            for j in range(count):
                result[j] = finished(sums[j])
        else:
            for j in range(count):
                one = native.carray(at(out + j * out_step), (1,))
                one[0] = finished(sums[j])

    return finish_row


@lru_cache(maxsize=4)
def finisher(dtype: torch.dtype) -> OnTeam:
    """Returns the kernel for sums of chunks that were stored each by itself; sums are float64 for float64, else float32."""
    wide = dtype == torch.float64
    pointer = float64_at if wide else float32_at
    kind: Any = np.float64 if wide else np.float32
    size = 8 if wide else 4
    finish_row = row_finisher(dtype)

    def work(chunk: int, args: Any) -> None:
        # args: 1-3 addresses of sums, result and self; 4 numbers; 5 alpha and beta
        numbers = native.carray(int64_at(args[4]), (16,))
        rows, columns, planes, plane, each = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
        inner, is_adding = numbers[5], numbers[6]
        before = set_mxcsr(numbers[7])
        total = np.empty(BLOCK, kind)
        for row in range(chunk * each, min(rows, (chunk + 1) * each)):
            for j0 in range(0, columns, BLOCK):
                count = min(BLOCK, columns - j0)
                here = args[1] + (row * columns + j0) * size
                first = native.carray(pointer(here), (planes if rows * columns == 1 else count,))
                for j in range(count):
                    total[j] = first[j]
                if rows * columns == 1:  # the product of two vectors: its chunks stand side by side
                    for p in range(1, planes):
                        total[0] += first[p]
                for p in range(1, planes if rows * columns > 1 else 1):
                    more = native.carray(pointer(here + p * plane), (count,))
                    for j in range(count):
                        total[j] += more[j]
                out = args[2] + row // inner * numbers[8] + row % inner * numbers[9] + j0 * numbers[10]
                s = args[3] + row // inner * numbers[11] + row % inner * numbers[12] + j0 * numbers[13]
                finish_row(total.ctypes.data, out, numbers[10], s, numbers[13], is_adding, args[5], count)
        total[0] = 0  # until here Numba must not free it
        set_mxcsr(before)

    return on_team(work, name=f"finish_product_{dtype}")


def finish(
    sums: Tensor, out: Tensor, s: int, steps: tuple[int, ...], is_adding: int, scale: int, mxcsr: int
) -> None:
    """`out` becomes alpha (sums[0] + sums[1] + ...) + beta self.

    `steps`: bytes of the result and of self from item to item, row to row and column to column of `sums[0]`. `s` and
    `scale` are the addresses of self, and of alpha and beta.
    """
    planes, batch, inner, columns = sums.shape
    rows = batch * inner
    each = max(1, (1 << 14) // (columns * planes))
    plane = rows * columns * sums.element_size()
    numbers = array("q", (rows, columns, planes, plane, each, inner, is_adding, mxcsr, *steps))
    finisher(out.dtype)(-(-rows // each), sums.data_ptr(), out.data_ptr(), s, numbers.buffer_info()[0], scale)
