"""The keyed permutation of indices."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest

import samebits.random as sr
from samebits.errors import InvalidArgumentError
from samebits.random.feistel import permute_indices
from samebits.random.words import fold, root


def chi_square(counts, expected):
    """How many standard deviations the chi-square statistic lies from its mean."""
    counts = np.asarray(counts, dtype=float)
    freedom = counts.size - 1
    return (((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom)


def permutations(n, keys, rounds=10):
    return np.stack([permute_indices(fold(root(1), n, k), 0, n, n, rounds=rounds) for k in range(keys)])


@pytest.mark.parametrize("rounds", [10, 2])
def test_bijection_for_every_small_size(rounds):
    """Every size of 1..600 is permuted, whatever the number of rounds."""
    for n in range(1, 601):
        assert (np.sort(permute_indices(root(n), 0, n, n, rounds=rounds)) == np.arange(n)).all(), n


@pytest.mark.parametrize("n", [65_537, 10**6 + 3, 2**20, 1_048_575])
def test_bijection_for_large_sizes(n):
    """Large odd and even sizes are permuted too."""
    assert np.bincount(permute_indices(root(n), 0, n, n), minlength=n).max() == 1


def test_parts_are_slices_of_the_whole():
    """Any part, and any single index, is that part of the whole; also at 2**48, where there is no whole."""
    whole = permute_indices(root(3), 0, 1000, 1000)
    assert (permute_indices(root(3), 123, 456, 1000) == whole[123:456]).all()
    assert [sr.permute_index(root(3), i, 1000) for i in (0, 7, 999)] == whole[[0, 7, 999]].tolist()
    assert sr.permute_index(sr.key(3), 7, 1000) == whole[7]
    ends = [sr.permute_index(root(3), i, 2**48) for i in (0, 1, 2**48 - 1)]
    assert len(set(ends)) == 3 and all(0 <= image < 2**48 for image in ends)
    assert permute_indices(root(3), 5, 5, 10).shape == (0,)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6])
def test_every_order_is_equally_likely(n):
    """All n! orders of a small set occur equally often over keys."""
    orders = Counter(map(tuple, permutations(n, 40 * math.factorial(n) + 2000).tolist()))
    expected = (40 * math.factorial(n) + 2000) / math.factorial(n)
    counts = [orders[order] for order in itertools.permutations(range(n))]
    assert abs(chi_square(counts, expected)) < 5


@pytest.mark.parametrize("n", [17, 65, 97, 101, 144])
def test_positions_are_uniform(n):
    """Over keys, every index goes to every position equally often."""
    drawn = permutations(n, 4000)
    counts = np.stack([np.bincount(drawn[:, i], minlength=n) for i in range(n)])
    assert abs(chi_square(counts.reshape(-1)[1:], 4000 / n)) < 5


def neighbour_statistic(n, rounds):
    """Differences of the images of neighbours, modulo n, over keys: their chi-square in standard deviations."""
    drawn = permutations(n, 3000, rounds)
    steps = (np.diff(drawn, axis=1) % n).reshape(-1)
    return chi_square(np.bincount(steps, minlength=n)[1:], steps.size / (n - 1))


@pytest.mark.parametrize("n", [65, 100, 101, 256])
def test_neighbours_are_independent(n):
    """The step from one image to the next is uniform; two rounds are too few, and this test says so."""
    assert abs(neighbour_statistic(n, 10)) < 5
    assert neighbour_statistic(n, 2) > 50


@pytest.mark.parametrize("n", [65, 121, 1000])
def test_pairs_are_uniform(n):
    """The joint position of two indices is uniform over all pairs of cells, for indices near and far."""
    drawn = permutations(n, 6000)
    for i, j in ((0, 1), (0, n - 1), (3, 3 + math.isqrt(n - 1) + 1), (5, 40)):
        cells = (drawn[:, i] * 8 // n) * 8 + drawn[:, j] * 8 // n
        edges = np.bincount(np.arange(n) * 8 // n, minlength=8)
        pairs = np.outer(edges, edges) - np.diag(edges)
        expected = 6000 * pairs.reshape(-1) / (n * (n - 1))
        counts = np.bincount(cells, minlength=64)
        statistic = (((counts - expected) ** 2 / expected).sum() - 63) / math.sqrt(126)
        assert abs(statistic) < 5, (i, j)


def test_keys_differ():
    """Different keys give different permutations of 1,000, and hardly a shared position."""
    drawn = permutations(1000, 200)
    assert len(set(map(tuple, drawn.tolist()))) == 200
    shared = np.mean([(drawn[a] == drawn[a + 1]).sum() for a in range(199)])
    assert 0.5 < shared < 1.5  # one is expected of independent permutations


def test_wrong_ranges_are_named():
    """An index or a size outside its range raises, and the message has the numbers."""
    with pytest.raises(InvalidArgumentError, match=r"index 10 is outside range\(10\)"):
        sr.permute_index(root(1), 10, 10)
    with pytest.raises(InvalidArgumentError, match="n=281474976710657"):
        sr.permute_index(root(1), 0, 2**48 + 1)
    with pytest.raises(InvalidArgumentError, match="start=-1"):
        permute_indices(root(1), -1, 3, 10)
