"""`samebits.random.draws`: how often each process-wide generator was drawn from, found from where it stands."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import samebits
from samebits._objects import rng_states
from samebits.errors import UnseededError
from samebits.random import draws
from samebits.random._process import draw_counts, generator_states, mt19937
from samebits.random._process.mt19937 import MAX_TWISTS, WORDS

NONE = {"torch": 0, "numpy": 0, "python": 0}


@pytest.fixture(autouse=True)
def _step(monkeypatch):
    monkeypatch.setattr(draw_counts, "_note", None)
    draw_counts.begin((1, 2))


def seen():
    """Without CUDA devices, which nobody here draws from."""
    return {name: draws()[name] for name in NONE}


@pytest.mark.slow
@settings(max_examples=60)
@given(
    key=st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)),
    counts=st.tuples(*[st.lists(st.integers(1, 1500), max_size=4)] * 3),
)
def test_words_are_counted_exactly(key, counts):
    """Any number of draws in any pieces, over any number of twists, from each generator: their sum, word for word, twice: reading moves nothing."""
    draw_counts.begin(key)
    for number in counts[0]:
        torch.empty(number, dtype=torch.int32).random_()
    for number in counts[1]:
        np.random.bytes(4 * number)
    for number in counts[2]:
        [random.getrandbits(32) for _ in range(number)]
    sums = dict(zip(("torch", "numpy", "python"), map(sum, counts), strict=True))
    assert [seen(), seen()] == [sums, sums]


def test_the_edges_of_a_twist():
    """The counts around multiples of 624, where a state is about to be or has just been twisted, are exact."""
    for number in (1, 623, 624, 625, 1247, 1248, 1249, 62_400):
        draw_counts.begin((3, number))
        torch.empty(number, dtype=torch.int32).random_()
        np.random.bytes(4 * number)
        random.getrandbits(32 * number)
        assert seen() == dict.fromkeys(NONE, number)


def test_more_than_can_be_found_is_many():
    """Up to 1680 twists are counted; one word beyond is "many"."""
    limit = WORDS * MAX_TWISTS
    np.random.bytes(4 * limit)
    assert seen() == {**NONE, "numpy": limit}
    np.random.bytes(4)
    assert seen() == {**NONE, "numpy": "many"}


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("torch", lambda: torch.manual_seed(5)),
        ("torch", lambda: torch.manual_seed(2**63 + 5)),
        ("torch", torch.seed),
        ("numpy", lambda: np.random.seed(5)),
        ("numpy", lambda: np.random.seed([5])),
        ("numpy", lambda: np.random.seed(list(range(40)))),
        ("python", lambda: random.seed(5)),
        ("python", lambda: random.seed(2**200)),
        ("python", lambda: random.seed("a string of a name")),
        ("python", lambda: random.seed(0.5)),
    ],
)
def test_seeding_is_told_from_drawing(name, seed):
    """A generator that was seeded in a step is "reseeded", also when it was drawn from before and after; the others are not."""
    draw = {
        "torch": torch.rand,
        "numpy": np.random.rand,
        "python": lambda n: [random.random() for _ in range(n)],
    }
    draw[name](1000)
    seed()
    assert seen() == {**NONE, name: "reseeded"}
    draw[name](5000)
    assert seen() == {**NONE, name: "reseeded"}


def test_the_same_seed_again_is_reseeding_too():
    """In a step, torch.manual_seed of the very seed of the run shows, though torch.initial_seed() stays what it was."""
    samebits.set_random_seed(7)
    draw_counts.begin((1, 2))
    assert torch.initial_seed() == 7 and seen() == NONE
    torch.manual_seed(7)
    assert torch.initial_seed() == 7 and seen() == {**NONE, "torch": "reseeded"}


def test_a_state_from_elsewhere_is_many_and_one_put_back_is_not():
    """fork_rng leaves no trace; the state of another stream, drawn from, cannot be told from very many draws."""
    with torch.random.fork_rng(devices=[]):
        torch.rand(3)
    assert seen() == NONE
    other = torch.Generator()
    draw_counts.begin((9, 9))
    torch.rand(1)
    other.set_state(torch.get_rng_state())
    draw_counts.begin((1, 2))
    torch.set_rng_state(other.get_state())
    assert seen() == {**NONE, "torch": "many"}


def test_another_kind_of_generator_in_numpy_is_reseeded():
    """A bit generator that is no Mersenne Twister is not the one that the step began with."""
    mersenne = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(5))
    try:
        assert seen() == {**NONE, "numpy": "reseeded"}
    finally:
        np.random.set_bit_generator(mersenne)
    assert seen() == NONE


def test_another_kind_of_generator_in_numpy_forgets_its_kept_normal():
    """Filled twice by one key, it gives the same normals, though one was kept in between."""
    mersenne = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(5))
    try:
        drawn = []
        for _ in range(2):
            generator_states.fill((1, 2))
            drawn.append([np.random.normal() for _ in range(3)])
        assert drawn[0] == drawn[1]
    finally:
        np.random.set_bit_generator(mersenne)


def test_draws_by_keys_are_none():
    """Neither a stateless draw nor one of a generator object moves the process's generators."""
    samebits.random.uniform(samebits.random.key(1), 100)
    samebits.random.Generator.from_seed(1).normal(100)
    torch.rand(100, generator=torch.Generator())
    assert seen() == NONE


def test_views_in_place_are_what_the_libraries_say():
    """The words and positions read in memory are those of get_state and getstate."""
    np.random.rand(5), [random.random() for _ in range(7)]
    state = np.random.get_state(legacy=False)["state"]
    assert rng_states.numpy_words().tolist() == [*state["key"].tolist(), state["pos"]]
    position, words = random.getstate()[1][-1], random.getstate()[1][:-1]
    assert rng_states.python_words().tolist() == [position, *words]


@given(st.lists(st.integers(0, 2**32 - 1), min_size=8, max_size=8).filter(lambda seeds: seeds[-1]))
def test_generators_are_seeded_in_place_as_by_their_own_functions(seeds):
    """Words and positions are what `numpy.random.seed` and `random.seed` of the same words leave."""
    states = []
    for in_place in (True, False):
        np.random.rand(3), random.random()
        words = np.array(seeds, np.uint32)
        if in_place:
            mt19937.seed_in_place(rng_states.numpy_words(), rng_states.python_words(), words, mt19937.BASE)
        else:
            generator_states.seed_numpy_and_python(words)
        states.append((rng_states.numpy_words().tolist(), rng_states.python_words().tolist()))
    assert states[0] == states[1]


def test_a_numpy_that_keeps_its_state_otherwise_is_seeded_by_its_own_function(monkeypatch):
    """Where trying it out says no, the slow way has the same bits; the trial itself fails for a wrong place in memory."""
    generator_states.fill((1, 2))
    fast = np.random.get_state()[1].tolist()
    monkeypatch.setattr(generator_states, "_has_known_layout", lambda: False)
    generator_states.fill((1, 2))
    assert np.random.get_state()[1].tolist() == fast
    monkeypatch.undo()
    monkeypatch.setattr(generator_states, "view_of", lambda owner, address: np.zeros(625, np.uint32))
    assert not generator_states.supports_in_place_seeding.__wrapped__()


def test_each_step_of_a_run_counts_from_zero():
    """Inside a Run, draws() counts the words of this step; after the loop, those since its end."""
    samebits.set_random_seed(1)
    counted = []
    with samebits.Run(None, model=torch.nn.Linear(1, 1)) as run:
        for step, _ in run.steps([0, 1, 2], epochs=1):
            before = seen()
            torch.empty(3 * step.number, dtype=torch.int32).random_()
            np.random.bytes(4)
            counted.append((before, seen()))
    assert counted == [(NONE, {"torch": 3 * n, "numpy": 1, "python": 0}) for n in range(3)]
    assert seen() == NONE


def test_outside_of_a_run_it_counts_from_the_seed(monkeypatch):
    """Without steps, draws() counts since set_random_seed, and raises when there was neither."""
    monkeypatch.setattr(draw_counts, "_note", None)
    with pytest.raises(UnseededError, match="set_random_seed"):
        draws()
    samebits.set_random_seed(4)
    assert seen() == NONE
    torch.empty(2, dtype=torch.int32).random_(), np.random.bytes(4 * 1000), random.getrandbits(96)
    assert seen() == {"torch": 2, "numpy": 1000, "python": 3}
