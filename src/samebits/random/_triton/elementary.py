"""Arithmetic and elementary functions with the same bits in Triton's interpreter and on a GPU."""

from typing import Any

import numpy as np
import triton
import triton.language as tl

from samebits._native import kernel, vectors
from samebits.random._cpu import elementary as cpu

_fma = vectors.fma


def _fused(a: Any, b: Any, c: Any, out: Any) -> None:
    for i in range(out.size):
        out[i] = _fma(a[i], b[i], c[i])


FILL_FUSED = {
    name: kernel(f"void({', '.join([f'{name}[::1]'] * 4)})")(_fused) for name in ("float32", "float64")
}
"""Writes a b + c, rounded once, by the CPU's own instruction, which Triton's interpreter lacks."""

INTERPRETED = triton.knobs.runtime.interpret

if INTERPRETED:
    # NumPy, which computes in the interpreter, has no such operation: the CPU's own instruction.

    def fma(a, b, c):
        """a * b + c, rounded once."""
        like = a * b + c
        given = [
            np.ascontiguousarray(np.broadcast_to(one.handle.data, like.handle.data.shape))
            for one in (a, b, c)
        ]
        fused = np.empty_like(like.handle.data)
        FILL_FUSED[fused.dtype.name](*(one.reshape(-1) for one in (*given, fused)))
        return tl.tensor(type(like.handle)(fused, like.handle.dtype), like.type)

else:

    @triton.jit
    def fma(a, b, c):
        """a * b + c, rounded once."""
        return tl.fma(a, b, c)


@triton.jit
def rounded(numbers, DTYPE: tl.constexpr):
    """float32 or float64 as DTYPE, to nearest even; bfloat16 by integers: the interpreter truncates."""
    if DTYPE == tl.bfloat16:
        bits = numbers.to(tl.uint32, bitcast=True)
        half = tl.add((bits >> 16) & 1, 0x7FFF, sanitize_overflow=False)
        upper = tl.add(bits, half, sanitize_overflow=False) >> 16
        return tl.where(numbers == numbers, upper, 0x7FC0).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        return numbers.to(DTYPE)


@triton.jit
def widened(numbers):
    """Half precision as float32; from bfloat16 by its bits, which is exact and all that a GPU does, too."""
    if numbers.dtype == tl.bfloat16:
        return (numbers.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    elif numbers.dtype == tl.float16:
        return numbers.to(tl.float32)
    else:
        return numbers


# Logarithm, cosine, sine and the normal transform: the Triton forms of `samebits.random._cpu.elementary`.
#
# The coefficients are that module's own, and so is every operation and its order. A GPU has three ways to
# leave IEEE arithmetic, and each is closed: contraction to fused multiply-adds (`enable_fp_fusion=False` at
# the launch), float32 division by an approximate reciprocal (`div_rn`), and an approximate float32 square
# root (`sqrt_rn`). Triton's float64 division and square root are always rounded to nearest.


def constant(number):
    """A number that kernels may name."""
    return tl.constexpr(float(number))


def constants(numbers):
    """As `constant`, of several."""
    return tl.constexpr(tuple(float(number) for number in numbers))


_ATANH, _COS_64, _SIN_64 = constants(cpu._ATANH), constants(cpu._COS), constants(cpu._SIN)
_LOG_32, _COS_32, _SIN_32 = constants(cpu.LOG_32), constants(cpu.COS_32), constants(cpu.SIN_32)
_LN2_64, _ROUND_BIT_64 = constant(cpu._LN2), constant(cpu._ROUND_BIT)
_LN2_HIGH_32, _LN2_LOW_32 = constant(cpu.LN2_HIGH_32), constant(cpu.LN2_LOW_32)
_ROUND_BIT_32 = constant(cpu.ROUND_BIT_32)
_MANTISSA_64, _SQRT_HALF_64 = tl.constexpr(int(cpu._MANTISSA)), tl.constexpr(int(cpu._SQRT_HALF_BITS))
_MANTISSA_32, _SQRT_HALF_32 = tl.constexpr(int(cpu.MANTISSA_32)), tl.constexpr(int(cpu.SQRT_HALF_BITS_32))


@triton.constexpr_function
def _number_of(constants):
    return len(constants)


@triton.jit
def polynomial(x, C: tl.constexpr):
    """Horner's scheme, the coefficient of the highest power first, in the dtype of x."""
    y = tl.full(x.shape, C[0], x.dtype)
    for k in tl.static_range(1, _number_of(C)):
        y = y * x + C[k]
    return y


@triton.jit
def log(u):
    """The natural logarithm of normal positive numbers."""
    if u.dtype == tl.float64:
        return _log_64(u)
    else:
        return _log_32(u)


@triton.jit
def _log_64(u):
    above = u.to(tl.int64, bitcast=True) - _SQRT_HALF_64
    exponent = (above >> 52).to(tl.float64)
    m = ((above & _MANTISSA_64) + _SQRT_HALF_64).to(tl.float64, bitcast=True)
    s = (m - 1.0) / (m + 1.0)
    return exponent * _LN2_64 + 2.0 * s * polynomial(s * s, _ATANH)


@triton.jit
def _log_32(u):
    above = u.to(tl.int32, bitcast=True) - _SQRT_HALF_32
    exponent = (above >> 23).to(tl.float32)
    f = ((above & _MANTISSA_32) + _SQRT_HALF_32).to(tl.float32, bitcast=True) - 1.0
    z = f * f
    rest = (polynomial(f, _LOG_32) * f) * z + exponent * _LN2_LOW_32 - 0.5 * z
    return (f + rest) + exponent * _LN2_HIGH_32


@triton.jit
def cos_sin(turns):
    """The cosine and sine of 2 pi turns."""
    if turns.dtype == tl.float64:
        shifted = 4.0 * turns + _ROUND_BIT_64
        quarter = shifted.to(tl.int64, bitcast=True).to(tl.int32)
        r = turns - 0.25 * (shifted - _ROUND_BIT_64)
        c = polynomial(r * r, _COS_64)
        s = polynomial(r * r, _SIN_64) * r
    else:
        shifted = 4.0 * turns + _ROUND_BIT_32
        quarter = shifted.to(tl.int32, bitcast=True)
        r = turns - 0.25 * (shifted - _ROUND_BIT_32)
        c = polynomial(r * r, _COS_32)
        s = polynomial(r * r, _SIN_32) * r
    odd = (quarter & 1) != 0
    cos = tl.where(odd, s, c)
    sin = tl.where(odd, c, s)
    return tl.where(((quarter + 1) & 2) != 0, negated(cos), cos), tl.where(
        (quarter & 2) != 0, negated(sin), sin
    )


@triton.jit
def negated(x):
    """-x by its bit: Triton's own minus is 0 - x, which makes 0 of 0 where the CPU makes -0."""
    if x.dtype == tl.float64:
        return (x.to(tl.uint64, bitcast=True) ^ 0x8000000000000000).to(tl.float64, bitcast=True)
    else:
        return (x.to(tl.uint32, bitcast=True) ^ 0x80000000).to(tl.float32, bitcast=True)


@triton.jit
def sqrt(x):
    """The square root, rounded to nearest."""
    if x.dtype == tl.float64:
        return tl.sqrt(x)
    else:
        return tl.sqrt_rn(x)


@triton.jit
def divided(x, y):
    """x / y, rounded to nearest."""
    if x.dtype == tl.float64:
        return x / y
    else:
        return tl.div_rn(x, y)


@triton.jit
def box_muller(u, v):
    """Two independent standard normal numbers from uniforms 0 < u, v <= 1."""
    radius = sqrt(-2.0 * log(u))
    cos, sin = cos_sin(v)
    return radius * cos, radius * sin
