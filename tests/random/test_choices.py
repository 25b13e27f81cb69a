"""Choices with and without replacement and weights, and categorical draws."""

import bisect
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import samebits.random as sr
from op_testing import over_threads
from samebits.errors import InvalidArgumentError
from samebits.random._draws import choices

INF, NAN = math.inf, math.nan


# --- choice ---


def test_without_weights_it_is_randint_or_the_permutation():
    """With replacement: `randint`; without: the first elements of the permutation, in O(1) memory of the source."""
    key = sr.key(1)
    assert torch.equal(sr.choice(key, 10, 4, 5), sr.randint(key, 4, 5, high=10))
    assert torch.equal(sr.choice(key, 100, 30, replace=False), sr.permutation(key, 100)[:30])
    assert torch.equal(sr.choice(key, 50, 5, 10, replace=False).view(-1), sr.permutation(key, 50))
    assert sr.choice(key, 10**12, 1000, replace=False).unique().numel() == 1000


def test_elements_of_a_tensor_along_a_dimension():
    """The shape takes the dimension's place, as in `jax.random.choice`; gradients flow to what was chosen."""
    source = torch.arange(24.0).view(2, 4, 3).requires_grad_()
    for dim in (1, -2):
        chosen = sr.choice(sr.key(2), source, 5, 6, dim=dim)
        assert chosen.shape == (2, 5, 6, 3)
        assert torch.equal(chosen, source[:, sr.choice(sr.key(2), 4, 5, 6)])
    sr.choice(sr.key(2), source, 2, dim=1, replace=False).sum().backward()
    assert source.grad.sum() == 2 * 6 and source.grad.max() == 1
    assert sr.choice(sr.key(2), source).shape == (4, 3)


WEIGHTS = st.lists(
    st.one_of(st.just(0.0), st.floats(0, 1e300), st.floats(0, 1), st.just(5e-324)), min_size=1, max_size=9
)


@settings(derandomize=True, deadline=None)
@given(WEIGHTS.filter(any))
def test_weights_become_integers(weights):
    """Integers in proportion to half a unit, at least 1 for what is positive; their sum fits int64."""
    integers = choices._as_integers(torch.tensor(weights, dtype=torch.float64)).tolist()
    assert 0 < sum(integers) < 2**63
    unit = Fraction(max(weights)) / Fraction(integers[weights.index(max(weights))])
    for weight, integer in zip(weights, integers, strict=True):
        assert (integer == 0) == (weight == 0)
        assert integer == 1 or abs(Fraction(weight) / unit - integer) <= Fraction(51, 100)


@pytest.mark.slow
@settings(derandomize=True, deadline=None)
@given(WEIGHTS.filter(any), st.integers(0, 2**64 - 1))
def test_weighted_choice_is_exact_arithmetic(weights, seed):
    """The index is the first whose integer sum of weights is above an unbiased integer below the total."""
    weights = torch.tensor(weights, dtype=torch.float64)
    sums = list(itertools.accumulate(choices._as_integers(weights).tolist()))
    drawn = sr.randint(sr.key(seed), 20, high=sums[-1]).tolist()
    expected = [bisect.bisect_right(sums, number) for number in drawn]
    assert sr.choice(sr.key(seed), len(weights), 20, weights=weights).tolist() == expected
    assert all(weights[index] > 0 for index in expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_weights_are_probabilities(dtype):
    """Counts are as the weights say by chi-square, and not as equal weights say."""
    weights = torch.tensor([1, 0, 2, 5, 0.5 if dtype.is_floating_point else 3, 0], dtype=dtype)
    drawn = sr.choice(sr.key(3), 6, 100_000, weights=weights)
    counts = torch.bincount(drawn, minlength=6)
    positive = weights > 0
    assert counts[~positive].sum() == 0
    expected = (weights.double() / weights.double().sum() * 100_000)[positive].numpy()
    assert stats.chisquare(counts[positive].numpy(), expected).pvalue > 1e-4
    assert stats.chisquare(counts[positive].numpy()).pvalue < 1e-100


def test_weighted_without_replacement_is_successive_sampling():
    """Ordered triples of 4 come as when each is drawn from what is left; independent draws do not have that law."""
    w = np.array([4.0, 2.0, 1.0, 3.0])
    keys = sr.split(sr.key(4), 20_000).view(-1, 1, 2)
    drawn = sr.choice(keys, 4, 20_000, 3, replace=False, weights=torch.from_numpy(w)).numpy()
    triples = list(itertools.permutations(range(4), 3))
    law = [w[i] / 10 * w[j] / (10 - w[i]) * w[k] / (10 - w[i] - w[j]) for i, j, k in triples]
    index = {triple: at for at, triple in enumerate(triples)}
    counts = np.bincount([index[tuple(row)] for row in drawn.tolist()], minlength=24)
    assert stats.chisquare(counts, 20_000 * np.array(law)).pvalue > 1e-4
    wrong = np.array([w[i] * w[j] * w[k] for i, j, k in triples])
    assert stats.chisquare(counts, 20_000 * wrong / wrong.sum()).pvalue < 1e-50


def test_weights_of_any_size_without_replacement():
    """Weights that are 500 orders of magnitude apart give all elements of positive weight, the heavy ones first."""
    weights = torch.tensor([5e-324, 0.0, 1e200, 1e-50, 1e-290, 0.0, 1e200], dtype=torch.float64)
    for seed in range(20):
        order = sr.choice(sr.key(seed), 7, 5, replace=False, weights=weights).tolist()
        assert sorted(order[:2]) == [2, 6] and order[2:] == [3, 4, 0]


@settings(derandomize=True, deadline=None)
@given(
    st.integers(1, 3),
    st.lists(st.sampled_from([0.0, 1.0, 2.0, 3.0, INF]), min_size=1, max_size=40),
    st.data(),
)
def test_ties_go_to_the_first(rows, values, data):
    """The smallest values of each row are those of a stable sort, whatever `topk` does with equals."""
    number = data.draw(st.integers(1, len(values)))
    table = torch.tensor([values] * rows)
    table[-1] = table[-1].flip(0)
    assert torch.equal(choices._smallest(table, number), table.argsort(dim=1, stable=True)[:, :number])


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.integers(0, 3), st.integers(0, 4), st.booleans(), st.booleans())
def test_batches_are_single_choices(rows, each, replace, weighted):
    """Each key of a batch chooses as if alone, in all four ways."""
    weights = torch.tensor([1.0, 2.0, 0.0, 3.0, 4.0, 5.0]) if weighted else None
    keys = sr.split(sr.key(5), 3)[:rows].view(rows, 1, 2)
    chosen = sr.choice(keys, 6, rows, each, replace=replace, weights=weights)
    assert chosen.shape == (rows, each) and chosen.dtype is torch.int64
    for row in range(rows):
        assert torch.equal(chosen[row], sr.choice(keys[row, 0], 6, each, replace=replace, weights=weights))
        assert replace or chosen[row].unique().numel() == each


def test_threads_do_not_matter_to_choices():
    """1 to 8 threads choose the same, with and without replacement and weights."""
    weights = sr.uniform(sr.key(9), 100_000)
    seen, _ = over_threads(
        lambda: [
            sr.choice(sr.key(6), 100_000, 50_000, replace=replace, weights=w)
            for replace in (True, False)
            for w in (None, weights)
        ],
        range(1, 9),
    )
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("source", "arguments", "match"),
    [
        (3, {"replace": False}, r"4 elements of 3 were requested; ask for fewer, or give replace=True"),
        (0, {}, "4 elements of 0 were requested; there must be one"),
        (3, {"weights": torch.tensor([1.0, 0, 1]), "replace": False}, "4 elements of 2 of positive weight"),
        (3, {"weights": torch.zeros(3)}, "all weights are zero"),
        (3, {"weights": torch.tensor([1.0, -1, 1])}, "finite and not negative"),
        (3, {"weights": torch.tensor([1.0, NAN, 1])}, "finite and not negative"),
        (3, {"weights": torch.tensor([1.0, INF, 1])}, "finite and not negative"),
        (3, {"weights": torch.ones(4)}, r"shape \(3,\), got \(4,\)"),
        (3, {"weights": torch.ones(3, 1)}, r"got \(3, 1\)"),
        (3, {"weights": [1, 2, 3]}, "got list"),
        (-1, {}, "source must be 0 to 2"),
        (2.5, {}, "source must be an int or a tensor, got 2.5"),
        (torch.ones(3), {"dim": 2}, "has no dimension 2"),
    ],
)
def test_wrong_choices_are_named(source, arguments, match):
    """What cannot be chosen from raises and says why; nothing can be chosen from nothing."""
    with pytest.raises(InvalidArgumentError, match=match):
        sr.choice(sr.key(1), source, 4, **arguments)
    assert sr.choice(sr.key(1), 0, 0, 5).shape == (0, 5)
    assert sr.choice(sr.key(1), torch.empty(2, 0), 0, dim=1).shape == (2, 0)


# --- categorical ---


def definition(key, shape, logits):
    """The index of the largest Gumbel number + logit, by numpy, whose argmax takes the first of equals."""
    dtype = torch.float64 if logits.dtype is torch.float64 else torch.float32
    logits = logits.to(dtype)
    noise = sr.gumbel(key, *shape, logits.shape[-1], dtype=dtype)
    return (noise + (logits - logits.amax(-1, keepdim=True))).numpy().argmax(-1)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.data(), st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]))
def test_categorical_is_its_definition(data, dtype):
    """For any shape that the logits broadcast to: the first maximum of the logits and Gumbel numbers of the key."""
    shape = data.draw(st.lists(st.integers(0, 4), max_size=3))
    kept = shape[data.draw(st.integers(0, len(shape))) :]
    leading = [data.draw(st.sampled_from([1, size])) for size in kept]
    n = data.draw(st.integers(1, 9))
    logits = (5 * sr.normal(sr.key(1), *leading, n)).to(dtype)
    drawn = sr.categorical(sr.key(2), tuple(shape), logits=logits)
    assert drawn.dtype is torch.int64 and list(drawn.shape) == shape
    assert (drawn.numpy() == definition(sr.key(2), shape, logits)).all()
    if logits.numel():
        assert torch.equal(
            sr.categorical(sr.key(2), logits=logits), sr.categorical(sr.key(2), leading, logits=logits)
        )


@pytest.mark.parametrize(("samples", "n"), [(3_000_001, 2), (4001, 1100), (5, 1_500_000), (9, 700_001)])
def test_many_samples_are_drawn_in_parts(samples, n):
    """Where the Gumbel numbers would fill the memory, they come in parts, and the result is the same."""
    logits = sr.normal(sr.key(1), n)
    drawn = sr.categorical(sr.key(3), samples, logits=logits)
    if samples * n < 10**7:
        assert (drawn.numpy() == definition(sr.key(3), (samples,), logits)).all()
    assert len(list(choices._slabs(1, samples, n))) > 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_categorical_has_the_softmax_law(dtype):
    """Counts are as softmax says by chi-square; -inf never comes; other temperatures are told apart."""
    logits = torch.tensor([0.3, -INF, 1.5, -2.0, 0.0], dtype=dtype)
    counts = torch.bincount(sr.categorical(sr.key(4), 200_000, logits=logits), minlength=5).numpy()
    law = logits.double().softmax(0).numpy()
    keep = law > 0
    assert counts[1] == 0
    assert stats.chisquare(counts[keep], 200_000 * law[keep]).pvalue > 1e-4
    other = (1.05 * logits.double()).softmax(0).numpy()[keep]
    assert stats.chisquare(counts[keep], 200_000 * other).pvalue < 1e-4


def test_large_logits_keep_their_law():
    """Logits that are large together are shifted first: adding Gumbel numbers to 1e9 in float32 would always draw 0."""
    logits = torch.full((4,), 1e9)
    counts = torch.bincount(sr.categorical(sr.key(5), 40_000, logits=logits), minlength=4).numpy()
    assert stats.chisquare(counts).pvalue > 1e-4
    unshifted = (sr.gumbel(sr.key(5), 40_000, 4) + logits).argmax(-1)
    assert torch.bincount(unshifted, minlength=4)[0] > 39_000


@settings(derandomize=True, deadline=None, max_examples=20)
@given(st.integers(0, 3), st.integers(0, 4))
def test_batches_are_single_draws(rows, each):
    """Each key of a batch draws as if alone, from its own logits."""
    keys = sr.split(sr.key(5), 3)[:rows].view(rows, 1, 2)
    logits = sr.normal(sr.key(6), rows, 1, 5)
    drawn = sr.categorical(keys, rows, each, logits=logits)
    for row in range(rows):
        assert torch.equal(drawn[row], sr.categorical(keys[row, 0], each, logits=logits[row]))


def test_threads_do_not_matter_to_categorical():
    """1 to 8 threads draw the same."""
    logits = sr.normal(sr.key(7), 64, 5000)
    seen, _ = over_threads(lambda: sr.categorical(sr.key(8), 3, 64, logits=logits), range(1, 9))
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("shape", "logits", "match"),
    [
        ((), torch.tensor([[0.0, 1.0], [NAN, 0.0]]), "there is a NaN"),
        ((), torch.tensor([0.0, INF]), "a \\+inf"),
        ((), torch.tensor([[0.0, 1.0], [-INF, -INF]]), "a row of -inf only"),
        ((), torch.zeros(3, 0), "have no category"),
        ((), torch.tensor(1.0), "got torch.float32 of shape"),
        ((), torch.tensor([1, 2]), "got torch.int64"),
        ((), [1.0, 2.0], "got list"),
        ((3,), torch.zeros(2, 4), "do not broadcast"),
        ((2, 3), torch.zeros(2, 4), "do not broadcast"),
        ((), torch.zeros(2, 0, dtype=torch.float64), "have no category"),
    ],
)
def test_wrong_logits_are_named(shape, logits, match):
    """Logits without a law, and shapes that do not fit them, raise and say why."""
    with pytest.raises(InvalidArgumentError, match=match):
        sr.categorical(sr.key(1), *shape, logits=logits)
