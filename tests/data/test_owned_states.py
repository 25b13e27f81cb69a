"""Generators that belong to objects are set, saved and restored as their libraries would."""

import random

import numpy as np
import pytest
import torch

from samebits.data._calls.owned_states import WORDS, _SeededState, owned_state


class Named(random.Random):
    """A subclass that changes nothing."""


class Counting(random.Random):
    """A subclass with a stream of its own."""

    def seed(self, *arguments):
        self.number = arguments[0] if arguments else 0

    def getstate(self):
        return (self.number,)

    def setstate(self, state):
        (self.number,) = state

    def random(self):
        self.number += 1
        return self.number


GENERATORS = {
    "PCG64": lambda: np.random.default_rng(2),
    "PCG64DXSM": lambda: np.random.Generator(np.random.PCG64DXSM(2)),
    "Philox": lambda: np.random.Generator(np.random.Philox(2)),
    "SFC64": lambda: np.random.Generator(np.random.SFC64(2)),
    "MT19937": lambda: np.random.Generator(np.random.MT19937(2)),
    "RandomState": lambda: np.random.RandomState(2),
    "RandomState of PCG64": lambda: np.random.RandomState(np.random.PCG64(2)),
    "bits": lambda: np.random.PCG64(2),
    "Random": lambda: random.Random(2),
    "subclass": lambda: Named(2),
    "own stream": lambda: Counting(2),
    "torch": lambda: torch.Generator().manual_seed(2),
}


def draw(generator):
    """Numbers of every kind that leaves something behind: halves of words, and second normals."""
    if isinstance(generator, torch.Generator):
        return torch.randn(3, generator=generator).tolist(), torch.randn(40, generator=generator).tolist()
    if isinstance(generator, np.random.BitGenerator):
        return generator.random_raw(3).tolist()
    if isinstance(generator, Counting):
        return generator.random()
    if isinstance(generator, random.Random):
        return generator.gauss(0, 1), generator.random(), generator.gauss(0, 1), generator.gauss(0, 1)
    small = (
        generator.bytes(4)
        if isinstance(generator, np.random.RandomState)
        else generator.integers(9, dtype=np.uint32)
    )
    return small, generator.normal(size=3).tolist()


def row_of(seed):
    row = np.random.default_rng(seed).integers(0, 2**32, WORDS, dtype=np.uint32)
    row[0] = row[-1] = 624
    return row


@pytest.mark.parametrize("kind", GENERATORS)
def test_a_row_decides_all_that_follows(kind):
    """After `set` two generators with other histories draw alike; another row gives other numbers."""
    one, other = GENERATORS[kind](), GENERATORS[kind]()
    draw(other)
    owned_state(one).set(row_of(1))
    owned_state(other).set(row_of(1))
    first = draw(one)
    assert first == draw(other)
    owned_state(one).set(row_of(2))
    assert draw(one) != first


@pytest.mark.parametrize("kind", GENERATORS)
def test_a_saved_state_comes_back(kind):
    """`restore` continues where `save` was called, whatever was drawn or set since; `mark` tells the states apart."""
    generator = GENERATORS[kind]()
    draw(generator)
    state = owned_state(generator)
    saved, mark = state.save(), state.mark()
    first = draw(generator)
    assert state.mark() != mark
    state.set(row_of(1))
    state.restore(saved)
    assert state.mark() == mark and draw(generator) == first


@pytest.mark.parametrize("kind", ["PCG64", "PCG64DXSM", "MT19937", "RandomState", "Random"])
def test_the_layout_in_memory_is_the_known_one(kind):
    """The fast way is taken with this NumPy and this Python; a stream of one's own is set by its own `seed`."""
    assert type(owned_state(GENERATORS[kind]())).__name__ != "_BitsState"
    assert type(owned_state(GENERATORS[kind]())) is not _SeededState
    assert type(owned_state(Counting(2))) is _SeededState


def test_the_systems_generator_has_no_state():
    """`random.SystemRandom` cannot be set."""
    assert owned_state(random.SystemRandom()) is None
