"""What a program took out of `run.state` before its loop is still in `run.state` after a resume."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import samebits
from samebits.errors import UnimplementedError, UnsavableStateError
from samebits.state import _in_place
from samebits.state._in_place import PlacedObjects
from samebits.testing import assert_resumes_exactly
from samebits.train._aliases import RunState
from samebits.train._committed_state import StateAliases
from samebits.train._object_states import _HeldGroups

CUT = [0, 3]


def train(run_dir: Path, prepare: Callable[[Any], Any], use: Callable[[Any, Any, int], float]) -> Any:
    """Trains on what `use` makes, in each step, of the run's state and of what `prepare` took out of it."""
    samebits.set_random_seed(1)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = samebits.data.DataLoader(torch.randn(12, 2), batch_size=2, shuffle=True)
    with samebits.Run(run_dir, model=model, optimizer=optimizer) as run:
        held = prepare(run.state)
        for step, x in run.steps(loader):
            optimizer.zero_grad()
            (model(x).square().mean() * use(run.state, held, step.number)).backward()
            optimizer.step()
    return model.weight.detach(), dict(run.state)


def resumes(prepare: Callable[[Any], Any], use: Callable[[Any, Any, int], float]) -> None:
    def program(run_dir: Path) -> Any:
        return train(run_dir, prepare, use)

    assert_resumes_exactly(program, cut=CUT)


def push(state: Any, held: Any, number: int) -> float:
    held.append(number)
    return len(state.kept)


def put(state: Any, held: Any, number: int) -> float:
    held[number] = number + 1
    return float(state.kept.sum())


def add(state: Any, held: Any, number: int) -> float:
    held.add(number)
    return len(state.kept)


KINDS = [
    (list, push),
    (partial(deque, maxlen=4), push),
    (bytearray, push),
    (set, add),
    (partial(torch.zeros, 6), put),
    (partial(np.zeros, 6), put),
]


@pytest.mark.parametrize(("make", "use"), KINDS)
@pytest.mark.parametrize("always", [False, True])
def test_what_the_loop_began_with_is_filled_in_place(make: Any, use: Any, always: bool) -> None:
    """A value that the program holds under a name of its own, too, is one object with that of `run.state` after a resume."""

    def prepare(state: Any) -> Any:
        if always:
            state.kept = make()
        return state.setdefault("kept", make())

    resumes(prepare, use)


@pytest.mark.parametrize("make", [list, partial(torch.zeros, 3), dict])
def test_what_the_loop_replaced_is_replaced_by_a_resume(make: Any) -> None:
    """A value that the loop gave to `run.state` anew leaves the object alone that was there before."""

    def prepare(state: Any) -> Any:
        state.latest = first = make()
        return first

    def use(state: Any, held: Any, number: int) -> float:
        state.latest = (
            torch.full((3,), float(number)) if isinstance(held, torch.Tensor) else type(held)([(number, 1)])
        )
        return 1 + len(held) + float(sum(held))

    resumes(prepare, use)


@pytest.mark.parametrize("make", [list, dict, partial(torch.zeros, 6), partial(np.zeros, 6)])
def test_one_object_at_two_paths_stays_one(make: Any) -> None:
    """Two names in `run.state` for one object are two names for one object after a resume."""

    def prepare(state: Any) -> None:
        if "a" not in state:
            state.a = make()
            state.inner = {"b": state.a}

    def use(state: Any, held: Any, number: int) -> float:
        if isinstance(state.a, list):
            state.a.append(number)
        else:
            state.a[number] = 1
        return 1 + float(sum(state.inner["b"]))

    resumes(prepare, use)


def test_the_order_of_a_dict_in_hand_is_restored() -> None:
    """A dict that the program holds has its keys in the order that they had."""

    def prepare(state: Any) -> Any:
        state.recent = recent = {"a": 1.0, "b": 2.0, "c": 3.0}
        return recent

    def use(state: Any, held: Any, number: int) -> float:
        held["abc"[number % 3]] = held.pop("abc"[number % 3])
        return next(iter(held.values()))

    resumes(prepare, use)


def test_a_copy_that_is_kept_beside_is_found_out() -> None:
    """The same program with a copy in its hands does not resume exactly (so the tests above can fail)."""

    def prepare(state: Any) -> Any:
        return list(state.setdefault("kept", []))

    with pytest.raises(AssertionError, match="differ"):
        resumes(prepare, lambda state, held, number: held.append(number) or len(held))


VALID = {"run_state": [("a", "b")], "grads": [("model.weight",)], "devices": []}


@pytest.mark.parametrize(
    "forged",
    [5, {}, {**VALID, "run_state": 1}, {**VALID, "run_state": [["a"]]}, {**VALID, "run_state": [()]}, {**VALID, "run_state": [([],)]},
     {**VALID, "grads": 5}, {**VALID, "devices": [1]}, {**VALID, "devices": [(("gone",), "cpu")]}, {**VALID, "devices": [(("a",), "no device")]},
     {**VALID, "devices": [(("a", "b"), "cpu")]}],
)  # fmt: skip
def test_a_forged_note_of_aliases_is_refused(forged: Any) -> None:
    """What no run writes there is told before anything is filled; what one writes is taken."""
    values = {"a": {"b": 1}}
    assert not _in_place.is_valid(forged, values)
    assert _in_place.is_valid(VALID, values)


@pytest.mark.parametrize("make", [torch.zeros, np.zeros])
def test_a_view_of_another_value_is_refused(tmp_path: Path, make: Any) -> None:
    """A part of another value's memory in `run.state` is an error with both paths; two copies, and one value twice, are not."""
    samebits.set_random_seed(1)
    with samebits.Run(tmp_path / "r", save=1) as run:
        run.state.whole = make(6)
        run.state.twice = run.state.whole
        run.state.inner = {"copy": run.state.whole[:3] * 1}
        assert len(list(run.steps([1, 2, 3]))) == 3
        run.state.inner["part"] = run.state.whole[1:3]
        with pytest.raises(
            UnsavableStateError, match=r'run.state.inner\["part"\] and run.state.(whole|twice) share memory'
        ):
            run.commit()


def test_a_lazy_layer_is_refused_before_it_is_too_late(tmp_path: Path) -> None:
    """A module without its tensors is refused when it is given to a run that could not resume it, with the cure."""
    model = torch.nn.Sequential(torch.nn.LazyLinear(2))
    with pytest.raises(UnimplementedError, match=r"model.0.weight is lazy.*one batch"):
        samebits.Run(tmp_path / "r", model=model)
    samebits.Run(None, model=model)
    model(torch.ones(1, 3))
    samebits.Run(tmp_path / "r", model=model)


def test_a_large_table_in_hand_is_filled_and_costs_no_path_per_entry() -> None:
    """A table with many rows is one object after a resume, too; a commit does not list its rows."""

    def prepare(state: Any) -> Any:
        return state.setdefault("table", {number: [0.0] for number in range(1000)})

    def use(state: Any, held: Any, number: int) -> float:
        held[number][0] += number
        return 1 + sum(row[0] for row in state.table.values())

    resumes(prepare, use)
    placed, values = PlacedObjects(), {"table": {number: [] for number in range(1000)}}
    placed.note(values)
    assert placed.replaced() == []
    values["table"][7] = []
    assert placed.replaced() == [("table", 7)]


def test_tensors_come_back_on_the_device_where_they_were():
    """A value of `run.state` on another device is restored there, one on the CPU on the CPU; a commit of CPU values says nothing."""
    elsewhere = torch.zeros(2, device="meta")
    assert not _in_place.devices_in({"a": torch.ones(1)})
    devices = _in_place.devices_in(
        {"average": elsewhere, "inner": {"of": elsewhere[:1], "here": torch.ones(1)}}
    )
    saved = {"average": torch.zeros(2), "inner": {"of": torch.zeros(1), "here": torch.ones(1)}}
    state = RunState()
    state.refill(saved, StateAliases(devices=devices))
    assert state.average.is_meta and state.inner["of"].is_meta and state.inner["here"].is_cpu


def test_a_gpus_tensors_stay_on_the_cpu_where_there_is_no_gpu(monkeypatch):
    """Weights of a GPU's run are read on a machine without one."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    state = RunState()
    state.refill({"x": torch.ones(1)}, StateAliases(devices=[(("x",), "cuda:0")]))
    assert state.x.is_cpu


def test_a_learning_rate_that_is_a_tensor_keeps_its_device():
    """What load_state_dict gives an optimizer for its own tensor goes to where that was."""
    optimizer = torch.optim.SGD([torch.zeros(1)], torch.tensor(0.1))
    optimizer.param_groups[0]["lr"] = torch.zeros((), device="meta")
    held = _HeldGroups(optimizer)
    optimizer.param_groups[0]["lr"] = torch.tensor(0.2)
    held.put_back()
    assert optimizer.param_groups[0]["lr"].is_meta
