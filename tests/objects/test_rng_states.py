"""The states of generators: read in place as the libraries give them out, hashed, and put back."""

import random

import numpy as np
import pytest
import torch

import samebits
from samebits import replica
from samebits._objects import rng_states

MAKERS = {
    "torch.Generator": (lambda: torch.Generator().manual_seed(1), lambda g: torch.rand(3, generator=g).tolist()),
    "random.Random": (lambda: random.Random(1), lambda g: [g.random(), g.gauss(0, 1)]),
    "RandomState": (lambda: np.random.RandomState(1), lambda g: [*g.rand(3), g.normal()]),
    "RandomState of PCG64": (lambda: np.random.RandomState(np.random.PCG64(1)), lambda g: [*g.rand(3), g.normal()]),
    **{
        f"Generator of {kind.__name__}": (lambda kind=kind: np.random.Generator(kind(1)), lambda g: g.random(3).tolist())
        for kind in (np.random.MT19937, np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64)
    },
    "PCG64": (lambda: np.random.PCG64(1), lambda g: g.random_raw(3).tolist()),
}  # fmt: skip


@pytest.mark.parametrize("name", MAKERS)
def test_a_generator_object_is_read_and_put_back(name):
    """The draws after `restore_state` are those after `state_of`, kept normals included; the hash moves with each draw."""
    make, draw = MAKERS[name]
    generator = make()
    draw(generator)
    state, hashed = rng_states.state_of(generator), rng_states.of_generator(generator)
    first = draw(generator)
    assert rng_states.of_generator(generator) != hashed
    rng_states.restore_state(generator, state)
    assert rng_states.of_generator(generator) == hashed
    assert draw(generator) == first


def test_generators_that_cannot_be_put_back_are_read():
    """A SeedSequence counts its children, samebits' own generator its draws; `random.SystemRandom` has no state."""
    sequence, own = np.random.SeedSequence(1), samebits.random.Generator.from_seed(1)
    before = rng_states.of_generator(sequence), rng_states.of_generator(own)
    sequence.spawn(1), own.normal(2)
    assert rng_states.of_generator(sequence) != before[0]
    assert rng_states.of_generator(own) != before[1]
    assert rng_states.state_of(random.SystemRandom()) is None
    assert not issubclass(samebits.random.Generator, rng_states.RESTORABLE)


def test_a_replica_capture_of_a_step_with_system_random_runs():
    """A step that reaches a `random.SystemRandom` is captured: there is nothing to put back."""
    names = random.SystemRandom()

    def step(x):
        return x * 2 if names else x

    assert replica.capture(step, torch.ones(2), world_size=2)


def test_the_place_in_memory_is_the_state_of_the_libraries():
    """What is read in place is what `get_state` and `getstate` give out, before and after draws and kept normals."""
    for draw in (lambda: None, lambda: (np.random.rand(3), random.random()), lambda: (np.random.normal(), random.gauss(0, 1))):  # fmt: skip
        draw()
        states, numpy = rng_states.of_process(), np.random.get_state(legacy=False)
        assert states.python_state() == random.getstate()
        seen = states.numpy_state()
        assert seen["state"]["key"].tolist() == numpy["state"]["key"].tolist()
        seen["state"], numpy["state"] = seen["state"]["pos"], numpy["state"]["pos"]
        assert seen == numpy
        assert states.torch == torch.get_rng_state().numpy().tobytes()


def test_a_python_that_keeps_its_words_elsewhere_is_asked(monkeypatch):
    """Where trying it out says no, `getstate` and `get_state` are asked, and put back the same draws."""
    monkeypatch.setattr(rng_states, "_PYTHON_WORDS", None)
    monkeypatch.setattr(rng_states, "_KEPT_NORMAL", None)
    words, position = random.getstate()[1][:-1], random.getstate()[1][-1]
    assert rng_states.python_words().tolist() == [position, *words]
    states = rng_states.of_process()
    drawn = random.random(), np.random.rand()
    assert rng_states.of_process() != states
    states.restore()
    assert rng_states.of_process() == states
    assert (random.random(), np.random.rand()) == drawn


def test_the_trial_fails_for_a_wrong_place(monkeypatch):
    """Negative control of the places that are tried out at import."""
    assert rng_states._has_cpython_layout()
    assert rng_states._kept_normal() is not None
    monkeypatch.setattr(rng_states, "_whole", lambda found: bytes(4096))
    assert not rng_states._has_cpython_layout()
    assert rng_states._kept_normal() is None
