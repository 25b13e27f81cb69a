"""Integers below a bound: unbiased, of every dtype and range, a function of (key, index, low, high) alone."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import samebits.random as sr
from op_testing import over_threads
from samebits._native import kernel
from samebits.errors import InvalidArgumentError
from samebits.random import _int_keys as int_keys
from samebits.random._cpu import bounded_integers
from samebits.random._cpu.philox import philox4x32

DTYPES = (
    torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64,
)  # fmt: skip


def accepted(word, span, digits):
    """What a word becomes, or None where it is rejected: Lemire's method in Python integers."""
    product = word * span
    return product >> digits if product % 2**digits >= 2**digits % span else None


cipher = kernel("UniTuple(uint64, 4)(uint64, uint64, uint64, uint64, uint64, uint64)")(philox4x32.function)


def reference(pair, number, low, span):
    """The first integers of a key, from the definition of the streams."""
    seed, offset = pair
    digits, per_block = (32, 4) if span <= 2**32 else (64, 2)

    def block(at, attempt, place):
        at %= 2**64
        counter = (at % 2**32, at >> 32, attempt, place, seed % 2**32, seed >> 32)
        w = [int(word) for word in cipher(*counter)]
        return w if digits == 32 else [w[0] << 32 | w[1], w[2] << 32 | w[3]]

    out = []
    for i in range(number):
        at, place = offset + i // per_block, i % per_block
        drawn, attempt = accepted(block(at, 0, 0)[place], span, digits), 0
        while drawn is None:
            attempt += 1
            drawn = accepted(block(at, attempt, place + 1)[0], span, digits)
        out.append(low + drawn)
    return out


@pytest.mark.parametrize("span", [1, 2, 3, 10, 255, 1000, 4097, 32769, 43691, 65535, 65536])
def test_every_result_has_equally_many_words(span):
    """Of all 2**16 words of 16 bits, each result has the same number; the modulo method and no rejection have not."""
    all_words = np.arange(2**16, dtype=np.uint64)
    upper, lower = (
        part.astype(np.int64)
        for part in bounded_integers.times_span.function(all_words, np.uint64(span - 1), np.uint64(16))
    )
    kept = upper[lower >= 2**16 % span]
    assert set(np.bincount(kept, minlength=span).tolist()) == {2**16 // span}
    if 2**16 % span:
        for biased in (upper, all_words.astype(np.int64) % span):
            assert len(set(np.bincount(biased, minlength=span).tolist())) == 2


@settings(derandomize=True, deadline=None, max_examples=40)
@given(
    st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)),
    st.integers(0, 13),
    st.one_of(
        st.integers(1, 2**64),
        st.integers(1, 2**33),
        st.sampled_from([1, 2**31 + 1, 2**32 - 1, 2**32, 2**32 + 1, 2**63, 2**63 + 1, 2**64 - 1, 2**64]),
    ),
    st.integers(0, 2**64),
)
def test_integers_are_the_reference(pair, number, span, place):
    """Any range up to the whole of int64 and uint64 gives Lemire's integers of the words, and of those drawn again."""
    key = int_keys.to_tensor(pair)
    for dtype, least in ((torch.int64, -(2**63)), (torch.uint64, 0)):
        low = least + place % (2**64 - span + 1)
        drawn = sr.randint(key, number, low=low, high=low + span, dtype=dtype)
        assert drawn.tolist() == reference(pair, number, low, span)


@pytest.mark.parametrize(("low", "span"), [(-5, 2**31 + 1), (-(2**62), 2**63 + 1)])
def test_rejected_words_are_drawn_again(low, span):
    """Where nearly half of the words are rejected, in vector loops and rests, every element is the reference's."""
    expected = reference((5, 0), 2051, low, span)
    assert sr.randint(sr.key(5), 2051, low=low, high=low + span).tolist() == expected
    digits = 32 if span < 2**32 else 64
    first_words = sr.bits(sr.key(5), 2051 * digits // 32).to(torch.int64).tolist()
    if digits == 64:
        first_words = [a << 32 | b for a, b in zip(first_words[::2], first_words[1::2], strict=True)]
    differing = sum(
        low + (w * span >> digits) != drawn for w, drawn in zip(first_words, expected, strict=True)
    )
    assert 900 < differing < 1150


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_whole_range_of_a_dtype(dtype):
    """Both ends of every integer dtype can be bounds; a range one wider is refused."""
    limits = torch.iinfo(dtype)
    drawn = sr.randint(sr.key(1), 4000, low=limits.min, high=limits.max + 1, dtype=dtype)
    assert drawn.dtype is dtype
    values = np.array([(number - limits.min) / 2**limits.bits for number in drawn.tolist()])
    assert stats.kstest(values, "uniform").pvalue > 1e-4
    assert (
        sr.randint(sr.key(1), 9, low=limits.max, high=limits.max + 1, dtype=dtype).tolist()
        == [limits.max] * 9
    )
    for low, high in ((limits.min - 1, 0), (0, limits.max + 2)):
        with pytest.raises(InvalidArgumentError, match="choose a wider dtype"):
            sr.randint(sr.key(1), 3, low=low, high=high, dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_agree(dtype):
    """A range that fits every dtype has the same integers in all of them."""
    expected = reference((3, 0), 70, 3, 99)
    assert sr.randint(sr.key(3), 7, 10, low=3, high=102, dtype=dtype).reshape(-1).tolist() == expected


@pytest.mark.parametrize("span", [2, 6, 10, 100])
def test_small_ranges_are_uniform(span):
    """Counts and pairs of neighbours are uniform by chi-square; words modulo a number near 2**32 would not be."""
    drawn = sr.randint(sr.key(7), 400_000, high=span).numpy()
    assert stats.chisquare(np.bincount(drawn, minlength=span)).pvalue > 1e-4
    pairs = drawn[0::2] * span + drawn[1::2]
    assert stats.chisquare(np.bincount(pairs, minlength=span**2)).pvalue > 1e-4


def test_ranges_near_the_word_are_uniform():
    """Over 3 * 2**30 values, thirds are equally likely; the modulo method, on the same words, puts half in one third."""
    span = 3 * 2**30
    drawn = sr.randint(sr.key(8), 100_000, high=span).numpy()
    assert stats.chisquare(np.bincount(drawn // 2**30, minlength=3)).pvalue > 1e-4
    biased = sr.bits(sr.key(8), 100_000).to(torch.int64).numpy() % span
    assert stats.chisquare(np.bincount(biased // 2**30, minlength=3)).pvalue < 1e-100


@settings(derandomize=True, deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, 3), max_size=3),
    st.integers(0, 3),
    st.sampled_from([7, 2**31 + 9, 2**40]),
    st.data(),
)
def test_batches_are_single_draws(shape, batched, high, data):
    """Each row of a batch of keys is drawn as if alone, whatever is broadcast."""
    batch = [data.draw(st.sampled_from([1, size])) for size in shape[:batched]] + [1] * (len(shape) - batched)
    keys = sr.split(sr.key(9), max(1, int(np.prod(batch))))[: int(np.prod(batch))].view(*batch, 2)
    drawn = sr.randint(keys, shape, high=high)
    if not shape:
        assert torch.equal(drawn, sr.randint(sr.split(sr.key(9), 1)[0], (), high=high))
        return
    shared = len(batch)
    while shared and batch[shared - 1] == 1:
        shared -= 1
    expanded = keys.expand(*shape[:shared], *batch[shared:], 2)
    for row in np.ndindex(*shape[:shared]):
        key = expanded[row].reshape(-1, 2)[0]
        assert torch.equal(drawn[row], sr.randint(key, shape[shared:], high=high))


def test_threads_do_not_matter():
    """1 to 8 threads give the same bits, over rows of one key and over many keys, with and without rejection."""
    keys = sr.split(sr.key(2), 300).view(300, 1, 2)
    seen, _ = over_threads(
        lambda: [
            sr.randint(sr.key(1), 200_001, high=2**31 + 1),
            sr.randint(keys, 300, 501, high=10, dtype=torch.uint8),
            sr.randint(sr.key(1), 70_001, high=2**62 + 2**61),
        ],
        range(1, 9),
    )
    assert len(seen) == 1


def test_shapes():
    """Sizes are ints or one sequence; nothing and one number are shapes too."""
    assert sr.randint(sr.key(1), high=3).shape == ()
    assert sr.randint(sr.key(1), 0, 3, high=3).shape == (0, 3)
    assert torch.equal(
        sr.randint(sr.key(1), 2, 3, high=9), sr.randint(sr.key(1), (2, 3), high=9, device="cpu")
    )


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"high": 0}, "low must be below high"),
        ({"low": 5, "high": 5}, "got low=5, high=5"),
        ({"high": 1.5}, "high must be an int, got 1.5"),
        ({"low": None, "high": 2}, "low must be an int"),
        ({"high": 257, "dtype": torch.uint8}, "holds 0 to 255"),
        ({"low": -1, "high": 2, "dtype": torch.uint64}, "got low=-1"),
        ({"high": 2, "dtype": torch.float32}, "must be an integer dtype"),
    ],
)
def test_wrong_arguments_are_named(arguments, match):
    """Each wrong argument raises with its name and value, and numpy's integers are no mistake."""
    with pytest.raises(InvalidArgumentError, match=match):
        sr.randint(sr.key(1), 3, **arguments)
    assert sr.randint(sr.key(1), 3, low=np.int64(1), high=np.int32(2)).tolist() == [1, 1, 1]


def test_wrong_keys_and_devices_are_named():
    """A key that is none, or does not fit, raises before anything is drawn; on the meta device there is nothing to draw."""
    with pytest.raises(InvalidArgumentError, match=r"key\(seed\)"):
        sr.randint(torch.zeros(2), 3, high=2)
    with pytest.raises(InvalidArgumentError, match="does not broadcast"):
        sr.randint(sr.split(sr.key(1), 2), 3, high=2)
    assert sr.randint(sr.key(1, device="meta"), 3, high=2).is_meta
