"""Arithmetic of one rounding, with the same bits in the interpreter and on a GPU."""

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
_SPLITTER = tl.constexpr(2.0**27 + 1.0)


@triton.jit
def fma(a, b, c):
    """a * b + c, rounded once: the GPU's instruction, emulated where the interpreter would round the product too."""
    if not INTERPRETED:
        return tl.fma(a, b, c)
    elif c.dtype == tl.float32:
        # The product of two float32 is exact in float64, and odd rounding of the sum makes the second rounding safe.
        total, error = _two_sum(a.to(tl.float64) * b.to(tl.float64), c.to(tl.float64))
        return _to_odd(total, error).to(tl.float32)
    else:
        return _fma_float64(a, b, c)


@triton.jit
def _fma_float64(a, b, c):
    """Boldo and Melquiond, Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd (2008)."""
    product = a * b
    a_high, a_low = _halves(a)
    b_high, b_low = _halves(b)
    rest = a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)
    partial, lowest = _two_sum(c, rest)
    total, middle = _two_sum(product, partial)
    small, error = _two_sum(lowest, middle)
    return total + _to_odd(small, error)


@triton.jit
def _halves(a):
    """Veltkamp's split of a float64 into two of 26 bits."""
    shifted = a * _SPLITTER
    high = shifted - (shifted - a)
    return high, a - high


@triton.jit
def _two_sum(a, b):
    """Knuth's exact sum: the rounded one and its error."""
    total = a + b
    b_part = total - a
    return total, (a - (total - b_part)) + (b - b_part)


@triton.jit
def _to_odd(total, error):
    """total + error rounded to odd: an inexact result is the neighbour whose last bit is set."""
    bits = total.to(tl.int64, bitcast=True)
    step = tl.where((error > 0) == (total > 0), 1, -1)
    inexact_and_even = (error != 0) & ((bits & 1) == 0)
    return tl.where(inexact_and_even, bits + step, bits).to(tl.float64, bitcast=True)


@triton.jit
def rounded(numbers, DTYPE: tl.constexpr):
    """float32 or float64 as DTYPE, to nearest even; to bfloat16 in integers, as the interpreter's own cast truncates."""
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
