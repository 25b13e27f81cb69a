"""The Triton kernels in Triton's interpreter: run by test_triton.py in a process with TRITON_INTERPRET=1.

Interpreter only: NumPy computes here, so this shows that the kernels are right, not that a GPU runs them so.
"""

import os
from fractions import Fraction

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

import samebits.random as sr
from agreement import equal
from random_draws import DRAWS, KEYS, key_of
from samebits._native import kernel
from samebits.random import _device_kernels as device_kernels
from samebits.random._cpu import elementary as cpu
from samebits.random._triton import launchers
from samebits.random._triton.elementary import cos_sin, fma, log, rounded
from samebits.random._triton.philox import block, lanes

assert os.environ.get("TRITON_INTERPRET") == "1" and triton.knobs.runtime.interpret


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("name", DRAWS)
def test_the_kernels_draw_the_bits_of_the_cpu(name, kind, monkeypatch):
    """Every function gives the same bits by the CPU's kernels and by Triton's, with any batch of keys."""
    few = name in {"permutation of 1", "permutation of 40", "permutation of 64"}
    if few and triton.__version__ < "3.7" and np.__version__ >= "2.4":
        pytest.skip("the interpreter of Triton 3.6 cannot count to a number of the program with NumPy 2.4")
    batch, shape = KEYS[kind]
    expected = DRAWS[name](key_of(batch), shape)
    monkeypatch.setattr(device_kernels, "_CPU", launchers(name))
    assert equal(DRAWS[name](key_of(batch), shape), expected)


@pytest.mark.parametrize("name", DRAWS)
def test_every_function_asks_for_a_back_end(name, monkeypatch):
    """Control of the test above: with a back end that has nothing, no function draws."""
    monkeypatch.setattr(device_kernels, "_CPU", object())
    with pytest.raises(AttributeError):
        DRAWS[name](key_of(()), (8,))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_elementary(dtype):
    """Logarithm, cosine and sine have the bits of the CPU, near their corners, too; so have the zeros their signs."""
    edges = np.array([2.0**-33, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0], dtype)
    near = np.concatenate([edges, np.nextafter(edges, dtype(0)), np.nextafter(edges, dtype(2))])
    x = np.concatenate(
        [near, np.random.default_rng(3).random(1024 - near.size).astype(dtype) + dtype(2.0**-40)]
    )
    ours, theirs = np.zeros((2, 3, x.size), dtype)
    _elementary_kernel[(1,)](*map(torch.from_numpy, (x, *ours)), SIZE=x.size)
    _FORMS[dtype](x, *theirs)
    assert equal(torch.from_numpy(ours), torch.from_numpy(theirs))
    assert (ours == 0).any() and np.signbit(ours[ours == 0]).any()  # quarters of a turn


@triton.jit
def _elementary_kernel(x, logarithm, cosine, sine, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    u = tl.load(x + at)
    c, s = cos_sin(u)
    tl.store(logarithm + at, log(u))
    tl.store(cosine + at, c)
    tl.store(sine + at, s)


def _forms(log_, cos_sin_):
    def evaluate(x, logarithm, cosine, sine):
        for i in range(x.size):
            logarithm[i] = log_(x[i])
            cosine[i], sine[i] = cos_sin_(x[i])

    evaluate.__qualname__ = f"evaluate_{log_.function.__name__}"
    real = "float32" if log_ is cpu.log_32 else "float64"
    return kernel(f"void({real}[::1], {real}[::1], {real}[::1], {real}[::1])")(evaluate)


_FORMS = {np.float32: _forms(cpu.log_32, cpu.cos_sin_32), np.float64: _forms(cpu.log_64, cpu.cos_sin_64)}


# What the interpreter does otherwise than a GPU, and what the kernels do about it.


@triton.jit
def _fma_kernel(a, b, c, fused, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(fused + at, fma(tl.load(a + at), tl.load(b + at), tl.load(c + at)))


def close_calls(dtype):
    """a, b, c where the sum cancels, ties, or lies next to a tie that a second rounding would break."""
    generator = np.random.default_rng(1)
    digits = 24 if dtype is np.float32 else 53
    a, b = (1 + generator.integers(0, 2 ** (digits - 1), (2, 2048)) * 2.0 ** (1 - digits)).astype(dtype)
    c = (generator.choice([-1, 1], 2048) * 2.0 ** generator.integers(-2 * digits, 4, 2048)).astype(dtype)
    c[:512] = -(a * b)[:512]
    a[512:1024] = 1 + 2.0 ** (1 - digits) * generator.integers(0, 4, 512)
    b[512:1024] = 1 + 2.0 ** -(digits // 2)
    return a, b, c


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fma_rounds_once(dtype):
    """The kernels' fma is the exact a b + c rounded once; a product and a sum, as in Triton 3.7's interpreter, are not."""
    a, b, c = close_calls(dtype)
    fused = np.zeros(a.size, dtype)
    _fma_kernel[(1,)](*map(torch.from_numpy, (a, b, c, fused)), SIZE=a.size)
    exact = [
        Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)) for x, y, z in zip(a, b, c, strict=True)
    ]
    assert all(is_nearest(x, e) for x, e in zip(fused, exact, strict=True))
    assert not all(is_nearest(x, e) for x, e in zip(a * b + c, exact, strict=True))


def is_nearest(x, exact):
    """Whether x is the number of its dtype nearest to `exact`, the even one of two."""
    error = abs(Fraction(float(x)) - exact)
    for other in (np.nextafter(x, x.dtype.type(-np.inf)), np.nextafter(x, x.dtype.type(np.inf))):
        theirs = abs(Fraction(float(other)) - exact)
        even = int(x.view(f"u{x.itemsize}")) % 2 == 0
        if theirs < error or (theirs == error and not even):
            return False
    return True


@triton.jit
def _cast_kernel(numbers, ours, theirs, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    x = tl.load(numbers + at)
    tl.store(ours + at, rounded(x, ours.dtype.element_ty))
    tl.store(theirs + at, x.to(theirs.dtype.element_ty))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_rounded_to_nearest_even(dtype):
    """The kernels' cast is torch's, from ties, subnormals, infinities and NaN too; the interpreter's to bfloat16 truncates."""
    words = np.random.default_rng(2).integers(0, 2**32, 4096, np.uint32)
    words[:2048] &= np.uint32(0xFFFF8000 if dtype is torch.bfloat16 else 0xFFFFF000)  # ties
    words[:4] = [0x7F800000, 0xFF800000, 0x7FC00001, 1]
    numbers = torch.from_numpy(words.view(np.float32))
    ours, theirs = torch.zeros(2, 4096, dtype=dtype)
    _cast_kernel[(1,)](numbers, ours, theirs, SIZE=4096)
    known = ~numbers.isnan()
    expected = numbers.to(dtype)
    assert torch.equal(ours[known], expected[known]) and ours[~known].isnan().all()
    assert torch.equal(theirs[known], expected[known]) == (dtype is torch.float16)


@triton.jit
def _few_rounds(keys, out, rows: tl.uint64, per_row: tl.uint64, N: tl.constexpr, BLOCKS: tl.constexpr):
    seed, offset, place, inside = lanes(keys, rows, per_row, 4, BLOCKS, True)
    zero = tl.zeros(offset.shape, tl.uint32)
    w0, w1, w2, w3 = block(seed, offset, zero, zero, N)
    tl.store(out + 4 * tl.arange(0, BLOCKS), w0)


@pytest.mark.parametrize("rounds", [10, 9])
def test_nine_rounds_differ(rounds):
    """Negative control: the comparison with the CPU sees one round less."""
    key, out = sr.key(3), torch.zeros(1024, dtype=torch.uint32)
    _few_rounds[(1,)](key, out, 1, 1024, N=rounds, BLOCKS=256)
    assert torch.equal(out[::4], sr.bits(key, 1024)[::4]) == (rounds == 10)
