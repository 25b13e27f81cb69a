"""Programs of which one object has two names, or two values one memory: equal after a resume, or refused at the commit."""

from __future__ import annotations

import os
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import samebits
from samebits.checkpoint import load_commit
from samebits.errors import CorruptCommitError, SamebitsError
from samebits.train._object_checks import check_content

Pair = namedtuple("Pair", "left right")


@dataclass
class Slot:
    n: int = 0
    inner: list[Any] = field(default_factory=list)


class Pool:
    pass


def grow(*values: Any) -> None:
    """Changes each value, through its name alone, in another way."""
    for number, value in enumerate(values):
        if isinstance(value, list | deque):
            value.append(sum(value[-2:]) + number + 1) if isinstance(value, list) else value.append(
                len(value)
            )
        elif isinstance(value, dict):
            value["n"] = value.get("n", 0) * (number + 1) + 1
        elif isinstance(value, Slot):
            value.n = value.n * (number + 1) + 1
        else:
            value *= 1 + number
            value += 1


def sharing(first: Any, second: Callable[[Any], Any]) -> Callable[[Any, Pool], None]:
    return lambda state, pool: state.update(kept=(one := first()), other=second(one))


def pick_all(state: Any, pool: Pool) -> list[Any]:
    return [state.kept, state.other]


Case = tuple[Callable[[Any, Pool], Any], Callable[[Any, Pool], list[Any]]]
ONE: dict[str, Case] = {
    "a list twice in a list": (
        lambda state, pool: state.update(slots=[one := [1], one]),
        lambda state, pool: state.slots,
    ),
    "a dict in two dicts": (
        lambda state, pool: state.update(a={"x": (one := {})}, b={"y": {"z": one}}),
        lambda state, pool: [state.a["x"], state.b["y"]["z"]],
    ),
    "a named tuple of tensors, and a list with it": (
        lambda state, pool: state.update(
            carry=(one := Pair(torch.zeros(2), torch.ones(2))), past=[one], log=[0]
        ),
        lambda state, pool: state.log.append(int(state.past[0] is state.carry)) or [state.log],
    ),
    "a key and a list": (
        sharing(dict, lambda one: [0, one]),
        lambda state, pool: [state.kept, state.other[1]],
    ),
    "a list in a tuple in a deque": (
        sharing(list, lambda one: deque([(1, one)], 3)),
        lambda state, pool: [state.kept, state.other[0][1]],
    ),
    "a deque twice": (sharing(deque, lambda one: [one]), lambda state, pool: [state.kept, state.other[0]]),
    "in a defaultdict": (
        sharing(list, lambda one: defaultdict(list, a=one)),
        lambda state, pool: [state.kept, state.other["a"]],
    ),
    "in an OrderedDict": (
        sharing(list, lambda one: OrderedDict(a=one)),
        lambda state, pool: [state.kept, state.other["a"]],
    ),
    "in a named tuple": (
        sharing(list, lambda one: deque([Pair(one, 1), Pair(2, one)])),
        lambda state, pool: [state.kept, state.other[0].left, state.other[1].right],
    ),
    "a dataclass instance": (
        sharing(Slot, lambda one: [one]),
        lambda state, pool: [state.kept, state.other[0]],
    ),
    "in a dataclass instance": (
        sharing(list, lambda one: Slot(1, one)),
        lambda state, pool: [state.kept, state.other.inner],
    ),
    "a tensor in two lists": (
        lambda state, pool: state.update(a=[one := torch.ones(3)], b=[one]),
        lambda state, pool: [state.a[0], state.b[0]],
    ),
    "an array in two lists": (
        lambda state, pool: state.update(a=[one := np.ones(3)], b=[one]),
        lambda state, pool: [state.a[0], state.b[0]],
    ),
    "among a thousand": (
        lambda state, pool: (
            state.update(many=[[number] for number in range(1000)], one=None)
            or state.update(one=state.many[700])
        ),
        lambda state, pool: [state.many[700], state.one],
    ),
    "state and an object": (
        lambda state, pool: state.update(kept=pool.kept),
        lambda state, pool: [state.kept, pool.kept],
    ),
    "two attributes": (
        lambda state, pool: setattr(pool, "best", pool.slots[1]),
        lambda state, pool: [pool.best, pool.slots[1]],
    ),
    "attributes of two objects": (
        lambda state, pool: setattr(pool, "memory", pool.other.memory),
        lambda state, pool: [pool.memory, pool.other.memory],
    ),
    "strided tensor": (
        sharing(lambda: torch.ones(4, 6)[:, ::2], lambda one: [one]),
        lambda state, pool: [state.kept, state.other[0], one_stride(state.kept.stride(), (6, 2))],
    ),
    "permuted array": (
        sharing(lambda: np.ones((2, 3, 4)).transpose(0, 2, 1), lambda one: [one]),
        lambda state, pool: [state.kept, state.other[0], one_stride(state.kept.strides, (96, 8, 32))],
    ),
    "reversed array": (
        sharing(lambda: np.arange(6.0)[::-1], lambda one: [one]),
        lambda state, pool: [state.kept, one_stride(state.kept.strides, (-8,))],
    ),
    "expanded tensor": (
        sharing(lambda: torch.ones(1, 3).expand(4, 3), lambda one: [one]),
        lambda state, pool: [one_stride(state.kept.stride(), (0, 1)), state.other[0][0]],
    ),
    "no dimension, no element": (
        sharing(lambda: torch.tensor(1.0), lambda one: [one, torch.empty(0, 3)]),
        lambda state, pool: [state.kept, state.other[0]],
    ),
    "an array in a dict": (
        sharing(lambda: np.zeros(3, "f8"), lambda one: {"s": one}),
        lambda state, pool: [state.kept, state.other["s"]],
    ),
}


def one_stride(stride: tuple[int, ...], wanted: tuple[int, ...]) -> list[int]:
    assert stride == wanted
    return [0]


REFUSED: dict[str, Callable[[Any, Pool], Any]] = {
    "a tensor and its array": sharing(lambda: torch.ones(6), lambda one: one.numpy()),
    "two shapes": sharing(lambda: torch.ones(6), lambda one: one.view(2, 3)),
    "two shapes of an array": sharing(lambda: np.ones(6), lambda one: one.reshape(2, 3)),
    "a transpose": sharing(lambda: torch.eye(2), lambda one: [one.t()]),
    "a slice in a list": sharing(lambda: torch.ones(6), lambda one: [one[:3]]),
    "overlapping slices": lambda state, pool: state.update(a=(one := np.ones(9))[:5], b={"x": [one[3:]]}),
    "a list of views": lambda state, pool: state.update(views=list(torch.ones(6).unfold(0, 3, 1))),
    "the conjugate": sharing(lambda: torch.ones(2, dtype=torch.complex64), lambda one: one.conj()),
    "an array over a weight": lambda state, pool: state.update(view=pool.model.weight.detach().numpy()),
    "a weight in a list": lambda state, pool: state.update(view=[pool.model.weight.detach()]),
    "a buffer": lambda state, pool: state.update(view=pool.model.mean),
    "a weight as a new attribute": lambda state, pool: setattr(pool, "best", pool.model.weight.detach()),
    "a view of a kept attribute": lambda state, pool: setattr(pool, "head", pool.array[:2]),
    "a part of a file": lambda state, pool: state.update(
        view=np.asarray(np.memmap(pool.folder / "file", np.float32, "w+", shape=(4,)))
    ),
}


def train(
    folder: Path, prepare: Callable[[Any, Pool], Any], use: Callable[[Any, Pool], list[Any]], steps: int
) -> list[Any]:
    """Runs `prepare` in the first step, and after it changes what `use` gives; commits each step."""
    samebits.set_random_seed(1)
    pool, other = Pool(), Pool()
    pool.slots, pool.kept, pool.array, pool.memory = [[0], [1]], [0], np.ones(4), None
    other.memory = [1]
    model = torch.nn.Linear(2, 1)
    model.register_buffer("mean", torch.zeros(3))
    optimizer = torch.optim.Adam(model.parameters())
    things = {"pool": samebits.state.attributes(pool), "other": samebits.state.attributes(other)}
    with samebits.Run(
        folder, save=1, model=model, optimizer=optimizer, check_complete=False, **things
    ) as run:
        for step, _ in run.steps(range(6)):
            seen = View(pool, model, optimizer, other, folder.parent)
            if step.number == 0:
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                prepare(run.state, seen)
            else:
                grow(*use(run.state, seen))
            if step.number == steps:
                os._exit(9)
        return [str(value) for value in use(run.state, View(pool, model, optimizer, other, folder.parent))]


class View:
    """The attributes of a pool, and what else a program has."""

    def __init__(self, pool: Pool, *others: Any) -> None:
        vars(self).update(
            _pool=pool, **dict(zip(("model", "optimizer", "other", "folder"), others, strict=True))
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._pool, name, value)


def quarter(cases: dict[str, Any]) -> list[Any]:
    """Each fourth case runs with the quick tests."""
    return [
        pytest.param(case, marks=[pytest.mark.slow] if number % 4 else [])
        for number, case in enumerate(cases)
    ]


def in_child(function: Callable[[], Any]) -> int:
    """The exit status of a forked process that calls `function`."""
    child = os.fork()
    if not child:
        try:
            function()
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("case", quarter(ONE))
def test_one_object_stays_one(case: str, tmp_path: Path) -> None:
    """Killed in the fourth step and resumed, values that share an object end as without the kill."""
    prepare, use = ONE[case]
    assert in_child(lambda: train(tmp_path / "killed", prepare, use, 3)) == 9
    full = train(tmp_path / "full", prepare, use, -1)
    assert train(tmp_path / "killed", prepare, use, -1) == full


def test_the_comparison_sees_copies(tmp_path: Path) -> None:
    """Negative control: with copies in the place of one object, the same programs end elsewhere."""
    prepare, use = ONE["a list twice in a list"]
    copies = train(tmp_path / "b", lambda state, pool: state.update(slots=[[1], [1]]), use, -1)
    assert train(tmp_path / "a", prepare, use, -1) != copies


@pytest.mark.parametrize("case", quarter(REFUSED))
def test_one_memory_seen_in_two_ways_is_refused(case: str, tmp_path: Path) -> None:
    """Where a resume would make two memories of one, the first commit is an error with both names and the line to type."""
    with pytest.raises(
        SamebitsError,
        match=r"(share memory|is the memory of|a part of a file|a lazy conj)(.|\n)*\.(clone|copy|resolve_neg)\(\)",
    ):
        train(tmp_path / "r", REFUSED[case], lambda state, pool: [[0]], -1)


@pytest.mark.parametrize(("part", "value"), [
    ("grads", {"model.weight": (1,)}), ("grads", {}), ("training", {"model": [1]}), ("types", {}), ("requires_grad", {"model.weight": 1}),
    ("optimizer_only", {"x": torch.ones(1)}), ("buffers", {"model": {"x": 1}}), ("run_state", {1: 2}), ("aliases", {}), ("objects", {"model": {1j: 2}}),
    ("loops", {"step": -1, "done": {}, "current": None}), ("loops", {"step": 1, "done": {}, "current": {"name": "a"}}),
])  # fmt: skip
def test_a_state_that_no_run_writes_is_corrupt(part: str, value: Any, tmp_path: Path) -> None:
    """A forged part of a run's state is a CorruptCommitError, for which an older commit is read; the whole state is taken."""
    train(tmp_path / "r", *ONE["a list twice in a list"], -1)
    saved = load_commit(tmp_path / "r")
    check_content(saved, {})
    with pytest.raises(CorruptCommitError, match="none that a Run writes"):
        check_content({**saved, part: value}, {})


@pytest.mark.parametrize("persistent", [True, False])
def test_an_expanded_buffer_is_restored(tmp_path, persistent):
    """A buffer over one element, which torch's load_state_dict refuses, has the saved value, and is expanded still."""
    for _ in range(2):
        model = torch.nn.Linear(2, 1)
        model.register_buffer("mask", torch.ones(1).expand(8), persistent=persistent)
        with samebits.Run(tmp_path / "run", model=model, save=1) as run:
            for step, _ in run.steps(range(4)):
                model.mask[:1].mul_(0.5)
        assert model.mask.tolist() == [0.0625] * 8
        assert model.mask.stride() == (0,)


def test_an_optimizers_state_that_is_the_memory_of_its_parameter_stays_so(tmp_path):
    """SAM's `p.data = state["old_p"]` commits, and is one memory after a resume. Control: a copy stays a copy."""
    samebits.set_random_seed(1)
    for last in (2, 5):  # the second process resumes at step 2
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        run = samebits.Run(tmp_path / "run", model=model, optimizer=optimizer, save=1)
        with pytest.raises(KeyError), run:
            for step, _ in run.steps(range(7)):
                if step.number == last + 1:
                    raise KeyError
                for p in model.parameters():
                    state = optimizer.state[p]
                    if step.number == 0:
                        state["old_p"] = torch.ones_like(p)
                        p.data = state["old_p"]
                        state["copy"] = state["old_p"].clone()
                    state["old_p"].add_(1)
    assert all(optimizer.state[p]["copy"].eq(1).all() for p in model.parameters())
    assert [p.tolist() for p in model.parameters()] == [[[7.0, 7.0]], [7.0]]


def test_a_forged_place_of_shared_memory_is_corrupt(tmp_path):
    """A number that is none is a CorruptCommitError; a parameter that is not there is passed over."""
    train(tmp_path / "r", *ONE["a list twice in a list"], -1)
    saved = load_commit(tmp_path / "r")
    check_content({**saved, "aliases": saved["aliases"] | {"optimizers": [("optimizer", 10**9, "x")]}}, {})
    for forged in [("optimizer", "0", "x")], [1], 3:
        with pytest.raises(CorruptCommitError, match="none that a Run writes"):
            check_content({**saved, "aliases": saved["aliases"] | {"optimizers": forged}}, {})
