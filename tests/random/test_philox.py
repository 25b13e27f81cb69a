"""The cipher, keys, and the numbers made of their words."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import samebits.random as sr
from samebits._native import kernel
from samebits.errors import InvalidArgumentError, UnimplementedError
from samebits.random import _int_keys as int_keys
from samebits.random import _keys as keys
from samebits.random._cpu import philox as _philox
from samebits.random._device_kernels import kernels

UINT64 = st.integers(0, 2**64 - 1)

# Random123, tests/kat_vectors, the lines "philox4x32 10": counter, key, output.
KNOWN_ANSWERS = [
    "00000000 00000000 00000000 00000000 00000000 00000000 6627e8d5 e169c58d bc57ac4c 9b00dbd8",
    "ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff 408f276d 41c83b0e a20bc7c6 6d5451fd",
    "243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0 d16cfe09 94fdcceb 5001e420 24126ea1",
]


def philox(counter, key, rounds=10):
    """The paper's definition in Python integers: the plain reference of the kernels."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(rounds):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 % 2**32, (p0 >> 32) ^ c3 ^ k1, p0 % 2**32
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return c0, c1, c2, c3


def stream(seed, offset, number, rounds=10):
    """The first `number` words of a key."""
    out = []
    for block in range(-(-number // 4)):
        at = (offset + block) % 2**64
        out += philox((at % 2**32, at >> 32, 0, 0), (seed % 2**32, seed >> 32), rounds)
    return np.array(out[:number], np.uint64)


cipher = kernel("UniTuple(uint64, 4)(uint64, uint64, uint64, uint64, uint64, uint64)")(
    _philox.philox4x32.function
)


@pytest.mark.parametrize("line", KNOWN_ANSWERS)
def test_known_answers(line):
    """The kernel gives the known answers of Random123; nine rounds do not."""
    given_, expected = (
        [int(word, 16) for word in line.split()[:6]],
        tuple(int(w, 16) for w in line.split()[6:]),
    )
    assert cipher(*given_) == expected
    assert philox(given_[:4], given_[4:]) == expected
    assert philox(given_[:4], given_[4:], rounds=9) != expected


@settings(derandomize=True, deadline=None)
@given(UINT64, UINT64, st.integers(0, 23))
def test_words_are_the_reference(seed, offset, number):
    """The words of any key are those of the paper's definition, over the wrap of the offset too."""
    out = np.empty(number, np.uint32)
    _philox.fill_words(seed, offset, out)
    assert (out == stream(seed, offset, number)).all()


@settings(derandomize=True, deadline=None)
@given(UINT64, UINT64, st.one_of(st.integers(-(2**63), 2**64 - 1), st.text(max_size=5)))
def test_fold_is_fold_in(seed, offset, data):
    """`words.fold` and the tensor form give the same key, and it is made of the words of block `data`."""
    folded = int_keys.fold((seed, offset), data)
    assert int_keys.from_tensor(sr.fold_in(int_keys.to_tensor((seed, offset)), data)) == folded
    number = data % 2**64 if isinstance(data, int) else int_keys.as_uint64(data)
    w = [int(word) for word in stream(seed, (offset + number) % 2**64, 4)]
    assert folded == (w[0] | w[1] << 32, w[2] | w[3] << 32)


def test_fold_in_is_an_element_of_split():
    """fold_in(key, d) is split(key, d + 1)[d], for batches of keys too; the parts of a path are folded in turn."""
    batch = sr.split(sr.key(3), 6).view(2, 3, 2)
    for several in (sr.key(3), batch, batch.transpose(0, 1)):
        assert torch.equal(sr.fold_in(several, 4), sr.split(several, 5)[4])
    assert torch.equal(sr.fold_in(sr.key(3), ("a", 1)), sr.fold_in(sr.fold_in(sr.key(3), "a"), 1))
    assert int_keys.fold(int_keys.root(3), "a", 1) == int_keys.from_tensor(sr.fold_in(sr.key(3), ("a", 1)))


def test_paths_are_no_sums():
    """Different paths give different keys, also where adding their parts would not (negative control: the sums)."""
    paths = [(a, b) for a in range(100) for b in range(100)]
    assert len({int_keys.fold((5, 0), *path) for path in paths}) == len(paths)
    assert len({int_keys.fold((5, 0), sum(path)) for path in paths}) < len(paths)


@pytest.mark.parametrize(
    ("dtype", "digits"), [(torch.float32, 24), (torch.float16, 11), (torch.bfloat16, 8), (torch.float64, 53)]
)
def test_uniform_is_torchs_mapping(dtype, digits):
    """A uniform number is the low `digits` bits of its word, scaled: the mapping of torch's CUDA kernel."""
    drawn = sr.uniform(sr.key(11), 1003, dtype=dtype).double().numpy()
    w = stream(11, 0, 2006)
    w = (w[0::2] << np.uint64(32) | w[1::2])[:1003] if digits == 53 else w[:1003]
    assert (drawn == (w & np.uint64(2**digits - 1)).astype(np.float64) * 2.0**-digits).all()
    assert drawn.min() >= 0 and drawn.max() < 1


def test_uniform_is_scaled_with_one_rounding():
    """x (high - low) + low is rounded once, in float32; rounding the product too gives other bits."""
    x = sr.uniform(sr.key(1), 10_000).double()
    low, span = np.float32(-1.3), np.float32(np.float32(2.6) - np.float32(-1.3))
    scaled = sr.uniform(sr.key(1), 10_000, low=-1.3, high=2.6)
    fused = (x * float(span) + float(low)).float()  # the product is exact in float64
    assert torch.equal(scaled, fused)
    assert not torch.equal(scaled, x.float() * float(span) + float(low))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_normal_is_an_accurate_box_muller(dtype):
    """Normal numbers are the Box-Muller transform of torch's uniforms to within an ulp or a few (float64)."""
    drawn = sr.normal(sr.key(4), 4000, dtype=dtype).double().numpy()
    w = stream(4, 0, 8000)[: 8000 if dtype is torch.float64 else 4000].astype(np.float64)
    if dtype is torch.float64:
        u = w[0::4] * 2.0**-32 + (w[1::4] + 0.5) * 2.0**-64
        v = w[2::4] * 2.0**-32 + (w[3::4] + 0.5) * 2.0**-64
    else:
        u, v = (
            (w[i::2].astype(np.float32).astype(float) * 2.0**-32 + 2.0**-33).astype(np.float32)
            for i in (0, 1)
        )
        u, v = u.astype(float), v.astype(float)
    radius = np.sqrt(-2 * np.log(u))
    exact = np.stack([radius * np.cos(math.tau * v), radius * np.sin(math.tau * v)], 1).reshape(-1)
    tolerance = 2e-15 if dtype is torch.float64 else 2.0**-22
    assert np.abs(drawn - exact).max() <= tolerance * 4
    assert np.isfinite(drawn).all()


def test_moments():
    """Mean, variance, skewness and kurtosis of 4 million draws are those of the distribution (5 sigma)."""
    n = 4_000_000
    x = sr.uniform(sr.key(5), n).double()
    z = sr.normal(sr.key(6), n).double()
    assert abs(x.mean() - 0.5) < 5 / math.sqrt(12 * n) and abs((x**2).mean() - 1 / 3) < 5 * 0.3 / math.sqrt(n)
    for power, moment, sigma in (
        (1, 0, 1),
        (2, 1, math.sqrt(2)),
        (3, 0, math.sqrt(15)),
        (4, 3, math.sqrt(96)),
    ):
        assert abs((z**power).mean() - moment) < 5 * sigma / math.sqrt(n), power
    assert abs((z[:-1] * z[1:]).mean()) < 5 / math.sqrt(n)


def test_batched_keys_are_single_keys():
    """Each key of a batch draws what it draws alone; broadcast sizes repeat it; trailing ones are one stream."""
    keys = sr.split(sr.key(8), 6).view(2, 3, 2)
    drawn = sr.normal(keys.unsqueeze(-2), 2, 3, 7)
    for a in range(2):
        for b in range(3):
            assert torch.equal(drawn[a, b], sr.normal(keys[a, b], 7))
    assert torch.equal(sr.uniform(keys[:1], 2, 3), sr.uniform(keys[0], 3).expand(2, 3))
    assert torch.equal(sr.uniform(keys[:, :1], 2, 3)[1], sr.uniform(keys[1, 0], 3))
    assert torch.equal(
        sr.bits(keys[0, :, None], 3, 5, dtype=torch.uint8)[1], sr.bits(keys[0, 1], 5, dtype=torch.uint8)
    )
    with pytest.raises(InvalidArgumentError, match="does not broadcast"):
        sr.uniform(keys, 2, 4)


def test_bits_are_the_bytes_of_the_stream():
    """Every integer dtype reads the same little-endian bytes, and float bits stay out."""
    raw = stream(9, 0, 12).astype("<u4").tobytes()
    for dtype in (torch.uint8, torch.int16, torch.uint32, torch.int64, torch.uint64):
        drawn = sr.bits(sr.key(9), 5, dtype=dtype)
        assert drawn.dtype is dtype and drawn.numpy().tobytes() == raw[: 5 * dtype.itemsize]
    assert sr.bits(sr.key(9), (2, 3)).shape == (2, 3) and sr.bits(sr.key(9)).shape == ()
    with pytest.raises(InvalidArgumentError, match="integer dtype"):
        sr.bits(sr.key(9), 5, dtype=torch.float32)


def test_a_longer_draw_begins_with_the_shorter():
    """Draw n is a prefix of draw m > n for one key, for every length around a block."""
    longest = {f: f(sr.key(2), 41, dtype=torch.float64) for f in (sr.uniform, sr.normal)}
    for draw, full in longest.items():
        for n in range(41):
            assert torch.equal(draw(sr.key(2), n, dtype=torch.float64), full[:n])
    assert torch.equal(sr.normal(sr.key(2), 41)[:10], sr.normal(sr.key(2), 10))


def test_wrong_arguments_are_named():
    """A wrong key, dtype, range or part of a path raises an error that says what it takes."""
    key = sr.key(1)
    for call, named in (
        (lambda: sr.uniform(1, 3), "takes a key tensor"),
        (lambda: sr.uniform(torch.zeros(2), 3), "uint64 tensor of shape"),
        (lambda: sr.uniform(key, 3, dtype=torch.int32), "dtype must be"),
        (lambda: sr.uniform(key, 3, low=2, high=1), "low must not be above high"),
        (lambda: sr.normal(key, 3, std=-1), "std must not be negative"),
        (lambda: sr.normal(key, -3), "no negative sizes"),
        (lambda: sr.split(key, 0), "num must be positive"),
        (lambda: sr.fold_in(key, 1.5), "fold in an int or a str"),
        (lambda: int_keys.from_tensor(sr.split(key)), r"shape \(2,\)"),
    ):
        with pytest.raises(InvalidArgumentError, match=named):
            call()


def test_another_device_names_the_cure():
    """A device without a kernel of the same bits raises, and the message says to draw on the CPU and move."""
    # any other: what the ops run sees no meta tensor
    elsewhere = torch.empty(2, dtype=torch.uint64, device="meta")
    for run in (
        lambda: keys.split_keys(elsewhere, 2),
        lambda: keys.fold_in_integer(elsewhere, 1),
        lambda: kernels("normal", elsewhere),
    ):
        with pytest.raises(UnimplementedError, match=r"key\.cpu\(\)"):
            run()
