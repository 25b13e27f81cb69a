"""Kernels that apply a formula to each element of dense tensors.

A loop takes as many elements at a time as `registers` says, always through the same vector code: the rest at
the end is copied to the stack and back. So an element's bits do not depend on its place, and the operands may
be the result.

Elements of bfloat16 and float16 are read as float32, and results rounded to float32 and then once more, to
nearest even. In a wide formula, float32 is read into float64, and the result is rounded to float32 once. A
NaN is always the one quiet NaN with a positive sign and no payload.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import torch

from samebits import _native as native
from samebits._native import instruction
from samebits._native.float_bits import SIZE, narrowed, stored, widened
from samebits._native.formula import FormulaNumber, one_nan
from samebits._native.kernel_rounds import Call
from samebits._native.kernel_threads import OnTeam, on_team
from samebits._native.vector_writer import VectorWriter, element_of, features

CHUNK = 16384
"""Elements of a chunk, the share of work that a thread takes."""
_FIRST = 3
"""The first operand's place among the arguments, behind the numbers of chunks, elements, and per chunk."""


class ElementwiseKernel:
    """A formula over dense operands of one type; called with addresses.

    `inputs` operands are read, each with a step of 1, or of 0 for one value that fills `FILLED` elements;
    `numbers` Python numbers, rounded to float32 unless the operands are float64, follow; the formula returns
    one number, or a list of `outputs`. As many elements are taken at a time as `registers` registers of
    float64 hold, at most 8: a long formula, each step of which waits for the one before, is faster with more.
    """

    __slots__ = ("_pack", "_run", "define", "wide")

    def __init__(
        self,
        define: Callable[..., Any],
        element: str,
        name: str,
        *,
        inputs: int,
        outputs: int = 1,
        numbers: int = 0,
        wide: bool = True,
        registers: int = 2,
    ) -> None:
        self.define, self.wide = define, wide
        loop = instruction(_loop_of(define, element, inputs, outputs, numbers, wide, registers))

        def part(chunk: int, args: Any) -> None:
            loop(chunk, args)

        self._run: OnTeam = on_team(part, name=f"{name}_{element}", is_vectorized=True)
        self._pack = struct.Struct(f"{1 + _FIRST + 2 * inputs + outputs}q{numbers}d").pack

    def __call__(self, elements: int, *args: float) -> None:
        """Runs it: the address and step of each input, the address of each output, and the numbers."""
        chunks = -(-elements // CHUNK)
        self._run.run_packed(chunks, self._pack(0, chunks, elements, CHUNK, *args))

    def call(self, elements: int, inputs: Sequence[Moved], outputs: Sequence[Moved]) -> Call:
        """Returns the call for `run_rounds` on dense operands, of a formula without `numbers`."""
        shared = -(-elements // torch.get_num_threads())
        each = -(-max(shared, _SHORTEST) // FILLED) * FILLED
        places = [*(one for place in inputs for one in (place, (1, 0))), *outputs]
        args, moves = zip(*((elements, 0), (each, 0), *places), strict=True)
        return Call(self._run, -(-elements // each), args, moves)


Moved = tuple[int, int]
"""An address, and by how many bytes it moves on from round to round."""
_SHORTEST = 1024
"""Elements that are worth another thread, where the threads are awake."""
FILLED = 64
"""Elements of an operand of step 0: as many as eight registers of float64 hold."""


def _loop_of(
    define: Callable[..., Any],
    element: str,
    inputs: int,
    outputs: int,
    numbers: int,
    wide: bool,
    registers: int,
) -> Callable[..., Any]:
    def loop(chunk: Any, args: Any) -> Any:
        types = native.types

        def build(builder: Any, *arguments: Any) -> Any:
            lanes = registers * (8 if "avx512f" in features() else 4)  # of float64
            writer = _LoopWriter(VectorWriter(builder, lanes), element, wide=wide)
            writer.arguments(arguments[1], inputs, outputs, numbers)
            writer.write(define, arguments[0])
            return None

        return types.void(types.int64, args), build

    return loop


class _LoopWriter:
    """Writes the loop over one chunk as LLVM instructions, with as many lanes as `writer` has."""

    def __init__(self, writer: VectorWriter, element: str, *, wide: bool) -> None:
        self.writer, self.builder = writer, writer.builder
        self.element, self.wide = element, wide
        self.storage, self.size = stored(element), SIZE[element]

    def arguments(self, pointer: Any, inputs: int, outputs: int, numbers: int) -> None:
        """Reads the arguments of the call."""
        writer = self.writer
        count = _FIRST + 2 * inputs + outputs + numbers
        read = [writer.builder.load(writer.builder.gep(pointer, [writer.i64(i)])) for i in range(count)]
        self.elements, self.per_chunk = read[1], read[2]
        self.inputs = [(read[_FIRST + 2 * i], read[_FIRST + 2 * i + 1]) for i in range(inputs)]
        self.outputs = read[_FIRST + 2 * inputs :][:outputs]
        self.numbers = [self._number(bits) for bits in read[_FIRST + 2 * inputs + outputs :]]
        tail = native.ir.ArrayType(writer.i8, writer.lanes * self.size)
        self.buffers = [native.llvm.local(writer.builder, tail) for _ in range(inputs + outputs)]

    def _number(self, bits: Any) -> FormulaNumber:
        """Returns a float64 of the caller in all lanes, in the type of the formula."""
        number = FormulaNumber(self.builder, self.builder.bitcast(bits, native.ir.DoubleType()))
        if self.element != "float64":
            number = number.in_float32() if self.wide else number.as_float32()
        return FormulaNumber(self.builder, self.writer.splat(number.value))

    def write(self, define: Callable[..., Any], chunk: Any) -> None:
        """Writes the loop over one chunk."""
        builder, lanes = self.builder, self.writer.i64(self.writer.lanes)
        start = builder.mul(chunk, self.per_chunk)
        stop = builder.add(start, self.per_chunk)
        stop = builder.select(builder.icmp_signed("<", stop, self.elements), stop, self.elements)
        with native.llvm.for_range(builder, stop, start=start, step=lanes) as place:
            left = builder.sub(stop, place)
            whole = builder.icmp_signed(">=", left, lanes)
            with builder.if_then(builder.not_(whole), likely=False):
                for buffer, (address, step) in zip(self.buffers, self.inputs, strict=False):
                    self._copy(self._address(buffer), self._element(address, builder.mul(place, step)), left)
            self._write_vector(define, place, whole)
            with builder.if_then(builder.not_(whole), likely=False):
                for buffer, address in zip(self.buffers[len(self.inputs) :], self.outputs, strict=True):
                    self._copy(self._element(address, place), self._address(buffer), left)

    def _write_vector(self, define: Callable[..., Any], place: Any, whole: Any) -> None:
        builder = self.builder
        operands = []
        for buffer, (address, step) in zip(self.buffers, self.inputs, strict=False):
            source = self._element(address, builder.mul(place, step))
            operands.append(self._load(builder.select(whole, source, self._address(buffer))))
        results = define(*operands, *self.numbers)
        results = [results] if isinstance(results, FormulaNumber) else results
        for buffer, address, result in zip(
            self.buffers[len(self.inputs) :], self.outputs, results, strict=True
        ):
            target = self._element(address, place)
            self._store(result, builder.select(whole, target, self._address(buffer)))

    def _address(self, buffer: Any) -> Any:
        return self.builder.ptrtoint(buffer, self.writer.i64)

    def _element(self, address: Any, place: Any) -> Any:
        return self.builder.add(address, self.builder.mul(place, self.writer.i64(self.size)))

    def _copy(self, target: Any, source: Any, elements: Any) -> None:
        """Copies elements one by one between two addresses."""
        builder = self.builder
        pointer = native.ir.PointerType(self.storage)
        target, source = builder.inttoptr(target, pointer), builder.inttoptr(source, pointer)
        with native.llvm.for_range(builder, elements) as index:
            value = builder.load(builder.gep(source, [index]))
            builder.store(value, builder.gep(target, [index]))

    def _load(self, address: Any) -> FormulaNumber:
        builder = self.builder
        value = self.writer.read(self.writer.pointer(address), self.storage, self.size)
        number = FormulaNumber(builder, widened(builder, self.element, value))
        return number.as_float64() if self.wide and self.element != "float64" else number

    def _store(self, result: FormulaNumber, address: Any) -> None:
        builder = self.builder
        if self.element != "float64" and isinstance(element_of(result.value.type), native.ir.DoubleType):
            result = result.as_float32()
        value = narrowed(builder, self.element, one_nan(result).value)
        self.writer.write(value, self.writer.pointer(address), self.size)
