"""Words, keys and permutations of samebits.random are statistically random; every check fails on some that are not.

A check returns by how many standard deviations its worst statistic is off. All keys are fixed: nothing here is left to
chance. Numbers that follow a distribution are in test_random_quality_distributions.py; the long test, with TestU01, is
bench/quality.py.
"""

import math

import numpy as np
import pytest
import torch

import samebits.random as sr
from samebits.random import _int_keys as int_keys
from samebits.random._draws.feistel import permute_indices

ROOT = int_keys.fold(int_keys.root(1), "quality")
PASS, FAIL = 5.0, 10.0
"""5 sigma: 6e-7 for one statistic, below 1e-3 for all of this file. What is broken lies far above."""
ROWS, COLUMNS = 1024, 1024

pytestmark = pytest.mark.usefixtures("one_thread")
"""Sorting and sums on many small tensors: threads would only wait for each other."""


def root(name):
    return int_keys.to_tensor(int_keys.fold(ROOT, name))


def tensor(seeds, offsets):
    """Keys from integers that broadcast: (n, 2)."""
    pairs = np.broadcast_arrays(np.asarray(seeds, np.uint64), np.asarray(offsets, np.uint64))
    return torch.from_numpy(np.stack(pairs, -1).copy())


def draw(keys, number):
    """`number` words of each key, a row each."""
    return sr.bits(keys.unsqueeze(1), keys.shape[0], number).numpy()


# ---- checks of one sequence of words ----


def chi_square(counts, expected):
    """Wilson and Hilferty's approximation of chi-square's deviation from its mean, in standard deviations."""
    counts, expected = np.asarray(counts, float).reshape(-1), np.asarray(expected, float).reshape(-1)
    freedom = counts.size - 1
    mean = ((counts - expected) ** 2 / expected).sum() / freedom
    return abs(mean ** (1 / 3) - 1 + 2 / (9 * freedom)) / math.sqrt(2 / (9 * freedom))


def even(values, classes):
    """The chi-square of integers below `classes`, all equally likely."""
    return chi_square(np.bincount(values, minlength=classes), np.full(classes, values.size / classes))


def bytes_even(w):
    """Bytes, all together and by their place in the word."""
    columns = w.reshape(-1).view(np.uint8).reshape(-1, 4)
    return max(even(columns.reshape(-1), 256), *(even(column, 256) for column in columns.T))


def halves_even(w):
    """High and low 16-bit halves."""
    halves = w.reshape(-1).view(np.uint16).reshape(-1, 2)
    return max(even(half, 2**16) for half in halves.T)


def neighbours_correlate(w, lags=(1, 2, 3, 4, 5, 8, 16)):
    """The correlation of words, and of their low halves, with those `lag` later."""
    flat = w.reshape(-1)
    return max(
        correlation(x[:-lag], x[lag:])
        for x in (flat.astype(float), (flat & 0xFFFF).astype(float))
        for lag in lags
    )


def correlation(a, b):
    """The correlation of two samples in standard deviations, which are 1 / sqrt(n) of independent ones."""
    return abs(np.corrcoef(a, b)[0, 1]) * math.sqrt(a.size)


WEIGHTS = np.array([math.comb(32, k) for k in range(33)]) / 2**32
CLASS = np.digitize(np.arange(33), [14, 16, 17, 19])  # five classes of Hamming weights of about the same size
CLASS_SHARE = np.bincount(CLASS, WEIGHTS)


def weights_depend(w):
    """The classes of the Hamming weights of neighbours, as a contingency table of 5 x 5."""
    of = CLASS[np.bitwise_count(w.reshape(-1))]
    worst = 0.0
    for lag in (1, 2, 4):
        pairs = np.bincount(5 * of[:-lag:2] + of[lag::2][: of[:-lag:2].size], minlength=25)
        worst = max(worst, chi_square(pairs, np.outer(CLASS_SHARE, CLASS_SHARE) * pairs.sum()))
    return worst


def birthdays(w, days=4096):
    """Marsaglia's birthday spacings: 4,096 birthdays in a year of 2**32 days have 4 equal spacings on average."""
    flat = w.reshape(-1)
    spacings = np.sort(np.diff(np.sort(flat.reshape(-1, days).astype(np.int64)), axis=1), axis=1)
    expected = spacings.shape[0] * days**3 / 2**34
    return abs((np.diff(spacings, axis=1) == 0).sum() - expected) / math.sqrt(expected)


CHECKS = [bytes_even, halves_even, neighbours_correlate, weights_depend, birthdays]

# ---- sequences: (rows, columns) of words, a row from each key ----


def folded():
    return draw(sr.split(root("folded"), ROWS), COLUMNS)


def first_words(keys):
    """The first word of each key; what fold_in makes of a key is a block of its stream (see the avalanche's test)."""
    return sr.fold_in(keys, 0).numpy().view(np.uint32)[:, 0].copy()


def tree(levels=18):
    keys = root("tree").view(1, 2)
    for _ in range(levels):
        keys = sr.split(keys).transpose(0, 1).reshape(-1, 2)
    return keys


OURS = {
    "one key": lambda: draw(root("one").view(1, 2), ROWS * COLUMNS),
    "fold_in 0, 1, 2, ...": folded,
    "fold_in 0, 1, 2, ..., first words": lambda: first_words(sr.split(root("first"), 2**18)),
    "key(0), key(1), ..., first words": lambda: first_words(tensor(np.arange(2**18), 0)),
    "split, 18 levels, first words": lambda: first_words(tree()),
    "fold_in epoch, then step": lambda: first_words(
        sr.split(sr.split(root("epochs"), 512), 512).reshape(-1, 2)
    ),
    "fold_in of strings": lambda: draw(
        torch.stack([sr.fold_in(root("names"), f"layers.{i}.weight") for i in range(2**12)]), 64
    ),
}


def philox(seed, offset, rounds):
    """The four words of keys as uint32 of shape (n, 4), after the paper, in NumPy."""
    low, half = np.uint64(2**32 - 1), np.uint64(32)
    c0, c1, k0, k1 = offset & low, offset >> half, seed & low, seed >> half
    c2 = c3 = np.uint64(0) * c0
    for _ in range(rounds):
        p0, p1 = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (p1 >> half) ^ c1 ^ k0, p1 & low, (p0 >> half) ^ c3 ^ k1, p0 & low
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & low, (k1 + np.uint64(0xBB67AE85)) & low
    return np.stack([c0, c1, c2, c3], -1).astype(np.uint32)


def lcg(multiplier, increment, number):
    """x -> multiplier x + increment modulo 2**32: the low bits of such a generator have short periods."""
    out, x = np.empty(number, np.uint32), 1
    for i in range(number):
        x = (multiplier * x + increment) % 2**32
        out[i] = x
    return out


BROKEN = {
    "Philox, 2 rounds": lambda: philox(np.uint64(1), np.arange(2**18, dtype=np.uint64), 2),
    "LCG": lambda: lcg(1664525, 1013904223, 2**20),
    "Weyl": lambda: np.arange(2**20, dtype=np.uint32) * np.uint32(0x9E3779B1),
    "keys added": lambda: draw(tensor(1, np.arange(2**14)), 64),
}


@pytest.mark.parametrize("name", OURS)
def test_streams_pass(name):
    """No check finds anything in the words of one key, nor in the words that many keys begin with."""
    drawn = OURS[name]()
    assert {check.__name__: check(drawn) for check in CHECKS if check(drawn) > PASS} == {}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_streams_fail(name):
    """Every check finds a cipher of two rounds, an LCG and a Weyl sequence; added keys repeat words, which most find."""
    drawn = BROKEN[name]()
    passed = [check for check in CHECKS if check(drawn) < FAIL]
    assert passed == ([neighbours_correlate] if name == "keys added" else [])


# ---- pairs of streams: row k of `a` against row k of `b` ----


def rows_depend(a, b, lags=range(-8, 9)):
    """Correlations of the words of every pair at every lag, and the Hamming weights of the pairs' exclusive or."""
    worst, n = 0.0, a.shape[1] - 8
    x, y = (w.astype(float) / 2**31 - 1 for w in (a, b))
    for lag in lags:
        shifted = (x[:, :n] * y[:, lag : lag + n]) if lag >= 0 else (x[:, -lag : -lag + n] * y[:, :n])
        of_pairs = 3 * shifted.sum(1) / math.sqrt(n)  # standard normal: the variance of a word is 1/3
        worst = max(worst, abs(of_pairs.sum()) / math.sqrt(of_pairs.size), np.abs(of_pairs).max() - 0.5)
    weights = np.bincount(np.bitwise_count(a ^ b).reshape(-1), minlength=33)
    middle = slice(4, 29)  # beyond it hardly a weight is expected
    return max(worst, chi_square(weights[middle], WEIGHTS[middle] * weights.sum()))


def seeds_one_bit_apart(draw=draw):
    seeds = np.array([int_keys.fold(ROOT, "bits", bit)[0] for bit in range(64)], np.uint64)
    other = seeds ^ (np.uint64(1) << np.arange(64, dtype=np.uint64))
    return draw(tensor(seeds, 5), 4096), draw(tensor(other, 5), 4096)


def offsets_one_bit_apart():
    pairs = np.array([int_keys.fold(ROOT, "bits", bit) for bit in range(64)], np.uint64)
    other = pairs[:, 1] ^ (np.uint64(1) << np.arange(64, dtype=np.uint64))
    return draw(tensor(*pairs.T), 4096), draw(tensor(pairs[:, 0], other), 4096)


def neighbours(keys):
    drawn = draw(keys, 4096)
    return drawn[:-1], drawn[1:]


PAIRS = {
    "seeds one bit apart": seeds_one_bit_apart,
    "fold_in i and i + 1": lambda: neighbours(sr.split(root("pairs"), 129)),
    "seeds s and s + 1": lambda: neighbours(tensor(np.arange(129), 0)),
    "split": lambda: [draw(keys, 4096) for keys in sr.split(sr.split(root("splits"), 128))],
    "strings": lambda: neighbours(torch.stack([sr.fold_in(root("names"), f"block{i}") for i in range(129)])),
}


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_of_streams_are_independent(name):
    """Streams of keys that are next to each other in any sense are not correlated, at no lag up to two blocks."""
    assert rows_depend(*PAIRS[name]()) < PASS


def test_offsets_are_places_in_one_stream():
    """Keys whose offsets differ in a bit do not agree word by word, but they are one stream, shifted: never add to keys."""
    assert rows_depend(*offsets_one_bit_apart(), lags=[0]) < PASS
    assert rows_depend(*offsets_one_bit_apart()) > FAIL


def test_dependent_pairs_are_found():
    """Two rounds, and pairs that agree in one bit of a word, fail."""

    def two_rounds(keys, number):
        seeds, offsets = keys.numpy().T[:, :, None]
        return philox(seeds, offsets + np.arange(number // 4, dtype=np.uint64), 2).reshape(-1, number)

    assert rows_depend(*seeds_one_bit_apart(two_rounds)) > FAIL
    a, b = PAIRS["split"]()
    assert rows_depend(a, b & np.uint32(2**32 - 2) | a & np.uint32(1)) > FAIL


# ---- keys ----


def test_keys_do_not_meet():
    """Three million keys made in these ways have different seeds; with 32 bits of seed, or parts added, they meet."""

    def distinct(*keys):
        return np.count_nonzero(np.diff(np.sort(np.concatenate(keys)))) + 1

    keys = sr.split(root("million"), 10**6)
    paths = sr.split(sr.split(root("paths"), 1000), 1000).reshape(-1, 2)
    deeper = sr.split(keys[:1000], 1000).reshape(-1, 2)
    seeds = [made[:, 0].numpy() for made in (keys, paths, deeper)]
    assert distinct(*seeds) == 3 * 10**6
    assert distinct(seeds[0].astype(np.uint32)) < 10**6
    assert distinct(np.add.outer(np.arange(1000), np.arange(1000)).reshape(-1)) == 1999


def avalanche(block, keys=4096):
    """Flips each of the 128 bits of `keys` keys and counts the flipped bits of the 128 that `block` gives.

    In standard deviations: the worst key bit's mean (64 of 128), and the 128 x 128 table of single bits.
    """
    pairs = sr.split(root("avalanche"), keys).numpy()
    before, worst = block(pairs), 0.0
    table = np.empty((128, 128))
    for bit in range(128):
        flipped = pairs.copy()
        flipped[:, bit // 64] ^= np.uint64(1) << np.uint64(bit % 64)
        difference = np.unpackbits((before ^ block(flipped)).view(np.uint8), axis=1)
        table[bit] = (difference.sum(0) - keys / 2) / math.sqrt(keys / 4)
        worst = max(worst, abs(difference.sum() / keys - 64) / math.sqrt(32 / keys))
    return worst, np.abs(table).max(), abs((table**2).sum() - table.size) / math.sqrt(2 * table.size)


def test_every_key_bit_flips_half_of_the_bits():
    """Each of the 128 bits of a key flips 64 of 128 bits, each single one half of the time; after two rounds it does not.

    The block of a key is both its first four words and what fold_in makes of it.
    """
    ours = avalanche(lambda pairs: sr.fold_in(torch.from_numpy(pairs), 0).numpy())
    assert max(ours) < PASS and ours[0] < 3.9  # 128 normal numbers
    drawn = sr.split(root("avalanche"), 8)
    assert (sr.fold_in(drawn, 0).numpy().view(np.uint32) == draw(drawn, 4)).all()
    assert min(avalanche(lambda pairs: philox(*pairs.T, 2), keys=256)) > FAIL


# ---- permutations ----


def orders_differ(orders):
    """Images of (keys, n) against uniform orders: joint places of pairs, places, ascents, fixed points, cycles, parity."""
    keys, n = orders.shape
    worst = 0.0
    for i, j in {(0, 1), (0, n - 1), (n // 2, n // 2 ^ 1), (n - 2, n - 1)}:
        table = np.bincount(orders[:, i] * n + orders[:, j], minlength=n * n).reshape(n, n)
        pairs = table[~np.eye(n, dtype=bool)]
        worst = max(
            worst, chi_square(pairs, np.full(pairs.size, keys / pairs.size)) if keys > 4 * pairs.size else 0
        )
    places = np.stack([np.bincount(column, minlength=n) for column in orders.T])[:-1, :-1]
    worst = max(worst, chi_square(places, np.full(places.size, keys / n)))
    least, step = np.broadcast_to(np.arange(n), orders.shape), orders
    for _ in range(n.bit_length()):  # the least index of each cycle, by doubling
        least, step = np.minimum(least, np.take_along_axis(least, step, 1)), np.take_along_axis(step, step, 1)
    cycles = (least == np.arange(n)).sum(1)
    inverse = 1 / np.arange(1, n + 1)
    for drawn, mean, variance in (
        (cycles, inverse.sum(), (inverse - inverse**2).sum()),
        ((n - cycles) % 2, 1 / 2, 1 / 4),
        ((orders == np.arange(n)).sum(1), 1, 1),
        ((np.diff(orders, axis=1) > 0).sum(1), (n - 1) / 2, (n + 1) / 12),
    ):
        worst = max(worst, abs(drawn.mean() - mean) / math.sqrt(variance / keys))
    return worst


def orders(n, keys=6000, rounds=10):
    return np.stack([permute_indices(int_keys.fold(ROOT, n, k), 0, n, n, rounds=rounds) for k in range(keys)])


@pytest.mark.parametrize(
    "n",
    [5, 16, 36, 64, 65, 77, 100, 121, 130],
)
def test_permutations_are_uniform(n):
    """Pairs, ascents, fixed points, cycles and parities of permutations are those of uniform ones."""
    assert orders_differ(orders(n)) < PASS


def test_permutations_that_are_not_uniform_are_found():
    """Two rounds, rotations, even permutations only, and a shuffle that swaps with any place instead of the rest fail."""
    assert orders_differ(orders(100, rounds=2)) > FAIL
    assert (
        orders_differ((np.arange(100) + np.random.default_rng(0).integers(100, size=(6000, 1))) % 100) > FAIL
    )
    even = orders(16)
    swapped = np.stack([row[[1, 0, *range(2, 16)]] if parity(row) else row for row in even])
    assert orders_differ(even) < PASS and orders_differ(swapped) > FAIL
    naive = np.tile(np.arange(5), (6000, 1))
    for i, swap in enumerate(draw(root("naive").view(1, 2), 5 * 6000).reshape(5, 6000) % 5):
        row = np.arange(6000)
        naive[row, i], naive[row, swap] = naive[row, swap], naive[row, i].copy()
    assert orders_differ(naive) > FAIL


def parity(order):
    return np.triu(order[:, None] > order[None], 1).sum() % 2
