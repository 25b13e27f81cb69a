"""What is seen of a user's objects."""

import collections
import heapq
import itertools
import random
import sys
import types

import numpy as np
import torch

from samebits._objects.walk import MAX_LEAVES, LeafWalk
from samebits._program import take


class Meter:
    __slots__ = ("total",)

    def __init__(self):
        self.total = 0.0


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)
        self.counter = 0


class Data(torch.utils.data.Dataset):
    def __init__(self):
        self.counter, self.images = 0, np.zeros((300, 8, 8))

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.zeros(1)


def taken(objects):
    """The leaves of objects that are locals of a loop."""
    walk = LeafWalk()
    for name, value in objects.items():
        walk.value(name, value, 0)
    leaves = walk.leaves()
    hashes = [leaves.hashes[at : at + 8] for at in range(0, len(leaves.hashes), 8)]
    return dict(zip(leaves.names, hashes, strict=True))


def changed(objects, change):
    before = taken(objects)
    change()
    after = taken(objects)
    return {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}


def things():
    torch.manual_seed(0)
    things = {
        "meter": Meter(),
        "net": Net(),
        "loader": torch.utils.data.DataLoader(Data()),
        "totals": {"loss": 0.0, "count": 1},
        "history": [1.0, 2.0],
        "window": collections.deque([1, 2], maxlen=4),
        "hidden": torch.zeros(3),
        "rng": np.random.default_rng(0),
        "generator": torch.Generator(),
        "python": random.Random(1),
        "ticket": itertools.count(),
        "space": types.SimpleNamespace(best=1.0),
        "nested": [Meter(), Meter()],
        "names": {"b", "a"},
        "array": np.zeros(5),
        "held": torch.zeros(300, 300),
        "iterator": iter([1, 2, 3]),
        "pairs": zip([1, 2], [3, 4]),
        "stream": (number for number in range(9)),
        "teacher": torch.nn.Sequential(torch.nn.Linear(1, 1)),
        "sampler": torch.utils.data.WeightedRandomSampler(torch.ones(3), 2),
        "scheduler": torch.optim.lr_scheduler.StepLR(torch.optim.SGD([torch.zeros(1)], lr=0.1), 2),
    }
    things["loop"] = things["nested"]
    things["nested"].append(things["nested"])  # a cycle
    return things


def test_every_kind_of_change_is_named_by_its_path():
    """One change changes exactly the leaf that a reader would write in Python; nothing else moves."""
    one = things()

    def increment(thing, name):
        return lambda: setattr(thing, name, getattr(thing, name) + 1)

    assert changed(one, lambda: None) == set()
    assert changed(one, increment(one["meter"], "total")) == {"meter.total"}
    assert changed(one, increment(one["net"], "counter")) == {"net.counter"}
    assert changed(one, increment(one["loader"].dataset, "counter")) == {"loader.dataset.counter"}
    assert changed(one, lambda: one["totals"].update(loss=2.0)) == {"totals['loss']"}
    assert changed(one, lambda: one["history"].append(3.0)) == {"history"}
    assert changed(one, lambda: one["window"].append(3)) == {"window"}
    assert changed(one, lambda: one["hidden"].add_(1)) == {"hidden"}
    assert changed(one, lambda: one["rng"].random()) == {"rng"}
    assert changed(one, lambda: torch.rand(1, generator=one["generator"])) == {"generator"}
    assert changed(one, lambda: one["python"].random()) == {"python"}
    assert changed(one, lambda: next(one["ticket"])) == {"ticket"}
    assert changed(one, increment(one["space"], "best")) == {"space.best"}
    assert changed(one, lambda: one["names"].add("c")) == {"names"}
    assert changed(one, lambda: one["array"].__setitem__(0, -0.0)) == {"array"}
    assert changed(one, lambda: one["held"].add_(1)) == {"held"}
    assert changed(one, lambda: next(one["iterator"])) == {"iterator"}
    assert changed(one, lambda: next(one["pairs"])) == {"pairs[0]", "pairs[1]"}
    assert changed(one, lambda: next(one["stream"])) == {"stream"}
    assert changed(one, lambda: one["teacher"][0].bias.data.add_(1)) == {"teacher.0.bias"}
    assert changed(one, lambda: one["sampler"].weights.add_(1)) == {"sampler.weights"}
    assert changed(one, one["scheduler"].optimizer.step) == set()
    assert "scheduler.last_epoch" in changed(one, one["scheduler"].step)
    assert len(changed(one, increment(one["nested"][1], "total"))) == 1


def test_parameters_of_what_the_run_knows_are_left_to_the_model_component():
    """Given to Run, a model's tensors are hashed once, with the model; its plain attributes still count."""
    net = Net()

    def leaves():
        return take(None, {"net": net})["locals"]

    before = leaves()
    net.layer.weight.data.add_(1)
    assert leaves() == before
    net.counter += 1
    assert leaves() != before


def test_equal_objects_of_two_processes_have_equal_leaves():
    """Addresses, and the order of a set, are not part of a leaf."""
    assert taken(things()) == taken(things())


def test_walk_is_bounded():
    """Thousands of objects cost no more than the bound, and long lists are one leaf."""
    meters = [[Meter() for _ in range(16)] for _ in range(16)]
    deep = {f"d{number}": [meters, list(range(10**5))] for number in range(50)}
    assert len(taken(deep)) <= MAX_LEAVES


def test_a_users_property_that_raises_does_no_harm():
    """Objects are read by their stored attributes: no user code runs."""

    class Sharp:
        def __init__(self):
            self.edge = 1

        @property
        def cut(self):
            raise RuntimeError

        def __getattribute__(self, name):
            return object.__getattribute__(self, name)

    assert set(taken({"sharp": Sharp()})) == {"sharp.edge"}


def test_the_frame_of_the_loop_is_found_behind_library_code():
    """A loop that goes through a library's generator (a progress bar's) is still the user's loop."""
    found = []

    def steps():
        for number in range(3):
            found.append(take(sys._getframe(1), {})["scalars"].names)
            yield number

    def train():
        best = 1.0
        for number in heapq.merge(steps()):
            best = min(best, number)

    train()
    assert all("best" in names for names in found)
