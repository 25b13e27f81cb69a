"""The last steps of a product that tiles do not take: sums of chunks in order, alpha, beta, one rounding."""

from __future__ import annotations

from array import array
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from samebits import _native as native
from samebits._native import inlined
from samebits._native.float_bits import of_bfloat16, of_float16, to_bfloat16, to_float16
from samebits._native.kernel_threads import OnTeam, float32_at, float64_at, on_team, uint16_at, variants
from samebits.arithmetic.product.instructions import fields_at
from samebits.arithmetic.product.mxcsr import set_mxcsr
from samebits.arithmetic.product.vectors import FLOAT32, NUMBERS, Number


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


def is_made(number: Number, dtype: torch.dtype) -> bool:
    """Returns True if products of such numbers are made of that type: float16 is multiplied as float32."""
    return NUMBERS.get(dtype, FLOAT32) is number


@lru_cache(maxsize=4)
def row_finisher(dtype: torch.dtype) -> Any:
    """Returns the part of kernels that makes a row of the result of a row of sums.

    Its arguments, addresses and bytes from column to column: sums (side by side); result; self; is self
    added; alpha and beta; the number of columns.
    """
    at, bytes_of_one, read, rounded = FORMS[dtype]
    pointer = float64_at if dtype == torch.float64 else float32_at
    finished = _finished(dtype)

    @inlined
    def rounded_and_read(x: Any) -> Any:
        return read(rounded(x))

    in_type = rounded_and_read if bytes_of_one == 2 else _same

    @inlined
    def finish_row(
        t: Any, out: Any, out_step: Any, s: Any, s_step: Any, is_adding: Any, scale: Any, count: Any
    ) -> None:
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


class FinishFields(NamedTuple):
    """The numbers of the last steps, as the kernel reads them."""

    rows: int
    columns: int
    planes: int
    """Sums that are added for each element."""
    plane: int
    """Bytes from one to the next."""
    each: int
    """Rows that a thread takes at a time."""
    inner: int
    """Rows of an item of the batch."""
    adds_self: int
    mxcsr: int
    out_item: int
    """Bytes of the result and of self from item to item, row to row and column to column."""
    out_row: int
    out_column: int
    self_item: int
    self_row: int
    self_column: int


@variants(dtype=FORMS)
def finisher(dtype: torch.dtype) -> OnTeam:
    """Returns the kernel for sums of chunks, stored each by itself, in float64 for float64, else float32."""
    wide = dtype == torch.float64
    pointer = float64_at if wide else float32_at
    kind: Any = np.float64 if wide else np.float32
    size = 8 if wide else 4
    finish_row, read = row_finisher(dtype), fields_at(FinishFields)

    def work(chunk: int, args: Any) -> None:
        # args: 1-3 addresses of sums, result and self; 4 the fields; 5 alpha and beta
        f = read(args[4])
        before = set_mxcsr(f.mxcsr)
        total = np.empty(BLOCK, kind)
        is_one = f.rows * f.columns == 1  # the product of two vectors: its chunks stand side by side
        for row in range(chunk * f.each, min(f.rows, (chunk + 1) * f.each)):
            item, row_of_item = row // f.inner, row % f.inner
            for j0 in range(0, f.columns, BLOCK):
                count = min(BLOCK, f.columns - j0)
                here = args[1] + (row * f.columns + j0) * size
                first = native.carray(pointer(here), (f.planes if is_one else count,))
                for j in range(count):
                    total[j] = first[j]
                if is_one:
                    for p in range(1, f.planes):
                        total[0] += first[p]
                for p in range(1, 1 if is_one else f.planes):
                    more = native.carray(pointer(here + p * f.plane), (count,))
                    for j in range(count):
                        total[j] += more[j]
                out = args[2] + item * f.out_item + row_of_item * f.out_row + j0 * f.out_column
                s = args[3] + item * f.self_item + row_of_item * f.self_row + j0 * f.self_column
                finish_row(
                    native.address_of(total), out, f.out_column, s, f.self_column, f.adds_self, args[5], count
                )
        set_mxcsr(before)

    return on_team(work, name=f"finish_product_{dtype}")


def finish(
    sums: Tensor, out: Tensor, s: int, steps: tuple[int, ...], adds_self: int, scale: int, mxcsr: int
) -> None:
    """`out` becomes alpha (sums[0] + sums[1] + ...) + beta self; see `finish_call`."""
    chunks, fields = finish_work(sums, steps, adds_self, mxcsr)
    finisher(out.dtype)(chunks, sums.data_ptr(), out.data_ptr(), s, fields.buffer_info()[0], scale)


def finish_work(sums: Tensor, steps: tuple[int, ...], adds_self: int, mxcsr: int) -> tuple[int, array[int]]:
    """Returns the number of chunks, and the fields, of a call of `finisher`.

    `steps`: bytes of the result and of self from item to item, row to row and column to column of `sums[0]`.
    """
    planes, batch, inner, columns = sums.shape
    rows = batch * inner
    each = max(1, (1 << 14) // (columns * planes))
    plane = rows * columns * sums.element_size()
    fields = FinishFields(rows, columns, planes, plane, each, inner, adds_self, mxcsr, *steps)
    return -(-rows // each), array("q", fields)
