"""Kernels that apply a formula to each element of dense tensors.

A loop takes as many elements at a time as `_lanes` says, always through the same vector code: what remains at the end is
copied to the stack and back. So an element's bits do not depend on its place, and the operands may be the result.

Elements of bfloat16 and float16 are read as float32, and results rounded to float32 and then once more, to nearest
even. In a wide formula, float32 is read into float64, and the result is rounded to float32 once. A NaN is always the
one quiet NaN with a positive sign and no payload.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from samebits import _native as native
from samebits._native import instruction
from samebits._native.formula import FormulaNumber
from samebits._native.kernel_threads import OnTeam, on_team

CHUNK = 16384
"""Elements of a chunk, the share of work that a thread takes."""
_FIRST = 3
"""Place of the first operand among the arguments, behind the numbers of chunks, of elements and of elements in a chunk."""
_BYTES = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2}


class ElementwiseKernel:
    """A formula over dense operands of one type; called with addresses.

    `inputs` operands are read, each with a step of 1, or of 0 for one value that fills `FILLED` elements; `numbers`
    Python numbers, rounded to float32 unless the operands are float64, follow; the formula returns one number, or a list of `outputs`.
    As many elements are taken at a time as `registers` registers of float64 hold: a long formula, each step of which waits for the one
    before, is faster with 4 (operands of step 0 then have too few elements).
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

        self._run: OnTeam = on_team(part, name=f"{name}_{element}")
        self._pack = struct.Struct(f"{1 + _FIRST + 2 * inputs + outputs}q{numbers}d").pack

    def __call__(self, elements: int, *args: float) -> None:
        """Runs it: the address and step of each input, the address of each output, and the numbers."""
        chunks = -(-elements // CHUNK)
        self._run.run_packed(chunks, self._pack(0, chunks, elements, CHUNK, *args))


FILLED = 16
"""Elements of an operand of step 0: as many as two registers of float64 hold."""


def _loop_of(
    define: Callable[..., Any],
    element: str,
    inputs: int,
    outputs: int,
    numbers: int,
    wide: bool,
    registers: int,
) -> Callable[..., Any]:
    def loop(typing_context: Any, chunk: Any, args: Any) -> Any:
        types = native.types

        def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            pointer = context.make_array(signature.args[1])(context, builder, values[1]).data
            writer = _LoopWriter(builder, element, registers * _lanes(context), wide=wide)
            writer.arguments(pointer, inputs, outputs, numbers)
            writer.write(define, values[0])
            return context.get_dummy_value()

        return types.void(types.int64, args), build

    return loop


def _lanes(context: Any) -> int:
    """Returns the number of float64 in a register."""
    features = context.codegen().magic_tuple()[2]
    return 8 if "+avx512f" in features else 4


class _LoopWriter:
    """Writes the loop as LLVM instructions."""

    def __init__(self, builder: Any, element: str, lanes: int, *, wide: bool) -> None:
        self.builder, self.element, self.lanes, self.wide = builder, element, lanes, wide
        self.int64, self.size = native.ir.IntType(64), _BYTES[element]
        self.storage = self._vector(_storage(element))

    def _vector(self, kind: Any) -> Any:
        return native.ir.VectorType(kind, self.lanes)

    def arguments(self, pointer: Any, inputs: int, outputs: int, numbers: int) -> None:
        """Reads the arguments of the call."""
        builder = self.builder
        count = _FIRST + 2 * inputs + outputs + numbers
        read = [builder.load(builder.gep(pointer, [self.int64(place)])) for place in range(count)]
        self.elements, self.per_chunk = read[1], read[2]
        self.inputs = [(read[_FIRST + 2 * i], read[_FIRST + 2 * i + 1]) for i in range(inputs)]
        self.outputs = read[_FIRST + 2 * inputs :][:outputs]
        self.numbers = [self._spread(bits) for bits in read[_FIRST + 2 * inputs + outputs :]]
        byte = native.ir.IntType(8)
        self.buffers = [
            native.cgutils.alloca_once(builder, native.ir.ArrayType(byte, self.lanes * self.size))
            for _ in range(inputs + outputs)
        ]

    def _spread(self, bits: Any) -> FormulaNumber:
        """Returns a float64 of the caller in all lanes, in the type of the formula."""
        builder = self.builder
        number = builder.bitcast(bits, native.ir.DoubleType())
        if self.element != "float64":
            number = builder.fptrunc(number, native.ir.FloatType())
            if self.wide:
                number = builder.fpext(number, native.ir.DoubleType())
        vector = self._vector(number.type)
        none = native.ir.Constant(vector, native.ir.Undefined)
        first = builder.insert_element(none, number, native.ir.IntType(32)(0))
        mask = native.ir.Constant(self._vector(native.ir.IntType(32)), [0] * self.lanes)
        return FormulaNumber(builder, builder.shuffle_vector(first, none, mask))

    def write(self, define: Callable[..., Any], chunk: Any) -> None:
        """Writes the loop over one chunk."""
        builder, lanes = self.builder, self.int64(self.lanes)
        start = builder.mul(chunk, self.per_chunk)
        stop = builder.add(start, self.per_chunk)
        stop = builder.select(builder.icmp_signed("<", stop, self.elements), stop, self.elements)
        with native.cgutils.for_range_slice(builder, start, stop, lanes, intp=self.int64) as (place, _):
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
            self._store(result.value, builder.select(whole, target, self._address(buffer)))

    def _address(self, buffer: Any) -> Any:
        return self.builder.ptrtoint(buffer, self.int64)

    def _element(self, address: Any, place: Any) -> Any:
        return self.builder.add(address, self.builder.mul(place, self.int64(self.size)))

    def _copy(self, target: Any, source: Any, elements: Any) -> None:
        """Copies elements one by one between two addresses."""
        builder = self.builder
        pointer = native.ir.PointerType(_storage(self.element))
        target, source = builder.inttoptr(target, pointer), builder.inttoptr(source, pointer)
        with native.cgutils.for_range(builder, elements, intp=self.int64) as loop:
            value = builder.load(builder.gep(source, [loop.index]))
            builder.store(value, builder.gep(target, [loop.index]))

    def _load(self, address: Any) -> FormulaNumber:
        builder = self.builder
        pointer = builder.inttoptr(address, native.ir.PointerType(self.storage))
        value = builder.load(pointer, align=self.size)
        if self.element == "bfloat16":
            value = _of_bfloat16(builder, value)
        elif self.element == "float16":
            value = _of_float16(builder, value)
        if self.wide and self.element != "float64":
            value = builder.fpext(value, self._vector(native.ir.DoubleType()))
        return FormulaNumber(builder, value)

    def _store(self, value: Any, address: Any) -> None:
        builder = self.builder
        if self.element != "float64" and isinstance(value.type.element, native.ir.DoubleType):
            value = builder.fptrunc(value, self._vector(native.ir.FloatType()))
        nan = native.ir.Constant(value.type, [value.type.element(float("nan"))] * self.lanes)
        value = builder.select(builder.fcmp_unordered("uno", value, value), nan, value)
        if self.element == "bfloat16":
            value = _to_bfloat16(builder, value)
        elif self.element == "float16":
            value = _to_float16(builder, value)
        builder.store(value, builder.inttoptr(address, native.ir.PointerType(value.type)), align=self.size)


def _storage(element: str) -> Any:
    ir = native.ir
    if element == "float64":
        return ir.DoubleType()
    return ir.FloatType() if element == "float32" else ir.IntType(16)


def _integers(vector: Any, bits: int, number: int) -> Any:
    kind = native.ir.IntType(bits)
    return native.ir.Constant(
        native.ir.VectorType(kind, vector.type.count), [kind(number)] * vector.type.count
    )


def _words(vector: Any, bits: int) -> Any:
    return native.ir.VectorType(native.ir.IntType(bits), vector.type.count)


def _floats(vector: Any) -> Any:
    return native.ir.VectorType(native.ir.FloatType(), vector.type.count)


def _of_bfloat16(builder: Any, words: Any) -> Any:
    wide = builder.zext(words, _words(words, 32))
    return builder.bitcast(builder.shl(wide, _integers(words, 32, 16)), _floats(words))


def _to_bfloat16(builder: Any, value: Any) -> Any:
    def number(n: int) -> Any:
        return _integers(value, 32, n)

    bits = builder.bitcast(value, _words(value, 32))
    odd = builder.and_(builder.lshr(bits, number(16)), number(1))
    rounded = builder.lshr(builder.add(builder.add(bits, odd), number(0x7FFF)), number(16))
    rounded = builder.select(builder.fcmp_unordered("uno", value, value), number(0x7FC0), rounded)
    return builder.trunc(rounded, _words(value, 16))


def _of_float16(builder: Any, words: Any) -> Any:
    """Returns the float32 of a float16: its bits as those of a float32 of a smaller exponent, times 2^112.

    The product is exact, and scales subnormal numbers too; infinities and NaN get the largest exponent.
    """

    def number(n: int) -> Any:
        return _integers(words, 32, n)

    wide = builder.zext(words, _words(words, 32))
    magnitude = builder.shl(builder.and_(wide, number(0x7FFF)), number(13))
    least = native.ir.Constant(_floats(words), [2.0**-24] * words.type.count)
    count = builder.sitofp(builder.and_(wide, number(0x3FF)), _floats(words))
    small = builder.bitcast(builder.fmul(count, least), _words(words, 32))
    normal = builder.add(magnitude, number(0x38000000))
    special = builder.add(magnitude, number(0x70000000))
    bits = builder.select(builder.icmp_unsigned(">=", magnitude, number(0x0F800000)), special, normal)
    bits = builder.select(builder.icmp_unsigned("<", magnitude, number(0x00800000)), small, bits)
    sign = builder.shl(builder.and_(wide, number(0x8000)), number(16))
    return builder.bitcast(builder.or_(bits, sign), _floats(words))


def _to_float16(builder: Any, value: Any) -> Any:
    """Returns the float16 next to a float32; a sum with 1/2 rounds those that become subnormal."""

    def number(n: int) -> Any:
        return _integers(value, 32, n)

    bits = builder.bitcast(value, _words(value, 32))
    magnitude = builder.and_(bits, number(0x7FFFFFFF))
    odd = builder.and_(builder.lshr(magnitude, number(13)), number(1))
    half = builder.add(builder.add(magnitude, number((0x0FFF - 0x38000000) & 0xFFFFFFFF)), odd)
    half = builder.lshr(half, number(13))
    one_half = native.ir.Constant(_floats(value), [0.5] * value.type.count)
    shifted = builder.fadd(builder.bitcast(magnitude, _floats(value)), one_half)
    small = builder.sub(builder.bitcast(shifted, _words(value, 32)), number(0x3F000000))
    half = builder.select(builder.icmp_unsigned("<", magnitude, number(0x38800000)), small, half)
    half = builder.select(builder.icmp_unsigned(">=", magnitude, number(0x47800000)), number(0x7C00), half)
    half = builder.select(builder.icmp_unsigned(">", magnitude, number(0x7F800000)), number(0x7E00), half)
    sign = builder.and_(builder.lshr(bits, number(16)), number(0x8000))
    sign = builder.select(builder.icmp_unsigned(">", magnitude, number(0x7F800000)), number(0), sign)
    return builder.trunc(builder.or_(half, sign), _words(value, 16))
