"""Words to uniform and normal numbers, as kernels over rows: row k of `out` is drawn from key k.

The mapping from words is that of torch's CUDA kernels. Uniform numbers have the same bits. Normal numbers are the
same Box-Muller transform of the same uniforms, but evaluated here in double precision by IEEE operations only and
rounded once, where CUDA uses its fast approximations of log, sin and cos (relative error about 2**-21).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types

from samebits.kernels import inlined, instruction, kernel
from samebits.random._philox import block

_0, _1, _2, _32, _52 = (np.uint64(number) for number in (0, 1, 2, 32, 52))
_2_32 = 2.0**-32
_MANTISSA = np.uint64(2**52 - 1)
_SQRT_HALF_BITS = np.uint64(0x3FE6A09E667F3BCD)
_ROUND_BIT = 1.5 * 2.0**52  # adding it rounds to an integer, which then stands in the low bits
_LN2 = math.log(2.0)
# Taylor series: atanh(s) / s in s**2, cos(2 pi r) and sin(2 pi r) / r in r**2; highest term first. The first
# terms left out are below 2**-55 for s <= 0.172 and r <= 1/8.
_ATANH = tuple(1.0 / k for k in range(21, 0, -2))
_COS = tuple((-1) ** k * math.tau ** (2 * k) / math.factorial(2 * k) for k in range(8, -1, -1))
_SIN = tuple((-1) ** k * math.tau ** (2 * k + 1) / math.factorial(2 * k + 1) for k in range(8, -1, -1))


@instruction
def _fma(_context: Any, a: Any, b: Any, c: Any) -> Any:
    """The fused multiply-add: a * b + c, rounded once."""
    return a(a, b, c), lambda _lowering, builder, _signature, arguments: builder.fma(*arguments)


@instruction
def _bits_of(_context: Any, number: Any) -> Any:
    """The bits of a float64."""
    return types.uint64(number), _bitcast(types.uint64)


@instruction
def _from_bits(_context: Any, bits: Any) -> Any:
    """The float64 of these bits."""
    return types.float64(bits), _bitcast(types.float64)


def _bitcast(result: Any) -> Any:
    return lambda lowering, builder, _signature, arguments: builder.bitcast(
        arguments[0], lowering.get_value_type(result)
    )


@inlined
def _log(u: Any) -> Any:
    """Natural logarithm: e ln 2 + 2 atanh((m - 1) / (m + 1)) with u = m 2**e and sqrt(1/2) <= m < sqrt(2)."""
    above = _bits_of(u) - _SQRT_HALF_BITS
    exponent = np.float64(np.int64(above) >> 52)
    m = _from_bits((above & _MANTISSA) + _SQRT_HALF_BITS)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    series = _ATANH[0]
    for k in range(1, 11):
        series = series * z + _ATANH[k]
    return exponent * _LN2 + 2.0 * s * series


@inlined
def _cos_sin(turns: Any) -> Any:
    """The cosine and sine of 2 pi turns: reduced exactly to an eighth of a turn, then rotated by quarters."""
    shifted = 4.0 * turns + _ROUND_BIT
    quarter = _bits_of(shifted)
    r = turns - 0.25 * (shifted - _ROUND_BIT)
    z = r * r
    c = _COS[0]
    s = _SIN[0]
    for k in range(1, 9):
        c = c * z + _COS[k]
        s = s * z + _SIN[k]
    s *= r
    odd = (quarter & _1) != _0
    cos = s if odd else c
    sin = c if odd else s
    cos = -cos if ((quarter + _1) & _2) != _0 else cos
    sin = -sin if (quarter & _2) != _0 else sin
    return cos, sin


@inlined
def _box_muller(u: Any, v: Any) -> Any:
    radius = math.sqrt(-2.0 * _log(u))
    cos, sin = _cos_sin(v)
    return radius * cos, radius * sin


@inlined
def _float32_in_0_1(word: Any) -> Any:
    """The float32 next to (word + 1/2) / 2**32, which is in (0, 1]."""
    rounded = np.float64(np.float32(np.uint32(word)))
    return np.float64(np.float32(rounded * _2_32 + 0.5 * _2_32))


@inlined
def _float64_in_0_1(high: Any, low: Any) -> Any:
    return _fma(np.float64(high), _2_32, _fma(np.float64(low) * _2_32, _2_32, 0.5 * _2_32 * _2_32))


@inlined
def _uniform_32(seed: Any, offset: Any, parameters: Any, out: Any, at: Any) -> None:
    low, span, mask = parameters
    scale = np.float32(1.0) / np.float32(mask + _1)
    w0, w1, w2, w3 = block(seed, offset)
    out[at] = _fma(np.float32(np.int32(w0 & mask)) * scale, span, low)
    out[at + 1] = _fma(np.float32(np.int32(w1 & mask)) * scale, span, low)
    out[at + 2] = _fma(np.float32(np.int32(w2 & mask)) * scale, span, low)
    out[at + 3] = _fma(np.float32(np.int32(w3 & mask)) * scale, span, low)


@inlined
def _uniform_64(seed: Any, offset: Any, parameters: Any, out: Any, at: Any) -> None:
    low, span, mask = parameters
    w0, w1, w2, w3 = block(seed, offset)
    out[at] = _fma(np.float64(((w0 << _32) | w1) & mask) * 2.0**-53, span, low)
    out[at + 1] = _fma(np.float64(((w2 << _32) | w3) & mask) * 2.0**-53, span, low)


@inlined
def _normal_32(seed: Any, offset: Any, parameters: Any, out: Any, at: Any) -> None:
    mean, std, _ = parameters
    w0, w1, w2, w3 = block(seed, offset)
    x0, x1 = _box_muller(_float32_in_0_1(w0), _float32_in_0_1(w1))
    x2, x3 = _box_muller(_float32_in_0_1(w2), _float32_in_0_1(w3))
    out[at] = _fma(np.float32(x0), std, mean)
    out[at + 1] = _fma(np.float32(x1), std, mean)
    out[at + 2] = _fma(np.float32(x2), std, mean)
    out[at + 3] = _fma(np.float32(x3), std, mean)


@inlined
def _normal_64(seed: Any, offset: Any, parameters: Any, out: Any, at: Any) -> None:
    mean, std, _ = parameters
    w0, w1, w2, w3 = block(seed, offset)
    x0, x1 = _box_muller(_float64_in_0_1(w0, w1), _float64_in_0_1(w2, w3))
    out[at] = _fma(x0, std, mean)
    out[at + 1] = _fma(x1, std, mean)


def _rows(draw: Any, dtype: Any, per_block: int) -> Any:
    """A kernel that fills every row of `out` by `draw`, which writes the numbers of one block."""

    def fill(keys: Any, location: Any, scale: Any, mask: Any, out: Any) -> None:
        parameters = (location, scale, mask)
        last = np.empty(per_block, dtype)
        blocks, rest = out.shape[1] // per_block, out.shape[1] % per_block
        for k in range(out.shape[0]):
            seed, offset, row = keys[k, 0], keys[k, 1], out[k]
            for i in range(blocks):
                draw(seed, offset + np.uint64(i), parameters, row, per_block * i)
            if rest > 0:
                draw(seed, offset + np.uint64(blocks), parameters, last, 0)
                for j in range(rest):
                    row[per_block * blocks + j] = last[j]

    name = np.dtype(dtype).name
    fill.__qualname__ = f"fill{draw.py_func.__name__}"
    return kernel(f"void(uint64[:, ::1], {name}, {name}, uint64, {name}[:, ::1])")(fill)


uniform_float32 = _rows(_uniform_32, np.float32, 4)
uniform_float64 = _rows(_uniform_64, np.float64, 2)
normal_float32 = _rows(_normal_32, np.float32, 4)
normal_float64 = _rows(_normal_64, np.float64, 2)
