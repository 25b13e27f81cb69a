"""Vectors of the CPU that kernels are compiled for, as instructions: loads, stores, masks and chains.

The width follows the CPU (`SAMEBITS_CPU_NAME` can name another kind): 512 bits
with AVX-512, else 256. Which lanes compute an output is no part of a result's definition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from samebits import _native as native
from samebits._native.formula import FormulaNumber, one_nan
from samebits._native.vector_writer import VectorWriter, features


@dataclass(frozen=True)
class Number:
    """The numbers that a kernel multiplies, and its vectors of them."""

    name: str
    """`float32`, `float64`, or `bfloat16`: pairs of them in 32 bits, which are multiplied into float32."""

    @property
    def size(self) -> int:
        """Bytes of an element of a factor (of a pair)."""
        return 8 if self.name == "float64" else 4

    @property
    def lanes(self) -> int:
        """Elements of a vector."""
        return (64 if "avx512f" in features() else 32) // self.size

    @property
    def sums(self) -> torch.dtype:
        """The type of sums of products."""
        return torch.float64 if self.name == "float64" else torch.float32

    @property
    def masks(self) -> bool:
        """Returns True if the CPU has registers for masks (AVX-512)."""
        return "avx512f" in features()


FLOAT32, FLOAT64, BFLOAT16 = Number("float32"), Number("float64"), Number("bfloat16")
NUMBERS = {torch.float32: FLOAT32, torch.float64: FLOAT64, torch.bfloat16: BFLOAT16}


def copied(number: Number) -> Number:
    """Returns the number whose kernels copy elements of this size."""
    return FLOAT64 if number is FLOAT64 else FLOAT32


class Emitter(VectorWriter):
    """Instructions about vectors of one kind of number, in some registers each, put at `builder`."""

    def __init__(self, builder: Any, number: Number, registers: int = 1) -> None:
        ir = native.ir
        super().__init__(builder, registers * number.lanes)
        self.number = number
        self.word = self.i64 if number.size == 8 else self.i32
        """An integer of an element's size."""
        self.scalar = ir.DoubleType() if number.size == 8 else ir.FloatType()
        self.vector = self.vector_of(self.scalar)
        self.words = self.vector_of(self.word)

    def at(self, pointer: Any, offset: Any, kind: Any) -> Any:
        """A pointer to a kind of element, some bytes further on."""
        if isinstance(offset, int):
            offset = self.i64(offset)
        return self.builder.bitcast(self.builder.gep(pointer, [offset]), kind.as_pointer())

    def constant(self, word: int) -> Any:
        """A vector whose elements have the bits of an integer."""
        return self.filled(self.word, word)

    def opaque(self, value: Any) -> Any:
        """The same integer, about which the compiler knows nothing more at this place."""
        kind = native.ir.FunctionType(value.type, [value.type])
        return self.builder.asm(kind, "", "=r,0", [value], side_effect=True)

    def zero(self) -> Any:
        """A vector of zeros."""
        return self.filled(self.scalar, 0.0)

    def mask(self, count: Any, first: int = 0) -> Any:
        """Says which lanes stand for one of the elements below `count`; lane 0 is element `first`.

        One bit for each lane where the CPU has registers for them, else a word of ones or zeros.
        """
        rest = self.builder.sub(count, self.i64(first))
        rest = self.builder.select(self.builder.icmp_signed("<", rest, self.i64(0)), self.i64(0), rest)
        bits = self.first_lanes(rest, self.word)
        return bits if self.number.masks else self.builder.sext(bits, self.words)

    def column_masks(self, count: Any, vectors: int) -> list[Any]:
        """The masks of some vectors side by side, for elements below `count`."""
        return [self.mask(count, j * self.lanes) for j in range(vectors)]

    def load(self, pointer: Any, offset: Any, mask: Any = None, missing: int = 0) -> Any:
        """Loads a vector; lanes that the mask leaves out become the number with the bits `missing`."""
        other = self.builder.bitcast(self.constant(missing), self.vector) if missing else None
        return self.read(self.at(pointer, offset, self.i8), self.scalar, self.number.size, mask, other)

    def store(self, value: Any, pointer: Any, offset: Any, mask: Any = None) -> None:
        """Stores a vector, or those lanes that the mask has."""
        self.write(value, self.at(pointer, offset, self.i8), self.number.size, mask)

    def prefetch(self, pointer: Any, offset: Any) -> None:
        """Fetches a line of memory that will be written."""
        place = self.at(pointer, offset, self.i8)
        self.call("llvm.prefetch.p0", native.ir.VoidType(), place, self.i32(1), self.i32(3), self.i32(1))

    def broadcast(self, pointer: Any, offset: Any) -> Any:
        """The element at a place, in every lane."""
        return self.splat(self.builder.load(self.at(pointer, offset, self.scalar), align=1))

    def chained(self, left: Any, right: Any, total: Any) -> Any:
        """The next link of a chain: left times right plus total, rounded once; two of bfloat16 pairs."""
        if self.number.name != "bfloat16":
            return self.fused(left, right, total)
        left, right = self.builder.bitcast(left, self.words), self.builder.bitcast(right, self.words)
        if "avx512bf16" in features():
            short = native.ir.VectorType(native.ir.IntType(16), 2 * self.lanes)
            return self._pairs(total, left, right, short)
        for part in (self._odd, self._even):
            total = self.fused(part(left), part(right), total)
        return total

    def _odd(self, pair: Any) -> Any:
        return self.builder.bitcast(self.builder.and_(pair, self.constant(0xFFFF0000)), self.vector)

    def _even(self, pair: Any) -> Any:
        return self.builder.bitcast(self.builder.shl(pair, self.constant(16)), self.vector)

    def _pairs(self, total: Any, left: Any, right: Any, short: Any) -> Any:
        left, right = self.builder.bitcast(left, short), self.builder.bitcast(right, short)
        return self.call("llvm.x86.avx512bf16.dpbf16ps.512", self.vector, total, left, right)

    def plain(self, value: Any) -> Any:
        """The vector, with the one quiet NaN for every NaN."""
        return one_nan(FormulaNumber(self.builder, value)).value
