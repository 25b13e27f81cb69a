"""Elements in memory and the numbers that kernels compute with, as the CPU's `elementwise_kernel` has them."""

import triton
import triton.language as tl

from samebits.random._triton.elementary import rounded, widened

_SIGN = tl.constexpr(0x8000000000000000)
_SIZE = tl.constexpr(0x7FFFFFFFFFFFFFFF)


@triton.jit
def read(address, inside, DTYPE: tl.constexpr):
    """The numbers at addresses, 0 outside, in a type that holds them: an exact conversion."""
    return widened(tl.load(address, mask=inside, other=0)).to(DTYPE)


@triton.jit
def write(address, x, inside):
    """Rounds to float32 and then to the element's type, to nearest even; a NaN becomes the one quiet NaN."""
    DTYPE: tl.constexpr = address.dtype.element_ty
    if DTYPE == tl.float64:
        nan = tl.full(x.shape, 0x7FF8000000000000, tl.uint64).to(tl.float64, bitcast=True)
        tl.store(address, tl.where(x == x, x, nan), mask=inside)
    else:
        single = x.to(tl.float32)
        nan = tl.full(x.shape, 0x7FC00000, tl.uint32).to(tl.float32, bitcast=True)
        single = tl.where(single == single, single, nan)
        if DTYPE == tl.float16:
            # a GPU's conversion makes 0x7FFF of a NaN
            half = single.to(tl.float16)
            nan = tl.full(x.shape, 0x7E00, tl.uint16).to(tl.float16, bitcast=True)
            tl.store(address, tl.where(half == half, half, nan), mask=inside)
        else:
            tl.store(address, rounded(single, DTYPE), mask=inside)


@triton.jit
def magnitude(x):
    """The numbers without their signs."""
    if x.dtype == tl.float64:
        return (x.to(tl.uint64, bitcast=True) & _SIZE).to(tl.float64, bitcast=True)
    else:
        return (x.to(tl.uint32, bitcast=True) & 0x7FFFFFFF).to(tl.float32, bitcast=True)


@triton.jit
def with_sign_of(x, y):
    """The numbers x with the signs of y."""
    if x.dtype == tl.float64:
        bits = (x.to(tl.uint64, bitcast=True) & _SIZE) | (y.to(tl.uint64, bitcast=True) & _SIGN)
        return bits.to(tl.float64, bitcast=True)
    else:
        bits = (x.to(tl.uint32, bitcast=True) & 0x7FFFFFFF) | (y.to(tl.uint32, bitcast=True) & 0x80000000)
        return bits.to(tl.float32, bitcast=True)


@triton.jit
def row_of(x, first, ROWS: tl.constexpr):
    """The row of a table for numbers that are integers, the first row having the number `first`; row 0 for others."""
    index = x.to(tl.int64) - first
    return tl.where((index >= 0) & (index < ROWS), index, 0)
