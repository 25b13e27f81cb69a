"""Arithmetic of one rounding, with the same bits in the interpreter and on a GPU."""

import numpy as np
import triton
import triton.language as tl

from samebits.random._triton.interpreted import fill_fused

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
        fill_fused(*(one.reshape(-1) for one in (*given, fused)))
        return tl.tensor(type(like.handle)(fused, like.handle.dtype), like.type)

else:

    @triton.jit
    def fma(a, b, c):
        """a * b + c, rounded once."""
        return tl.fma(a, b, c)


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
