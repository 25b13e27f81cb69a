"""Exponential, Gumbel and truncated normal numbers: their laws, their accuracy at the ends, their bounds."""

import itertools
import math
from decimal import Decimal

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import special, stats

import samebits.random as sr
from op_testing import over_threads
from samebits._native import kernel
from samebits.errors import InvalidArgumentError
from samebits.random._cpu import transformed_kernels as kernels
from samebits.random._draws import exponential_gumbel

INF = math.inf
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
DRAWS = (sr.exponential, sr.gumbel, sr.truncated_normal)


def words_of(key, number, dtype):
    """The words of a key as Python integers, and their digits."""
    digits = 64 if dtype is torch.float64 else 32
    w = [int(word) for word in sr.bits(key, number * digits // 32).tolist()]
    return ([a << 32 | b for a, b in zip(w[::2], w[1::2], strict=True)] if digits == 64 else w), digits


def minus_log(word, digits):
    """-log((word + 1/2) / 2**digits) to 40 digits."""
    with kernels.exact():
        return -((Decimal(word) + Decimal("0.5")) / 2**digits).ln()


def ulps(drawn, exact, dtype):
    """The distance of a number from the exact one in units of its last place."""
    number = torch.tensor([float(exact)], dtype=dtype).numpy()
    return float(abs(Decimal(drawn) - exact) / Decimal(float(np.spacing(np.abs(number))[0])))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exponential_is_accurate(dtype):
    """-log(u) is within 3 ulp of the exact function of the word, where u is near 0 and near 1 too."""
    drawn = sr.exponential(sr.key(1), 400, dtype=dtype).tolist()
    words, digits = words_of(sr.key(1), 400, dtype)
    assert max(ulps(x, minus_log(w, digits), dtype) for x, w in zip(drawn, words, strict=True)) < 3


@kernel("void(uint32[::1], float32[:, ::1], float64[:, ::1])")
def of_words(words, singles, doubles):
    """Exponential numbers, Gumbel numbers and plain -log of the rounded u, of words, and of pairs of them."""
    p = (1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    for j in range(words.size):
        u, complement = kernels._uniform_32(words, j)
        singles[0, j] = kernels._exponential_32(u, complement, p)
        singles[1, j] = kernels._gumbel_32(u, complement, p)
        singles[2, j] = -kernels.log_32(u)
    for j in range(words.size // 2):
        u, complement = kernels._uniform_64(words, j)
        doubles[0, j] = kernels._exponential_64(u, complement, p)
        doubles[1, j] = kernels._gumbel_64(u, complement, p)
        doubles[2, j] = -kernels.log_64(u)


ENDS = [0, 1, 2, 255, 2**31 - 1, 2**31, 2**31 + 1, 3 * 2**30, 2**32 - 129, 2**32 - 128, 2**32 - 2, 2**32 - 1]


def test_the_ends_of_the_words():
    """The extreme words give positive exponential and finite Gumbel numbers, accurate to the last bits.

    Without what rounding takes from u, the last words would give zero and infinity.
    """
    words = np.array([word for pair in itertools.product(ENDS, ENDS) for word in pair], np.uint32)
    singles, doubles = np.empty((3, words.size), np.float32), np.empty((3, words.size // 2))
    of_words(words, singles, doubles)
    pairs = words.astype(object).reshape(-1, 2)
    for numbers, integers, digits in (
        (singles, words, 32),
        (doubles, [int(a) << 32 | int(b) for a, b in pairs], 64),
    ):
        dtype, ulp = (torch.float32, 2.0**-23) if digits == 32 else (torch.float64, 2.0**-52)
        for exponential, gumbel, word in zip(*numbers[:2].tolist(), integers, strict=True):
            exact = minus_log(int(word), digits)
            assert exponential > 0 and ulps(exponential, exact, dtype) < 3
            with kernels.exact():
                exact = 1 - exact.ln()
                assert abs(Decimal(gumbel) - exact) < 4 * Decimal(ulp) * max(1, abs(exact))
        assert (numbers[2] == 0).any()


LAWS = {
    "exponential": (lambda k, **d: sr.exponential(k, 100_000, rate=2.5, **d), stats.expon(scale=0.4)),
    "gumbel": (lambda k, **d: sr.gumbel(k, 100_000, loc=-1.0, scale=3.0, **d), stats.gumbel_r(-1, 3)),
    "truncated": (
        lambda k, **d: sr.truncated_normal(k, 100_000, mean=1.0, std=2.0, low=-1.5, high=4.0, **d),
        stats.truncnorm(-1.25, 1.5, 1, 2),
    ),
    "one side": (
        lambda k, **d: sr.truncated_normal(k, 100_000, low=0.5, high=INF, **d), stats.truncnorm(0.5, INF)
    ),
    "normal": (lambda k, **d: sr.truncated_normal(k, 100_000, low=-INF, high=INF, **d), stats.norm),
}  # fmt: skip
WRONG = {
    "exponential": stats.expon(scale=0.41), "gumbel": stats.gumbel_r(-1, 3.1),
    "truncated": stats.truncnorm(-1.25, 1.6, 1, 2), "one side": stats.truncnorm(0.48, INF), "normal": stats.norm(0.02),
}  # fmt: skip


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_laws(law, dtype):
    """Kolmogorov and Smirnov find the law, and tell it from one that is a few percent off."""
    draw, expected = LAWS[law]
    drawn = draw(sr.key(11), dtype=dtype).double().numpy()
    assert stats.kstest(drawn, expected.cdf).pvalue > 1e-3
    assert stats.kstest(drawn, WRONG[law].cdf).pvalue < 1e-5


def tail_law(low):
    """The distribution function above `low` without the cancellation of 1 - Phi."""
    return lambda x: -np.expm1(special.log_ndtr(-x) - special.log_ndtr(-low))


@pytest.mark.parametrize("low", [2.0, 8.0, 20.0, 35.99, 36.01, 60.0, 1e4])
def test_tails_keep_their_law(low):
    """Any tail has its law, in both directions; subtracting from Phi(8) would leave ten numbers of it."""
    up = sr.truncated_normal(sr.key(3), 50_000, low=low, high=INF, dtype=torch.float64).numpy()
    down = sr.truncated_normal(sr.key(3), 50_000, low=-INF, high=-low, dtype=torch.float64).numpy()
    deviations = stats.kstest(up, tail_law(low)).pvalue, stats.kstest(-down, tail_law(low)).pvalue
    assert min(deviations) > 1e-3 and up.min() >= low and down.max() <= -low
    assert np.unique(up).size > 49_000
    if low == 8:
        u = sr.uniform(sr.key(3), 50_000, dtype=torch.float64).numpy()
        naive = special.ndtri(special.ndtr(8.0) + u * (1 - special.ndtr(8.0)))
        assert np.unique(naive).size < 10


@pytest.mark.parametrize(("low", "high"), [(8.0, 9.0), (8.0, 8.001), (40.0, 40.01), (-0.001, 30.0)])
def test_narrow_and_lopsided_intervals(low, high):
    """Two bounds in one tail, or one beyond the other side's reach: the law is the normal one between them."""
    drawn = sr.truncated_normal(sr.key(4), 50_000, low=low, high=high, dtype=torch.float64).numpy()
    law, whole = tail_law(low), tail_law(low)(np.array(high))
    assert stats.kstest(drawn, lambda x: law(x) / whole).pvalue > 1e-3


def test_the_two_ways_into_a_tail_meet():
    """At 36 deviations the expansion of the tail and the inverse function give the same numbers."""
    key, number = sr.key(5), 2000
    near = sr.truncated_normal(key, number, low=math.nextafter(36.0, 0), high=INF, dtype=torch.float64)
    far = sr.truncated_normal(key, number, low=36.0, high=INF, dtype=torch.float64)
    assert (
        exponential_gumbel._truncation(0.0, 1.0, math.nextafter(36.0, 0), INF, torch.float64)[0]
        == "truncated"
    )
    assert exponential_gumbel._truncation(0.0, 1.0, 36.0, INF, torch.float64)[0] == "far_tail"
    assert (near - far).abs().max() < 2e-13  # some 30 ulp; the numbers differ from 36 by 0.03


@pytest.mark.slow
def test_numbers_rise_with_their_words():
    """The inverse function is used as it is: larger words give larger numbers, on both sides."""
    order = sr.bits(sr.key(6), 5000).to(torch.int64).argsort()
    for bounds in ((-2.0, 2.0), (9.0, 10.0), (-10.0, -9.0), (50.0, 51.0), (-51.0, -50.0)):
        drawn = sr.truncated_normal(sr.key(6), 5000, low=bounds[0], high=bounds[1])[order]
        assert (drawn.diff() >= 0).all()


NUMBERS = st.one_of(st.floats(-50, 50), st.sampled_from([0.0, 1e-30, -1e-30, 1e9, -1e9]))


@pytest.mark.slow
@settings(derandomize=True, deadline=None, max_examples=120)
@example(0.0, 1.0, 1e9, INF, torch.float16)
@example(0.0, 1.0, -INF, 1.0, torch.float16)
@given(
    NUMBERS,
    st.floats(1e-6, 100),
    NUMBERS,
    st.one_of(st.just(INF), st.floats(1e-3, 100)),
    st.sampled_from(FLOATS),
)
def test_results_are_within_the_bounds(mean, std, low, width, dtype):
    """Every number lies in [low, high] after rounding too, finite, for a mean anywhere; or no number of the dtype does."""
    high = low + width
    if not low < high:
        return
    try:
        drawn = sr.truncated_normal(sr.key(7), 101, mean=mean, std=std, low=low, high=high, dtype=dtype)
    except InvalidArgumentError as error:
        assert "is in low" in str(error)  # noqa: PT017
        nearest = torch.tensor([low, high], dtype=torch.float64).to(dtype).double()
        assert not (nearest.isfinite() & (nearest >= low) & (nearest <= high)).any()
        return
    assert drawn.dtype is dtype and drawn.isfinite().all()
    assert ((drawn.double() >= low) & (drawn.double() <= high)).all()


@pytest.mark.parametrize(("x", "q"), [
    (0, "0.5"),
    (1, "0.1586552539314570514147674543679620775220"),
    (2, "0.02275013194817920720028263716653343747"),
    (5, "2.866515718791939116737523329e-7"),
    (8, "6.220960574271784123515995172e-16"),
])  # fmt: skip
def test_tail_probabilities(x, q):
    """The tails have the digits of the tables (Abramowitz and Stegun, 26.1), on both sides, and meet where methods change."""
    with kernels.exact():
        assert abs(kernels.upper_tail(Decimal(x)) / Decimal(q) - 1) < Decimal("1e-22")
        assert kernels.upper_tail(Decimal(-x)) == 1 - kernels.upper_tail(Decimal(x))
        step = Decimal("1e-25")
        below, at = kernels.upper_tail(3 - step), kernels.upper_tail(Decimal(3))
        density = (Decimal("-4.5")).exp() / kernels._SQRT_TAU
        assert abs(below - at - density * step) < Decimal("1e-48")


quantile = kernel("float64(float64, float64)")(kernels.normal_quantile.function)


def test_quantiles():
    """The inverse of the normal distribution is within 3e-15 of scipy's, from either side."""
    tails = np.concatenate([10.0 ** -np.linspace(0.31, 290, 3000), np.linspace(0.01, 0.499, 1000)])
    left, right = np.array(
        [(quantile(tail, 1 - tail), quantile(1 - tail, tail)) for tail in tails.tolist()]
    ).T
    assert np.abs(left / special.ndtri(tails) - 1).max() < 3e-15
    assert (right == -left).all()
    assert quantile(0.5, 0.5) == 0


@pytest.mark.slow
@pytest.mark.parametrize("draw", DRAWS)
def test_half_precision_is_rounded_once(draw):
    """Half types are the float32 numbers, rounded to nearest even."""
    single = draw(sr.key(8), 5000)
    for dtype in (torch.float16, torch.bfloat16):
        assert torch.equal(draw(sr.key(8), 5000, dtype=dtype), single.to(dtype))


def test_parameters():
    """rate divides; loc and scale, mean and std shift and stretch, each with one rounding per operation."""
    assert torch.equal(sr.exponential(sr.key(1), 999, rate=3.0), sr.exponential(sr.key(1), 999) / 3.0)
    standard = sr.gumbel(sr.key(1), 999, dtype=torch.float64)
    assert torch.equal(
        sr.gumbel(sr.key(1), 999, loc=4.0, scale=0.3, dtype=torch.float64), 4.0 + 0.3 * standard
    )
    standard = sr.truncated_normal(sr.key(1), 999, dtype=torch.float64)
    wide = sr.truncated_normal(sr.key(1), 999, mean=10.0, std=3.0, low=4.0, high=16.0, dtype=torch.float64)
    assert torch.equal(wide, 10.0 + 3.0 * standard)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    st.sampled_from(DRAWS),
    st.sampled_from([torch.float32, torch.float64]),
    st.lists(st.integers(0, 5), max_size=3),
    st.data(),
)
def test_batches_are_single_draws(draw, dtype, shape, data):
    """Each row of a batch of keys is drawn as if alone; a longer row begins with a shorter one."""
    batched = data.draw(st.integers(0, len(shape)))
    keys = sr.split(sr.key(9), 130)[: math.prod(shape[:batched])].view(
        *shape[:batched], *[1] * (len(shape) - batched), 2
    )
    drawn = draw(keys if shape else sr.key(9), shape, dtype=dtype)
    for row in np.ndindex(*shape[:batched]):
        key = keys[row].reshape(-1, 2)[0] if shape else sr.key(9)
        alone = draw(key, shape[batched:], dtype=dtype)
        assert torch.equal(drawn[row], alone)
        longer = draw(key, alone.numel() + 9, dtype=dtype)
        assert torch.equal(longer[: alone.numel()], alone.view(-1))


@pytest.mark.parametrize("draw", DRAWS)
def test_threads_do_not_matter(draw):
    """1 to 8 threads give the same bits, for one key and for many."""
    keys = sr.split(sr.key(2), 300).view(300, 1, 2)
    seen, _ = over_threads(lambda: [draw(sr.key(1), 200_001), draw(keys, 300, 301)], range(1, 9))
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("draw", "arguments", "match"),
    [
        (sr.exponential, {"rate": 0.0}, "exponential: rate must be positive and finite, got 0.0"),
        (sr.exponential, {"rate": math.nan}, "rate must be positive"),
        (sr.exponential, {"rate": INF}, "rate must be positive and finite"),
        (sr.gumbel, {"scale": -1.0}, "gumbel: scale must be positive"),
        (sr.gumbel, {"loc": INF}, "gumbel: loc must be finite, got inf"),
        (sr.truncated_normal, {"std": 0.0}, "truncated_normal: std must be positive"),
        (sr.truncated_normal, {"mean": math.nan}, "mean must be finite"),
        (sr.truncated_normal, {"low": 1.0, "high": 1.0}, "low must be below high, got low=1.0, high=1.0"),
        (sr.truncated_normal, {"low": math.nan}, "low must be below high"),
        (
            sr.truncated_normal, {"low": 1.0001, "high": 1.0002, "dtype": torch.bfloat16},
            "no torch.bfloat16 is in low=1.0001 to high=1.0002",
        ),
        (sr.gumbel, {"dtype": torch.int32}, "dtype must be float32"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(draw, arguments, match):
    """Each wrong argument raises with its name and value."""
    with pytest.raises(InvalidArgumentError, match=match):
        draw(sr.key(1), 3, **arguments)


@pytest.mark.parametrize("draw", DRAWS)
def test_wrong_keys_shapes_and_devices_are_named(draw):
    """A key that is none and shapes that do not fit raise; a shape may hold nothing."""
    with pytest.raises(InvalidArgumentError, match=r"key\(seed\)"):
        draw(torch.zeros(2), 3)
    with pytest.raises(InvalidArgumentError, match="does not broadcast"):
        draw(sr.split(sr.key(1), 2), 3)
    with pytest.raises(InvalidArgumentError, match="no negative sizes"):
        draw(sr.key(1), -3)
    assert draw(sr.key(1, device="meta"), 3).is_meta
    assert draw(sr.key(1), 0, 3).shape == (0, 3) and draw(sr.key(1)).shape == ()
    assert draw(sr.key(1), (2, 3), device="cpu").shape == (2, 3)
