"""Exponential, Gumbel and truncated normal numbers: the Triton form of `samebits.random._cpu.transformed_kernels`, which explains them."""

import triton
import triton.language as tl

from samebits.random._cpu import transformed_kernels as cpu
from samebits.random._triton.kernels.arithmetic import rounded
from samebits.random._triton.kernels.elementary import constants, divided, log, negated, polynomial, sqrt
from samebits.random._triton.kernels.fill import float32_in_0_1, float64_in_0_1, scalar
from samebits.random._triton.kernels.philox import in_order_2, in_order_4, lanes, main_block

_A, _B, _C = constants(cpu._A[::-1]), constants(cpu._B[::-1]), constants(cpu._C[::-1])
_D, _E, _F = constants(cpu._D[::-1]), constants(cpu._E[::-1]), constants(cpu._F[::-1])
_LOG_MILLS = constants(cpu._LOG_MILLS[::-1])
_ONES = tl.constexpr(0xFFFFFFFF)  # the interpreter has no ~ of unsigned words


@triton.jit(do_not_specialize=["rows"])
def transformed_32(
    keys, out, rows: tl.uint64, per_row: tl.uint64,
    p0: tl.float64, p1: tl.float64, p2: tl.float64, p3: tl.float64, p4: tl.float64, p5: tl.float64, p6: tl.float64,
    NAME: tl.constexpr, WIDE: tl.constexpr, BLOCKS: tl.constexpr, ONE_KEY: tl.constexpr,
):  # fmt: skip
    """A number of each word, computed in float64 if WIDE; to float32, float16 or bfloat16."""
    seed, offset, place, inside = lanes(keys, rows, per_row, 4, BLOCKS, ONE_KEY)
    w0, w1, w2, w3 = main_block(seed, offset)
    word = in_order_4(w0, w1, w2, w3)
    if WIDE:
        u, complement = _float64_of(word), _float64_of(word ^ _ONES)
    else:
        u, complement = float32_in_0_1(word), float32_in_0_1(word ^ _ONES)
    x = _number(u, complement, p0, p1, p2, p3, p4, p5, p6, NAME).to(tl.float32)
    tl.store(out + place, rounded(x, out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def transformed_64(
    keys, out, rows: tl.uint64, per_row: tl.uint64,
    p0: tl.float64, p1: tl.float64, p2: tl.float64, p3: tl.float64, p4: tl.float64, p5: tl.float64, p6: tl.float64,
    NAME: tl.constexpr, BLOCKS: tl.constexpr, ONE_KEY: tl.constexpr,
):  # fmt: skip
    """A number of each two words; to float64."""
    seed, offset, place, inside = lanes(keys, rows, per_row, 2, BLOCKS, ONE_KEY)
    w0, w1, w2, w3 = main_block(seed, offset)
    high, low = in_order_2(w0, w2), in_order_2(w1, w3)
    u, complement = float64_in_0_1(high, low), float64_in_0_1(high ^ _ONES, low ^ _ONES)
    tl.store(out + place, _number(u, complement, p0, p1, p2, p3, p4, p5, p6, NAME), mask=inside)


@triton.jit
def _float64_of(word):
    """(word + 1/2) / 2**32, exactly."""
    return (word.to(tl.float64) + 0.5) * 2.0**-32


@triton.jit
def _number(u, complement, p0, p1, p2, p3, p4, p5, p6, NAME: tl.constexpr):
    if NAME == "exponential":
        return divided(_minus_log(u, complement), scalar(p0, u.dtype))
    elif NAME == "gumbel":
        return scalar(p0, u.dtype) - scalar(p1, u.dtype) * log(_minus_log(u, complement))
    elif NAME == "truncated":
        below, above, within = scalar(p0, tl.float64), scalar(p1, tl.float64), scalar(p2, tl.float64)
        z = _normal_quantile(below + u * within, above + complement * within)
        return _bounded(scalar(p3, tl.float64) + scalar(p4, tl.float64) * z, p5, p6)
    else:
        tl.static_assert(NAME == "far_tail")
        std = scalar(p4, tl.float64)
        below, above = tl.where(std > 0.0, u, complement), tl.where(std > 0.0, complement, u)
        start, beyond, within = scalar(p0, tl.float64), scalar(p1, tl.float64), scalar(p2, tl.float64)
        return _bounded(scalar(p3, tl.float64) + std * _far_tail(below, above, start, beyond, within), p5, p6)


@triton.jit
def _bounded(x, low, high):
    low, high = scalar(low, tl.float64), scalar(high, tl.float64)
    x = tl.where(low > x, low, x)
    return tl.where(high < x, high, x)


@triton.jit
def _minus_log(u, complement):
    return tl.where(u >= 0.5, complement - (1.0 - u), 0.0) - log(u)


@triton.jit
def _normal_quantile(below, above):
    left = below < above
    tail = tl.where(left, below, above)
    middle = 0.5 - tail
    r = 0.180625 - middle * middle
    inner = middle * polynomial(r, _A) / polynomial(r, _B)
    r = sqrt(-log(tail))
    near, far = r - 1.6, r - 5.0
    outer = polynomial(near, _C) / polynomial(near, _D)
    outer = tl.where(near <= 3.4, outer, polynomial(far, _E) / polynomial(far, _F))
    size = tl.where(middle <= 0.425, inner, outer)
    return tl.where(left, negated(size), size)


@triton.jit
def _log_mills_rest(w):
    return polynomial(w, _LOG_MILLS) * w


@triton.jit
def _far_tail(u, complement, a, beyond, within):
    t = _minus_log(beyond + complement * within, u * within)
    inverse = 1.0 / a
    at_a = _log_mills_rest(inverse * inverse)
    d = tl.zeros(u.shape, tl.float64)
    relative = tl.zeros(u.shape, tl.float64)
    for _ in tl.static_range(6):
        shrunk = 1.0 / (1.0 + relative)
        x_inverse = inverse * shrunk
        log_ratio = _minus_log(shrunk, relative * shrunk)
        half = (t - log_ratio + (_log_mills_rest(x_inverse * x_inverse) - at_a)) * inverse
        d = 2.0 * half / (1.0 + sqrt(1.0 + 2.0 * half * inverse))
        relative = d * inverse
    return d
