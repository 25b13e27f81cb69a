"""The search for generators that objects hold."""

import functools
import random
import sys
import types

import numpy as np
import pytest
import torch

from samebits._objects import generators as module
from samebits._objects.generators import generators_in

GENERATOR = np.random.default_rng(3)


class Slotted:
    __slots__ = ("draws",)

    def __init__(self, draws):
        self.draws = draws


class OfClass:
    draws = random.Random(1)


def of_global(x):
    return GENERATOR.random() + x


def by_default(x, draws=np.random.RandomState(1)):
    return draws.normal() + x


def closure(draws):
    return lambda x: draws.random() + x


PLACES = {
    "attribute": (lambda g: types.SimpleNamespace(draws=g), "root.draws"),
    "slot": (lambda g: Slotted(g), "root.draws"),
    "list": (lambda g: [1, [g]], "root[1][0]"),
    "dict": (lambda g: {"draws": g}, "root['draws']"),
    "closure": (closure, "draws"),
    "partial": (lambda g: functools.partial(print, g), "root[0]"),
    "bound method": (lambda g: types.SimpleNamespace(draw=g.random), "root.draw.__self__"),
    "torch's dataset": (
        lambda g: torch.utils.data.Subset(types.SimpleNamespace(draws=g), [0]),
        "root.dataset.draws",
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_generators_are_found_where_they_are(place):
    """Attributes, slots, items, closures, arguments and methods; the path is the text that reaches it."""
    make, path = PLACES[place]
    generator = np.random.default_rng(1)
    ((found, value),) = generators_in([("root", make(generator))])
    assert value is generator and found == path


def test_what_functions_and_classes_hold_is_found():
    """A global variable, a default, a class attribute, an attribute of a module of the user's."""
    assert [one.generator for one in generators_in([("f", of_global)])] == [GENERATOR]
    assert [one.path for one in generators_in([("f", by_default)])] == ["draws"]
    assert [one.path for one in generators_in([("f", OfClass())])] == ["OfClass.draws"]


def test_a_generator_in_a_module_of_the_users_is_found(tmp_path, monkeypatch):
    """`transforms.draws.random()`: the module is not searched, but what the function names of it is."""
    (tmp_path / "own_transforms_module.py").write_text(
        "import random\ndraws = random.Random(1)\nother = random.Random(2)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_program_module.py").write_text(
        "import own_transforms_module as own\n\ndef f(x):\n    return own.draws.random() + x\n"
    )
    program = __import__("own_program_module")
    assert [one.path for one in generators_in([("f", program.f)])] == ["own.draws"]
    del sys.modules["own_program_module"], sys.modules["own_transforms_module"]


def test_the_processs_generators_and_plain_objects_are_left_out():
    """Negative control: what draws from the global generators holds none."""
    draws = types.SimpleNamespace(
        a=random.random, b=np.random.rand, c=torch.default_generator, d=[1, "x", torch.ones(2)]
    )
    assert generators_in([("root", draws)]) == []


def test_samples_do_not_hide_a_transform():
    """More nested samples than the search visits: the transform beside them is found all the same."""
    samples = [{"boxes": [[n, [n]] for n in range(99)]} for _ in range(999)]
    generator = random.Random(1)
    dataset = types.SimpleNamespace(samples=samples, transform={"parts": [[[generator]]]})
    assert [one.generator for one in generators_in([("dataset", dataset)])] == [generator]
    assert len(samples) * 99 > module.MOST_OBJECTS
