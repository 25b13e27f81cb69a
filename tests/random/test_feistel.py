"""The keyed permutation of indices."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import samebits.random as sr
from op_testing import over_threads
from samebits.errors import InvalidArgumentError
from samebits.random._draws import feistel
from samebits.random._draws.feistel import permute_indices
from samebits.random._int_keys import fold, root


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


def reference(key, i, n, rounds=10):
    """The image of one index, from the definition, in Python integers."""
    stream = np.empty(2 * rounds, np.uint32)
    feistel.philox.fill_words(*fold(key, "samebits.random.permutation"), stream)
    keys = [int(word) for word in stream.view(np.uint64)]

    def below(x, round_key, size):
        x = (x ^ round_key) * 0xFF51AFD7ED558CCD % 2**64
        x = (x ^ x >> 33) * 0xC4CEB9FE1A85EC53 % 2**64
        return ((x ^ x >> 33) >> 24) * size >> 40

    rows = math.isqrt(n - 1) + 1
    columns = -(-n // rows)
    columns += rows % 2 and columns % 2  # never both odd
    while True:
        column, row = divmod(i, rows)
        for pair in range(rounds // 2):
            row = (row + below(column, keys[2 * pair], rows)) % rows
            column = (column + below(row, keys[2 * pair + 1], columns)) % columns
        i = column * rows + row
        if i < n:
            return i


SIZES = st.one_of(
    st.integers(65, 10**4), st.integers(65, 2**48), st.sampled_from([2**48, 2**48 - 1, 2**24 + 1, 10**9])
)


@settings(derandomize=True, deadline=None, max_examples=80)
@given(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)), SIZES, st.data())
def test_images_are_the_reference(key, n, data):
    """Vector loops, given indices and walks out of range(n) have the images of the definition, up to n = 2**48."""
    indices = data.draw(st.lists(st.one_of(st.integers(0, n - 1), st.just(n - 1)), max_size=20))
    images = sr.permute_index(key, torch.tensor(indices, dtype=torch.int64), n)
    assert images.tolist() == [reference(key, i, n) for i in indices]
    start = data.draw(st.integers(0, n - 1))
    stop = min(n, start + 30)
    assert permute_indices(key, start, stop, n).tolist() == [reference(key, i, n) for i in range(start, stop)]


@pytest.mark.parametrize("n", [1, 5, 64, 65, 1000, 100_003])
def test_indices_in_bulk_are_single_ones(n):
    """A tensor of indices, of any shape and stride, gives the images that single ones have, for each form of a key."""
    whole = torch.from_numpy(permute_indices(root(4), 0, n, n))
    indices = torch.randint(0, n, (40, 7), generator=torch.Generator().manual_seed(n))
    assert torch.equal(sr.permute_index(sr.key(4), indices, n), whole[indices])
    assert torch.equal(sr.permute_index(root(4), indices.t()[1:, ::3], n), whole[indices.t()[1:, ::3]])
    assert torch.equal(sr.permute_index(root(4), torch.arange(n), n), whole)
    assert sr.permute_index(root(4), torch.empty(0, 3, dtype=torch.int64), n).shape == (0, 3)
    assert sr.permute_index(root(4), 0, n) == whole[0]


def test_a_billion_takes_no_memory():
    """Indices of a set of 10**9 are permuted without it: distinct images, and even over its tenths."""
    images = sr.permute_index(root(6), torch.arange(0, 10**9, 10**4), 10**9).numpy()
    assert np.unique(images).size == 10**5
    assert abs(chi_square(np.bincount(images // 10**8, minlength=10), 10**4)) < 5


@pytest.mark.parametrize("n", [0, 1, 30, 64, 65, 5000, 100_000])
def test_permutation_is_permute_index(n):
    """`permutation(key, n)` is the image of every index, and shuffles a tensor by them along any dimension."""
    order = sr.permutation(sr.key(2), n)
    assert order.dtype is torch.int64
    assert torch.equal(order, sr.permute_index(sr.key(2), torch.arange(n), n))
    assert torch.equal(order.sort().values, torch.arange(n))
    source = torch.arange(3 * n).view(3, n)
    assert torch.equal(sr.permutation(sr.key(2), source, dim=-1), source[:, order])
    assert torch.equal(sr.permutation(sr.key(2), source.t()), source.t()[order])


@settings(derandomize=True, deadline=None, max_examples=20)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=2), st.sampled_from([0, 3, 64, 65, 700]))
def test_batches_of_keys_are_single_keys(batch, n):
    """Each key of a batch gives its own permutation, of numbers and of tensors."""
    keys = sr.split(sr.key(3), 9)[: math.prod(batch)].view(*batch, 2)
    source = torch.arange(2 * n).view(2, n)
    orders, shuffled = sr.permutation(keys, n), sr.permutation(keys, source, dim=1)
    assert orders.shape == (*batch, n) and shuffled.shape == (*batch, 2, n)
    for row in np.ndindex(*batch):
        assert torch.equal(orders[row], sr.permutation(keys[row], n))
        assert torch.equal(shuffled[row], sr.permutation(keys[row], source, dim=1))


def test_threads_do_not_matter():
    """1 to 8 threads give the same permutations, whole, of indices and of many keys."""
    indices = torch.arange(10**9 - 50_000, 10**9)
    keys = sr.split(sr.key(2), 200)
    seen, _ = over_threads(
        lambda: [
            sr.permutation(sr.key(1), 100_001),
            sr.permute_index(sr.key(1), indices, 10**9),
            sr.permutation(keys, 301),
        ],
        range(1, 9),
    )
    assert len(seen) == 1


def test_shuffling_is_differentiable():
    """Gradients of a shuffled tensor go back to where its elements came from."""
    source = torch.ones(10, requires_grad=True)
    weights = torch.arange(10.0)
    (sr.permutation(sr.key(1), source) * weights).sum().backward()
    assert torch.equal(source.grad[sr.permutation(sr.key(1), 10)], weights)


def test_wrong_arguments_are_named():
    """Indices outside the range or of another dtype, and sources that are none, raise and say so."""
    with pytest.raises(InvalidArgumentError, match="indices -1 to 3, n=10"):
        sr.permute_index(root(1), torch.tensor([3, -1]), 10)
    with pytest.raises(InvalidArgumentError, match="indices 0 to 10, n=10"):
        sr.permute_index(root(1), torch.tensor([0, 10]), 10)
    with pytest.raises(
        InvalidArgumentError, match=r"int64 tensor on the key's device \(cpu\), got torch.int32"
    ):
        sr.permute_index(root(1), torch.tensor([1], dtype=torch.int32), 10)
    with pytest.raises(InvalidArgumentError, match="source must be 0 to 2"):
        sr.permutation(sr.key(1), -1)
    with pytest.raises(InvalidArgumentError, match=r"source must be an int or a tensor, got 'abc'"):
        sr.permutation(sr.key(1), "abc")
    with pytest.raises(InvalidArgumentError, match=r"source of shape \(3,\) has no dimension 1"):
        sr.permutation(sr.key(1), torch.zeros(3), dim=1)
    with pytest.raises(InvalidArgumentError, match=r"source of shape \(\) has no dimension 0"):
        sr.permutation(sr.key(1), torch.tensor(3))
    with pytest.raises(InvalidArgumentError, match=r"key\(seed\)"):
        sr.permutation(root(1), 3)
