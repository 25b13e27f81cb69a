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
from samebits._native.float_bits import SIZE, narrowed, stored, widened
from samebits._native.kernel_threads import OnTeam, float32_at, float64_at, on_team, variants
from samebits._native.vector_writer import VectorWriter, features
from samebits.arithmetic.product.instructions import fields_at, procedure
from samebits.arithmetic.product.mxcsr import set_mxcsr
from samebits.arithmetic.product.records import ADDED, FACTORS, C
from samebits.arithmetic.product.vectors import FLOAT32, NUMBERS, Emitter, Number

RESULTS = {getattr(torch, name): name for name in SIZE}
"""The types of results, and their names in memory."""
BLOCK = 512
"""Elements of a row that are finished together."""
REGISTERS = 2
"""Vectors of sums that are finished together, as each step waits for the one before."""


def is_made(number: Number, dtype: torch.dtype, **_: int) -> bool:
    """Returns True if products of such numbers are made of that type: float16 is multiplied as float32."""
    return _number(dtype) is number


def _number(dtype: torch.dtype) -> Number:
    return NUMBERS.get(dtype, FLOAT32)


@lru_cache(maxsize=4)
def row_finisher(dtype: torch.dtype) -> Any:
    """Returns the instruction that makes a row of the result of a row of sums, to the end of their vectors.

    Its arguments, addresses and bytes from column to column: sums (side by side); result; self; is self
    added; alpha and beta; the number of columns. If self is added, alpha times the sum is rounded to the
    result's type before.
    """
    number, memory = _number(dtype), RESULTS[dtype]

    def finish_row(
        emit: Emitter, t: Any, out: Any, out_step: Any, s: Any, s_step: Any, adds: Any, scale: Any, count: Any
    ) -> None:
        builder, factors = emit.builder, emit.pointer(scale)
        alpha, beta = (emit.broadcast(factors, place * number.size) for place in range(2))
        total = native.llvm.local(builder, alpha.type)
        with native.llvm.for_range(builder, count, step=emit.i64(emit.lanes)) as first:
            row = _PartOfRow(emit, memory, first, count)
            sums = emit.pointer(builder.add(t, builder.mul(first, emit.i64(number.size))))
            scaled = builder.fmul(emit.read(sums, emit.scalar, number.size), alpha)
            builder.store(scaled, total)
            with builder.if_then(builder.icmp_signed("!=", adds, emit.i64(0))):
                own = widened(builder, memory, row.read(s, s_step))
                rounded = widened(builder, memory, narrowed(builder, memory, scaled))
                builder.store(builder.fadd(rounded, builder.fmul(beta, own)), total)
            value = builder.load(total)
            if memory != "bfloat16":  # its NaN is that one
                value = emit.plain(value)
            row.write(narrowed(builder, memory, value), out, out_step)

    return procedure(number, finish_row, registers=REGISTERS)


@lru_cache(maxsize=4)
def row_maker(dtype: torch.dtype) -> Any:
    """Returns the part of kernels that makes `count` elements of a result of those of a row of sums.

    `args`: the kernel's; `f`: its records; `item`, `row` and `column`: of the first element.
    """
    finish_row = row_finisher(dtype)

    @inlined
    def make_row(args: Any, f: Any, item: Any, row: Any, column: Any, sums: Any, count: Any) -> None:
        out = args[C] + item * f.out_item + row * f.out_row + column * f.out_column
        own = args[ADDED] + item * f.added_item + row * f.added_row + column * f.added_column
        finish_row(sums, out, f.out_column, own, f.added_column, f.adds_self, args[FACTORS], count)

    return make_row


class _PartOfRow:
    """The elements of a row from `first` on that fit a vector, in memory side by side or steps apart.

    Those that are apart are copied one by one; so are some at the row's end, on a CPU without masks for them.
    """

    def __init__(self, writer: VectorWriter, memory: str, first: Any, count: Any) -> None:
        builder, lanes = writer.builder, writer.i64(writer.lanes)
        self._writer, self._builder, self._first = writer, builder, first
        self._kind, self._size = stored(memory), SIZE[memory]
        left = builder.sub(count, first)
        self._is_whole = builder.icmp_signed(">=", left, lanes)
        self._count = builder.select(self._is_whole, lanes, left)
        self._mask = writer.first_lanes(left) if "avx512bw" in features() else None

    def read(self, row: Any, step: Any) -> Any:
        """The vector of elements of a row at an address; one number for the whole row is copied once."""
        writer, builder, zero = self._writer, self._builder, self._writer.i64(0)
        begin, buffer, is_apart = self._begin(row, step), self._buffer(), self._is_apart(step)
        is_new = builder.or_(
            builder.icmp_signed("!=", step, zero), builder.icmp_signed("==", self._first, zero)
        )
        with builder.if_then(builder.and_(is_apart, is_new)):
            self._copy(buffer, writer.i64(self._size), begin, step)
        place = writer.pointer(builder.select(is_apart, buffer, begin))
        return writer.read(place, self._kind, self._size, self._mask)

    def write(self, value: Any, row: Any, step: Any) -> None:
        """Writes the vector to elements of a row at an address."""
        writer, begin = self._writer, self._begin(row, step)
        with self._builder.if_else(self._is_apart(step)) as (apart, side_by_side):
            with apart:
                buffer = self._buffer()
                writer.write(value, writer.pointer(buffer), self._size)
                self._copy(begin, step, buffer, writer.i64(self._size))
            with side_by_side:
                writer.write(value, writer.pointer(begin), self._size, self._mask)

    def _begin(self, row: Any, step: Any) -> Any:
        return self._builder.add(row, self._builder.mul(step, self._first))

    def _buffer(self) -> Any:
        place = native.llvm.local(self._builder, self._writer.vector_of(self._kind))
        return self._builder.ptrtoint(place, self._writer.i64)

    def _is_apart(self, step: Any) -> Any:
        is_apart = self._builder.icmp_signed("!=", step, self._writer.i64(self._size))
        return is_apart if self._mask else self._builder.or_(is_apart, self._builder.not_(self._is_whole))

    def _copy(self, target: Any, target_step: Any, source: Any, source_step: Any) -> None:
        builder, pointer = self._builder, self._kind.as_pointer()
        with native.llvm.for_range(builder, self._count) as index:
            there, here = (
                builder.inttoptr(builder.add(begin, builder.mul(step, index)), pointer)
                for begin, step in ((target, target_step), (source, source_step))
            )
            builder.store(builder.load(here, align=1), there, align=1)


def add_row(dtype: torch.dtype) -> Any:
    """Returns the instruction that adds a row of sums to a row of sums; its arguments: both, the columns."""
    number = _number(dtype)

    def add(emit: Emitter, total: Any, more: Any, count: Any) -> None:
        builder, place, term = emit.builder, emit.pointer(total), emit.pointer(more)
        with native.llvm.for_range(builder, count, step=emit.i64(emit.lanes)) as first:
            offset, mask = builder.mul(first, emit.i64(number.size)), emit.mask(builder.sub(count, first))
            emit.store(builder.fadd(emit.load(place, offset), emit.load(term, offset, mask)), place, offset)

    return procedure(number, add)


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


@variants(dtype=RESULTS)
def finisher(dtype: torch.dtype) -> OnTeam:
    """Returns the kernel for sums of chunks, stored each by itself, in float64 for float64, else float32."""
    wide = dtype == torch.float64
    pointer = float64_at if wide else float32_at
    kind: Any = np.float64 if wide else np.float32
    size = 8 if wide else 4
    finish_row, add, read = row_finisher(dtype), add_row(dtype), fields_at(FinishFields)

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
                    add(native.address_of(total), here + p * f.plane, count)
                out = args[2] + item * f.out_item + row_of_item * f.out_row + j0 * f.out_column
                s = args[3] + item * f.self_item + row_of_item * f.self_row + j0 * f.self_column
                finish_row(
                    native.address_of(total), out, f.out_column, s, f.self_column, f.adds_self, args[5], count
                )
        set_mxcsr(before)

    return on_team(work, name=f"finish_product_{dtype}", is_vectorized=True)


def finish(
    sums: Tensor, out: Tensor, s: int, steps: tuple[int, ...], adds_self: int, scale: int, mxcsr: int
) -> None:
    """`out` becomes alpha (sums[0] + sums[1] + ...) + beta self; see `finish_work`."""
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
