"""`samebits.state.attributes`: what an object holds is saved as values and restored, and what cannot be is
named at once.
"""

import argparse
import copy
import dataclasses
import enum
import logging
import pathlib
import random
import re
import socket
import threading
from collections import Counter, deque

import numpy as np
import pytest
import torch
from torch import nn

import samebits
from samebits.checkpoint._codec import decode, encode
from samebits.errors import InvalidArgumentError, RunMismatchError
from samebits.state import attributes


class Mode(enum.Enum):
    EXPLORE = 1
    EXPLOIT = 2


class Inner:
    __slots__ = ("count", "generator")

    def __init__(self):
        self.count, self.generator = 0, np.random.default_rng(3)


class Machine:
    """State of every kind that can be saved, and what every program holds beside it."""

    def __init__(self, seed):
        self.number, self.text, self.nothing, self.mode = seed, "a", None, Mode.EXPLORE
        self.array, self.tensor = np.full(3, float(seed)), torch.full((2,), float(seed))
        self.log, self.seen, self.table = (
            deque([seed], maxlen=3),
            Counter("ab"),
            {("a", 1): [1.5, np.int8(2)]},
        )
        self.parts = [Inner(), Inner()]
        self.by_name = {"x": Inner(), 3: random.Random(seed)}
        self.own, self.legacy = torch.Generator().manual_seed(seed), np.random.RandomState(seed)
        self.options = argparse.Namespace(rate=0.5)
        self.lock, self.logger, self.path, self.function = (
            threading.Lock(),
            logging.getLogger("x"),
            pathlib.Path("a"),
            len,
        )
        self.shared = self.array
        self.me = self

    def step(self):
        """Changes every part, in place or not, and returns numbers that depend on all."""
        self.number += 1
        self.text += "b"
        self.nothing = self.number if self.nothing is None else None
        self.mode = Mode.EXPLOIT if self.number % 2 else Mode.EXPLORE
        self.array += self.by_name[3].random()
        self.tensor = self.tensor + torch.rand(2, generator=self.own)
        self.log.append(self.legacy.rand())
        self.seen["a"] += 1
        self.table[("a", 1)].append(self.number)
        self.options.rate *= 0.9
        self.added = getattr(self, "added", 0) + 1
        for part in (*self.parts, self.by_name["x"]):
            part.count += part.generator.integers(9)
        counts = [part.count for part in self.parts]
        return repr((
            self.number, self.text, self.nothing, self.mode, self.array, self.shared, self.tensor, self.log, self.seen,
            self.table, self.options.rate, counts, self.by_name["x"].count, self.added,
        ))  # fmt: skip


def through_a_commit(adapter):
    return copy.deepcopy(decode(*encode(adapter.state_dict())))


def test_every_kind_of_state_comes_back():
    """Values, arrays, generators, nested objects and items continue as if nothing had happened; another
    object (control) does not.
    """
    first = Machine(1)
    adapter = attributes(first)
    for _ in range(3):
        first.step()
    saved = through_a_commit(adapter)
    expected = [first.step() for _ in range(5)]
    second = Machine(2)
    held = second.array
    attributes(second).load_state_dict(saved)
    assert [second.step() for _ in range(5)] == expected
    assert second.shared is second.array is held and second.me is second
    assert [Machine(2).step() for _ in range(5)] != expected


def test_a_state_of_before_takes_away_what_came_later():
    """An attribute that was set after the commit is gone after a restoration, and set anew by the same
    program.
    """
    machine = Machine(1)
    adapter = attributes(machine)
    saved = through_a_commit(adapter)
    expected = [machine.step() for _ in range(3)]
    adapter.load_state_dict(saved)
    assert not hasattr(machine, "added")
    assert [machine.step() for _ in range(3)] == expected


def test_what_was_assigned_is_assigned_and_what_was_filled_is_filled():
    """An array that the program replaced is not written into a shared constant; one that it changed in place
    keeps its references.
    """
    default = np.zeros(2)

    class Env:
        def __init__(self):
            self.state, self.buffer = default, np.zeros(2)

    first = Env()
    adapter = attributes(first)
    first.state = first.state + 1
    first.buffer += 5
    saved = through_a_commit(adapter)
    second = Env()
    buffer = second.buffer
    attributes(second).load_state_dict(saved)
    assert second.state.tolist() == [1, 1] and default.tolist() == [0, 0]
    assert buffer.tolist() == [5, 5] and second.buffer is buffer


def test_named_attributes_alone_are_saved():
    """With paths, only these are restored: an attribute, one of an inner object, an item."""
    first, second = Machine(1), Machine(2)
    adapter = attributes(first, "number", "parts[1].count", "by_name['x'].generator", "by_name[3]")
    first.step()
    attributes(second, "number", "parts[1].count", "by_name['x'].generator", "by_name[3]").load_state_dict(
        through_a_commit(adapter)
    )
    assert (second.number, second.parts[1].count) == (first.number, first.parts[1].count)
    assert second.by_name[3].random() == first.by_name[3].random()
    assert second.by_name["x"].generator.random() == first.by_name["x"].generator.random()
    assert second.text == "a" and second.array.tolist() == [2, 2, 2]


class Forwarding:
    def __init__(self):
        self.inner = Machine(1)

    def __getattr__(self, name):
        return getattr(vars(self)["inner"], name)


@pytest.mark.parametrize(
    ("make", "paths", "text"),
    [
        (lambda: Machine(1), ["numbr"], "there is no 'numbr'"),
        (lambda: Machine(1), ["parts[7].count"], r"there is no 'parts\[7\].count' \(IndexError"),
        (Forwarding, ["number"], "there is no 'number'.*path to the object that holds it"),
        (lambda: Machine(1), ["a b"], "not a path. Write it"),
        (lambda: Machine(1), [3], "paths are str"),
        (lambda: argparse.Namespace(model=nn.Linear(1, 1)), ["model"], "model is an object with a state_dict. Give it to the run"),
        (lambda: argparse.Namespace(a=socket.socket()), [], r"a is a socket.socket, whose state.*ignore=\[\"a\"\]"),
        (lambda: argparse.Namespace(a=type("L", (list,), {})()), [], r"a is a .*L, whose state"),
        (lambda: argparse.Namespace(a={Mode}), [], "a is a set of objects"),
        (lambda: argparse.Namespace(a=np.array([None])), [], "a is an array of objects"),
        (lambda: argparse.Namespace(a=torch.ones(1, requires_grad=True) * 2), [], "a is a tensor of a graph"),
        (lambda: argparse.Namespace(a=iter([1])), [], "a is a builtins.list_iterator"),
        (lambda: argparse.Namespace(a=random.SystemRandom()), [], "a is a random.SystemRandom"),
    ],
)  # fmt: skip
def test_what_cannot_be_saved_is_named_at_once(make, paths, text):
    """A path that leads nowhere, and a value whose state is not in attributes, raise with the name; without
    them (control) it works.
    """
    with pytest.raises(InvalidArgumentError, match=f"(?s){text}"):
        attributes(make(), *paths)
    thing = make()
    attributes(thing, ignore=["a", "model"]).state_dict()


def test_a_state_of_another_object_is_refused():
    """A state of another class is refused; a path that differs is set."""
    saved = through_a_commit(attributes(Machine(1)))
    with pytest.raises(RunMismatchError, match="is of a Machine, this is a Inner"):
        attributes(Inner()).load_state_dict(saved)
    other = Machine(1)
    other.path = pathlib.Path("b")
    attributes(other).load_state_dict(saved)
    assert other.path == Machine(1).path


@dataclasses.dataclass(frozen=True)
class Entry:
    n: int
    seen: list[int]


class Node:
    __slots__ = ("child", "n")

    def __init__(self, n, child=None):
        self.n, self.child = n, child


class Cleaned(Node):
    def __del__(self):
        pass


class Tree:
    def __init__(self):
        self.entries, self.by_name, self.recent, self.best = [], {}, deque(maxlen=3), None


def test_objects_that_the_loop_has_added_are_made_again():
    """In lists, dicts, deques and attributes, without a call of their class; one object stays one, what was removed is gone."""
    grown, fresh = Tree(), Tree()
    fresh.entries.append(Entry(7, [7]))
    kept, adapter = fresh.entries, attributes(grown)
    grown.entries += [Entry(n, [n]) for n in range(3)]
    grown.best = grown.entries[1]
    grown.by_name = {"b": Node(2, Node(1)), "a": grown.best}
    grown.recent.extend(grown.entries)
    attributes(fresh).load_state_dict(through_a_commit(adapter))
    assert fresh.entries is kept
    assert fresh.entries == grown.entries
    assert [*fresh.by_name] == ["b", "a"]
    assert (fresh.by_name["b"].n, fresh.by_name["b"].child.n, fresh.by_name["b"].child.child) == (2, 1, None)
    assert fresh.best is fresh.entries[1] is fresh.by_name["a"] is fresh.recent[1]
    del grown.entries[1:]
    attributes(fresh).load_state_dict(through_a_commit(adapter))
    assert fresh.entries == grown.entries


def test_objects_that_cannot_be_made_again_are_refused_when_they_are_saved():
    """With a function in them, or of a class with `__del__`: named at the commit; a state that names such a class makes nothing."""
    for added, reason in ((Node(print), "with entries[0].n"), (Cleaned(1), "of a class")):
        tree = Tree()
        adapter = attributes(tree)
        tree.entries.append(added)
        with pytest.raises(InvalidArgumentError, match=re.escape(f"added in the loop, {reason}")):
            adapter.state_dict()
    forged = attributes(Tree()).state_dict()
    for name in (f"{__name__}:Cleaned", "collections:UserDict", "os:_Environ", "nowhere:X"):
        with pytest.raises(RunMismatchError, match=f"was a {name.replace(':', '.')}"):
            attributes(Tree()).load_state_dict(forged | {"shapes": {"best": [name, 0]}})


OWN = """
import os, sys, torch, samebits, random
class Pool:
    def __init__(self):
        self.items, self.draws, self.count = [1.0], random.Random(3), 0
    def value(self):
        self.count += 1
        self.items.append(self.draws.random() * self.items[-1])
        return self.items[-1] + self.count
def main(folder, kill, save):
    samebits.set_random_seed(1)
    pool, weight = Pool(), torch.nn.Linear(1, 1)
    held = {"pool": samebits.state.attributes(pool)} if save else {}
    with samebits.Run(folder, save=2, weight=weight, check_complete=save, **held) as run:
        for step, x in run.steps(range(20)):
            with torch.no_grad():
                weight.weight += torch.rand(1, 1) * pool.value()
            if step.number == kill:
                os.kill(os.getpid(), 9)
    print(weight.weight.item().hex())
main(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "save")
"""


@pytest.mark.slow
def test_a_killed_run_ends_with_the_bits_of_the_whole_one(python, tmp_path):
    """An object of the user's, killed twice: equal weights; without the adapter (control) others. The check
    raises nothing.
    """
    whole = python(OWN, tmp_path / "whole", -1, "save").stdout
    for kind in ("save", "without"):
        for kill in (5, 12):
            assert python(OWN, tmp_path / kind, kill, kind, code=-9).stdout == ""
        assert (python(OWN, tmp_path / kind, -1, kind).stdout == whole) == (kind == "save")


def test_an_item_that_a_variable_holds_is_restored_in_place():
    """A tensor in a dict keeps its identity, so that a variable for it stays valid; one that was replaced does not change the old."""
    totals, means = ({"a": torch.zeros(2), "b": [torch.ones(2)], "c": torch.zeros(2)} for _ in range(2))
    saved, loaded = samebits.state.adapter_for(totals), samebits.state.adapter_for(means)
    current, inner, old = means["a"], means["b"][0], means["c"]
    totals["a"].add_(3), totals["b"][0].add_(1)
    # replaced: what the loaded dict holds there may be a constant of the program
    totals["c"] = torch.full((2,), 7.0)
    loaded.load_state_dict(saved.state_dict())
    assert means["a"] is current and means["b"][0] is inner and current.tolist() == [3, 3]
    assert inner.tolist() == [2, 2] and means["c"].tolist() == [7, 7] and old.tolist() == [0, 0]


def test_items_that_are_one_object_in_either_container_are_replaced():
    """Two items that are one tensor here, and two there, get their own values (filled in place, both would get the last)."""
    one = torch.zeros(2)
    here, there = [one, one], [torch.zeros(2), torch.zeros(2)]
    saved = samebits.state.adapter_for(there)
    there[0].add_(1)
    samebits.state.adapter_for(here).load_state_dict(saved.state_dict())
    assert [item.tolist() for item in here] == [[1, 1], [0, 0]]


class Scheduled:
    """A user's own schedule, which holds the optimizer."""

    def __init__(self, optimizer):
        self.optimizer, self.count = optimizer, 0

    def step(self):
        self.count += 1
        self.optimizer.param_groups[0]["lr"] = 0.1 / (1 + self.count)


def test_an_optimizer_inside_is_left_to_the_run_that_has_it(tmp_path):
    """A schedule that holds the run's optimizer is saved without it, and resumed; without a run, and alone in one, it is refused."""

    def train(kill):
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        schedule = Scheduled(optimizer)
        with samebits.Run(tmp_path / "run", save=1, model=model, optimizer=optimizer) as run:
            run.add("schedule", samebits.state.attributes(schedule))
            for step, x in run.steps([torch.ones(2)] * 6):
                schedule.step()
                model(x).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                if kill and step.number == 3:
                    raise KeyboardInterrupt
        return schedule.count, optimizer.param_groups[0]["lr"]

    samebits.set_random_seed(1)
    with pytest.raises(KeyboardInterrupt):
        train(True)
    assert train(False) == (6, 0.1 / 7)
    schedule = Scheduled(torch.optim.SGD([torch.zeros(1)], 0.1))
    with pytest.raises(InvalidArgumentError, match=r'run.add\("scheduled_optimizer", scheduled.optimizer\)'):
        samebits.state.attributes(schedule).state_dict()
    with samebits.Run(tmp_path / "other") as run:
        run.add("schedule", samebits.state.attributes(schedule))
        with pytest.raises(
            InvalidArgumentError, match=r'run.add\("schedule_optimizer", schedule.optimizer\)  # a SGD'
        ):
            next(run.steps([1, 2]))
        run.add("schedule_optimizer", schedule.optimizer)
        next(run.steps([1, 2], name="again"))
    with samebits.Run(tmp_path / "third", models=[nn.Linear(1, 1)]) as run:
        with pytest.raises(InvalidArgumentError, match=r'run.add\("models_0", models\[0\]\)  # a Linear'):
            next(run.steps([1, 2]))
