"""Stochastic rounding as its definition says, in float64: what the kernels are compared with."""

import numpy as np
import torch

import samebits.random as sr

DTYPES = (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)
CODES = {1: torch.uint8, 2: torch.uint16}
DIGITS = {torch.bfloat16: 16}
"""Digits of the random number of an element, where they are not 32."""


def inputs(dtype, count=20_000):
    """float32 of every size and both signs: any bits, and around the subnormal numbers and the largest of a dtype."""
    generator = torch.Generator().manual_seed(1)
    anything = sr.bits(sr.key(11), count).view(torch.float32)
    info = torch.finfo(dtype)
    normal = torch.randn(count, generator=generator)
    small = normal[: count // 4] * info.smallest_normal
    tiny = normal[: count // 4] * info.smallest_normal * info.eps
    large = (1 + torch.rand(count // 4, generator=generator) / 4) * info.max * normal[: count // 4].sign()
    x = torch.cat([anything, normal, small, tiny, large])
    return torch.where(x.isnan(), 1.5, x)


def special():
    """Infinities, NaNs with payloads, zeros and subnormal numbers of float32."""
    words = [0x7F800000, 0x7F800001, 0x7FFFFFFF, 0x7FA50000, 0, 1, 0x7FFFFF, 0x33000001]
    words = torch.tensor(words, dtype=torch.int32)
    return torch.cat([words, words | -0x80000000]).view(torch.float32)


def codes(x):
    """The bits of a tensor, as a NumPy array of int64."""
    return x.contiguous().view(CODES[x.dtype.itemsize]).to(torch.int64).numpy()


def magnitudes(dtype):
    """All finite numbers from 0, in order, and the one that an unbounded exponent would give next."""
    largest = int(codes(torch.tensor([torch.finfo(dtype).max], dtype=dtype))[0])
    finite = torch.arange(largest + 1).to(CODES[dtype.itemsize]).view(dtype).double().numpy()
    return np.append(finite, 2 * finite[-1] - finite[-2])


def chances(x, dtype):
    """Index of the number at or below |x|, and the chance of the next one, as a fraction of 2**32: exact, rounded down."""
    table = magnitudes(dtype)
    size = np.abs(np.asarray(x, dtype=np.float64))
    down = np.minimum(np.searchsorted(table, size, "right") - 1, len(table) - 1)
    step = table[np.minimum(down + 1, len(table) - 1)] - table[down]
    with np.errstate(invalid="ignore"):
        fraction = np.where(step > 0, (size - table[down]) / np.where(step > 0, step, 1), 0)
    return down, np.floor(fraction * 2.0**32).astype(np.int64)


def expected(x, dtype, numbers):
    """Codes that x, float32 and no NaN, becomes by random numbers of 32 digits, int64."""
    down, chance = chances(x, dtype)
    magnitude = down + (numbers + chance >= 2**32)
    if dtype is torch.float8_e4m3fn:  # no infinity
        magnitude = np.minimum(magnitude, 0x7E)
    return magnitude | (np.signbit(x).astype(np.int64) << (8 * dtype.itemsize - 1))


def numbers_of(key, count, dtype):
    """The random numbers that a key's stream has for each element, as of 32 digits."""
    if DIGITS.get(dtype) == 16:
        return sr.bits(key, count, dtype=torch.uint16).to(torch.int64).numpy() << 16
    return sr.bits(key, count).to(torch.int64).numpy()
