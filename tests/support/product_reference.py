"""The definition of a product, step by step, in NumPy: what `arithmetic/product` must equal bit for bit."""

from fractions import Fraction

import numpy as np
import torch

CHUNK = 256
SMALLEST = {np.float32: 2.0**-126, np.float64: 2.0**-1022}


def fma32(a, b, c):
    """a b + c of float32, rounded once: the product is exact in float64, and their sum is rounded to odd before the end."""
    with np.errstate(all="ignore"):
        product = a.astype(np.float64) * b.astype(np.float64)
        return sum_to_odd(product, c.astype(np.float64)).astype(np.float32)


def fma64(a, b, c):
    """a b + c of float64, rounded once, far from overflow and underflow (Boldo and Melquiond, IEEE TC 57, 2008)."""
    high, low = two_product(a, b)
    rest, least = two_sum(c, low)
    total, more = two_sum(high, rest)
    return total + sum_to_odd(least, more)


def fma_exact(a, b, c):
    """The same of single finite numbers, by fractions."""
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    return float(exact) if exact else a * b + c


def two_sum(a, b):
    """The rounded sum, and what it lacks."""
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def two_product(a, b):
    """The rounded product, and what it lacks, from halves of 26 bits (Dekker)."""

    def halves(x):
        big = x * 134217729.0
        high = big - (big - x)
        return high, x - high

    product, (a1, a2), (b1, b2) = a * b, halves(a), halves(b)
    return product, a2 * b2 - (((product - a1 * b1) - a2 * b1) - a1 * b2)


def sum_to_odd(a, b):
    """The sum of float64, rounded to the neighbour with an odd last bit where it is not exact."""
    total, rest = two_sum(a, b)
    bits = total.view(np.int64)
    inexact = (rest != 0) & np.isfinite(total) & np.isfinite(rest) & (bits & 1 == 0)
    away = (rest > 0) == (total > 0)
    return np.where(inexact, np.where(away, bits + 1, bits - 1), bits).view(np.float64)


def flushed(x):
    """Denormals become zeros of their sign."""
    return np.where(np.abs(x) < SMALLEST[np.float32], np.copysign(np.float32(0), x), x).astype(np.float32)


def keep(x):
    return x


def chains(a, b, fma, order, flush):
    """The sums of all chunks of two matrices, added in order."""
    (m, k), n = a.shape, b.shape[1]
    total = None
    for begin in range(0, k, CHUNK):
        chain = np.zeros((m, n), a.dtype)
        for i in order(begin, min(k, begin + CHUNK)):
            left, right = (
                np.ascontiguousarray(np.broadcast_to(x, (m, n))) for x in (a[:, i : i + 1], b[i : i + 1])
            )
            chain = flush(fma(left, right, chain))
        with np.errstate(all="ignore"):
            total = chain if total is None else flush(total + chain)
    return total


def odd_first(begin, end):
    """The order within pairs of bfloat16."""
    return [i for pair in range(begin, end, 2) for i in (pair + 1, pair)]


def sums(a, b):
    """The product of two matrices before alpha and beta, in float64 or float32."""
    if a.dtype == torch.float64:
        return chains(a.numpy(), b.numpy(), fma64, range, keep)
    left, right = a.float().numpy(), b.float().numpy()
    if a.dtype != torch.bfloat16:
        return chains(left, right, fma32, range, keep)
    if left.shape[1] % 2:
        left, right = np.pad(left, ((0, 0), (0, 1))), np.pad(right, ((0, 1), (0, 0)))
    return chains(flushed(left), flushed(right), fma32, odd_first, flushed)


def reference(a, b, added=None, alpha=1, beta=1):
    """alpha a b + beta added, with the one NaN for every NaN; 16 bits are rounded before `added` comes."""
    total = sums(a, b)
    kind = total.dtype.type
    flush = flushed if a.dtype == torch.bfloat16 else keep
    with np.errstate(all="ignore"):
        if alpha != 1:
            total = flush(total * kind(alpha))
        if added is not None and beta != 0:
            if a.dtype in (torch.bfloat16, torch.float16):
                total = torch.from_numpy(np.array(total)).to(a.dtype).float().numpy()
            other = flush(added.to(torch.float64 if kind == np.float64 else torch.float32).numpy())
            total = flush(total + (other if beta == 1 else flush(other * kind(beta))))
    result = torch.from_numpy(np.array(total)).to(a.dtype)
    return torch.where(result.isnan(), torch.full_like(result, torch.nan), result)


def bits(x):
    """The bytes of a tensor."""
    return x.contiguous().view(torch.uint8) if x.dim() else x.reshape(1).view(torch.uint8)
