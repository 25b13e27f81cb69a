"""Numbers as bits in kernels: 16 bits are those of torch."""

import numpy as np
import torch

from samebits._native import kernel
from samebits._native.float_bits import (
    bits_32,
    bits_64,
    from_bits_32,
    from_bits_64,
    of_bfloat16,
    of_float16,
    to_bfloat16,
    to_float16,
)


@kernel("void(float32[::1], uint16[::1], uint16[::1])")
def to_halves(x, float16, bfloat16):
    for i in range(x.size):
        float16[i] = to_float16(x[i])
        bfloat16[i] = to_bfloat16(x[i])


@kernel("void(uint16[::1], float32[::1], float32[::1])")
def widened(words, float16, bfloat16):
    for i in range(words.size):
        float16[i] = of_float16(words[i])
        bfloat16[i] = of_bfloat16(words[i])


def test_conversions_are_torchs():
    """float16 and bfloat16 of numbers in all binades and at all ties, and every number of 16 bits widened, are torch's."""
    words, wide = torch.arange(-(2**15), 2**15).to(torch.int16), np.empty((2, 2**16), np.float32)
    widened(words.view(torch.uint16).numpy(), *wide)
    for dtype, found in zip((torch.float16, torch.bfloat16), torch.from_numpy(wide), strict=True):
        every = words.view(dtype)
        numbers = ~every.isnan()
        assert torch.equal(found[numbers].view(torch.int32), every.float()[numbers].view(torch.int32))
    every = words.view(torch.float16)
    bits = torch.cat([torch.arange(-(2**31), 2**31, 14593).int(), every.float().view(torch.int32)])
    ties = bits & ~0xFFFF | 0x8000
    x = torch.cat([bits, ties, ties + 1, ties - 1, bits & ~0x1FFF | 0x1000]).view(torch.float32)
    halves = {dtype: torch.empty(x.numel(), dtype=dtype) for dtype in (torch.float16, torch.bfloat16)}
    to_halves(x.numpy(), *(half.view(torch.uint16).numpy() for half in halves.values()))
    for dtype, half in halves.items():
        true = x.to(dtype)
        assert torch.equal(half.isnan(), true.isnan())
        assert torch.equal(half[~true.isnan()].view(torch.int16), true[~true.isnan()].view(torch.int16))


@kernel("UniTuple(uint64, 2)(float64, float64)")
def words_of(x, y):
    return bits_64(x), np.uint64(bits_32(np.float32(y)))


@kernel("UniTuple(float64, 2)(uint64, int64)")
def numbers_of(x, y):
    return from_bits_64(x), np.float64(from_bits_32(np.int32(y)))


def test_bits_are_ieees():
    """A number's bits are those of NumPy, and the number of these bits is that number, signs of zeros too."""
    for number in (0.0, -0.0, 1.5, -3.0, 2.0**-149, 3e38, float("inf")):
        wide, narrow = np.float64(number).view(np.uint64), np.float32(number).view(np.uint32)
        assert words_of(number, number) == (
            int(wide),
            int(narrow) if narrow < 2**31 else int(narrow) + 0xFFFFFFFF00000000,
        )
        assert [np.float64(one).view(np.uint64) for one in numbers_of(int(wide), int(narrow))] == [
            wide,
            np.float64(np.float32(number)).view(np.uint64),
        ]
