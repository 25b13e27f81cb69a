"""float16 and bfloat16 in kernels, as the uint16 of their bits: rounded once, to nearest even, as in IEEE 754.

Integer operations replace the instructions of some CPUs, for which the compiler would insert calls on the others.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from samebits._native import inlined
from samebits.random._cpu.log_sin_cos import bits_32, from_bits_32

_HALF, _LEAST_16 = np.float32(0.5), np.float32(2.0**-24)


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
