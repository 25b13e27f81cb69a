"""Scalar floating point in kernels: the fused multiply-add, numbers as their bits, and float16 and bfloat16 as uint16.

Rounding to 16 bits is to nearest even, once, as in IEEE 754. Integer operations replace the instructions of some CPUs,
for which the compiler would insert calls on the others.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from samebits import _native as native
from samebits._native import inlined, instruction

_HALF, _LEAST_16 = np.float32(0.5), np.float32(2.0**-24)


def _bitcast(result: Any) -> Any:
    return lambda lowering, builder, _signature, arguments: builder.bitcast(
        arguments[0], lowering.get_value_type(result)
    )


@instruction
def fma(_context: Any, a: Any, b: Any, c: Any) -> Any:
    """Returns the fused multiply-add: a * b + c, rounded once."""
    return a(a, b, c), lambda _lowering, builder, _signature, arguments: builder.fma(*arguments)


@instruction
def bits_64(_context: Any, number: Any) -> Any:
    """Returns the bits of a float64, as uint64."""
    return native.types.uint64(number), _bitcast(native.types.uint64)


@instruction
def from_bits_64(_context: Any, bits: Any) -> Any:
    """Returns the float64 of these bits."""
    return native.types.float64(bits), _bitcast(native.types.float64)


@instruction
def bits_32(_context: Any, number: Any) -> Any:
    """Returns the bits of a float32, as int32."""
    return native.types.int32(number), _bitcast(native.types.int32)


@instruction
def from_bits_32(_context: Any, bits: Any) -> Any:
    """Returns the float32 of these bits, an int32."""
    return native.types.float32(bits), _bitcast(native.types.float32)


@inlined
def to_bfloat16(x: Any) -> Any:
    """Returns the bfloat16 next to a float32."""
    b = np.uint32(bits_32(x))
    rounded = np.uint32(np.uint32(b + np.uint32((b >> 16) & 1)) + np.uint32(0x7FFF)) >> 16
    return np.uint16(rounded if x == x else 0x7FC0)  # noqa: PLR0124 (not a number)


@inlined
def to_float16(x: Any) -> Any:
    """Returns the float16 next to a float32; a sum with 1/2 rounds those that become subnormal."""
    b = bits_32(x)
    a = np.int32(b & 0x7FFFFFFF)
    half = np.int32(np.int32(a + np.int32(0x0FFF - 0x38000000)) + np.int32((a >> 13) & 1)) >> 13
    half = np.int32(half) if a >= 0x38800000 else np.int32(bits_32(from_bits_32(a) + _HALF) - 0x3F000000)
    half = half if a < 0x47800000 else np.int32(0x7C00)
    half = half if a <= 0x7F800000 else np.int32(0x7E00)
    return np.uint16(half | ((b >> 16) & 0x8000))


@inlined
def of_float16(word: Any) -> Any:
    """Returns the float32 with the value of a float16."""
    a = np.int32(np.int32(word & 0x7FFF) << 13)
    exponent = a & 0x0F800000
    b = np.int32(a + 0x38000000) if exponent != 0x0F800000 else np.int32(a + 0x70000000)
    magnitude = from_bits_32(b) if exponent != 0 else np.float32(np.int32(word & 0x3FF)) * _LEAST_16
    return from_bits_32(np.int32(bits_32(magnitude) | np.int32(np.int32(word & 0x8000) << 16)))
