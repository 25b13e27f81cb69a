"""Numbers as their bits in kernels, float16 and bfloat16 as 16 bits, and in memory.

Rounding to 16 bits is to nearest even, once, as in IEEE 754. Integer operations replace the instructions of
some CPUs, for which the compiler would insert calls on the others. The four rules are over the numbers of
`formula`, a scalar or a vector; kernels call the instructions made of them with scalars.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from samebits import _native as native
from samebits._native.formula import Bits, FormulaNumber, where
from samebits._native.lazy_kernel import Part, instruction
from samebits._native.vector_writer import element_of, features, like


def _with_type(name: str) -> Part:
    """Returns the instruction for the number of that type with the same bits."""

    @instruction
    def number(given: Any) -> Any:
        kind = getattr(native.types, name)
        return kind(given), lambda builder, value: builder.bitcast(value, kind.llvm)

    return number


bits_64, from_bits_64 = _with_type("uint64"), _with_type("float64")
bits_32, from_bits_32 = _with_type("int32"), _with_type("float32")


def bfloat16_bits(x: FormulaNumber) -> Bits:
    """Returns the bits of the bfloat16 next to a float32, as 32 bits; every NaN is 0x7FC0."""
    bits = x.bits()
    return where(x.equals(x), (bits + ((bits >> 16) & 1) + 0x7FFF) >> 16, 0x7FC0)


def number_of_bfloat16(bits: Bits) -> FormulaNumber:
    """Returns the float32 with the value of a bfloat16, given as 32 bits."""
    return (bits << 16).number()


def float16_bits(x: FormulaNumber) -> Bits:
    """Returns the bits of the float16 next to a float32, as 32 bits; a NaN keeps its sign only.

    A sum with 1/2 rounds those that become subnormal.
    """
    bits = x.bits()
    magnitude = bits & 0x7FFFFFFF
    normal = (magnitude + (0x0FFF - 0x38000000) + ((magnitude >> 13) & 1)) >> 13
    half = where(magnitude < 0x38800000, (magnitude.number() + 0.5).bits() - 0x3F000000, normal)
    half = where(magnitude < 0x47800000, half, 0x7C00)
    half = where(magnitude > 0x7F800000, 0x7E00, half)
    return half | ((bits >> 16) & 0x8000)


def number_of_float16(bits: Bits) -> FormulaNumber:
    """Returns the float32 with the value of a float16, given as 32 bits."""
    magnitude = (bits & 0x7FFF) << 13
    normal, special = magnitude + 0x38000000, magnitude + 0x70000000
    subnormal = ((bits & 0x3FF).converted() * 2.0**-24).bits()
    wide = where(magnitude < 0x0F800000, normal, special)
    wide = where(magnitude < 0x00800000, subnormal, wide)
    return (wide | ((bits & 0x8000) << 16)).number()


COMPUTED = {"float32": "float32", "float64": "float64", "bfloat16": "float32", "float16": "float32"}
"""The types of elements in memory, and the type in which they are computed with."""
SIZE = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2}
"""Bytes of an element in memory."""


def stored(memory: str) -> Any:
    """Returns LLVM's type of an element in memory."""
    ir = native.ir
    return {"float32": ir.FloatType(), "float64": ir.DoubleType()}.get(memory) or ir.IntType(16)


def widened(builder: Any, memory: str, value: Any) -> Any:
    """Returns an element in memory, or a vector of them, in the type of `COMPUTED`: exact."""
    if SIZE[memory] > 2:
        return value
    if memory == "float16" and "f16c" in features():
        half = builder.bitcast(value, like(value.type, native.ir.HalfType()))
        return builder.fpext(half, like(value.type, native.ir.FloatType()))
    bits = Bits(builder, builder.zext(value, like(value.type, native.ir.IntType(32))))
    return (number_of_bfloat16 if memory == "bfloat16" else number_of_float16)(bits).value


def narrowed(builder: Any, memory: str, value: Any) -> Any:
    """Returns numbers as elements in memory; a float64 is rounded to float32 first, if they are smaller.

    A CPU's instruction for float16 takes a third of the time; a NaN then keeps bits of its payload.
    """
    if memory != "float64" and isinstance(element_of(value.type), native.ir.DoubleType):
        value = builder.fptrunc(value, like(value.type, native.ir.FloatType()))
    if SIZE[memory] > 2:
        return value
    if memory == "float16" and "f16c" in features():
        half = builder.fptrunc(value, like(value.type, native.ir.HalfType()))
        return builder.bitcast(half, like(value.type, native.ir.IntType(16)))
    bits = (bfloat16_bits if memory == "bfloat16" else float16_bits)(FormulaNumber(builder, value)).value
    return builder.trunc(bits, like(bits.type, native.ir.IntType(16)))


def in_bfloat16(x: FormulaNumber) -> FormulaNumber:
    """Returns a float64 rounded to float32 and then to bfloat16, as a float64."""
    return number_of_bfloat16(bfloat16_bits(x.as_float32())).as_float64()


def _rounding(rule: Callable[[FormulaNumber], Bits]) -> Part:
    """Returns the instruction for the 16 bits, as uint16, of a float32."""

    @instruction
    def rounded(_number: Any) -> Any:
        def build(builder: Any, *arguments: Any) -> Any:
            bits = rule(FormulaNumber(builder, arguments[0])).value
            return builder.trunc(bits, native.ir.IntType(16))

        return native.types.uint16(native.types.float32), build

    return rounded


def _widening(rule: Callable[[Bits], FormulaNumber]) -> Part:
    """Returns the instruction for the float32 of 16 bits, a uint16."""

    @instruction
    def number(_word: Any) -> Any:
        def build(builder: Any, *arguments: Any) -> Any:
            return rule(Bits(builder, builder.zext(arguments[0], native.ir.IntType(32)))).value

        return native.types.float32(native.types.uint16), build

    return number


to_bfloat16, of_bfloat16 = _rounding(bfloat16_bits), _widening(number_of_bfloat16)
to_float16, of_float16 = _rounding(float16_bits), _widening(number_of_float16)
