"""Code that a resumed run runs again begins with the state it had: an epoch's begin, or the end of a loop."""

import argparse
import copy
import os
import random
import re
import subprocess
import sys
import time

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import Subset, TensorDataset

import samebits
from samebits.checkpoint import load_commit
from samebits.errors import (
    CorruptCommitError,
    DuplicateNameError,
    IncompleteStateError,
    ResumeMismatchError,
    UnsavableStateError,
)
from samebits.train._completeness import commit_notes
from samebits.train._loop import epochs as epochs_module
from samebits.train._loop.entry_state import decoded, encoded
from samebits.train._object_checks import check_content

DATA = torch.randn(60, 4, generator=torch.Generator().manual_seed(1))


class KilledError(Exception):
    """Ends a program at a step."""


class Training:
    """A model, what trains it, and the step at which the program ends."""

    def __init__(self, kill):
        samebits.set_random_seed(5)
        self.kill, self.seen = kill, []
        self.model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), 0.05)
        self.loader = samebits.data.DataLoader(TensorDataset(DATA), batch_size=10, shuffle=True)
        self.order = list(range(60))

    def scores(self):
        with torch.no_grad():
            return (self.model(DATA) - DATA.prod(1, keepdim=True)).abs().flatten()

    def hardest(self):
        indices = self.scores().topk(30).indices.tolist()
        return samebits.data.DataLoader(Subset(TensorDataset(DATA), indices), batch_size=5, shuffle=True)

    def step(self, step, x, weight=1.0, teacher=None, optimizer=None):
        if step.number == self.kill:
            raise KilledError
        optimizer = optimizer or self.optimizer
        loss = mse_loss(self.model(x), x.prod(1, keepdim=True)) * weight
        if teacher is not None:
            loss = loss + mse_loss(self.model(x), teacher(x).detach())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def hard_examples(run, t):
    for epoch in run.epochs(4):
        for step, (x,) in epoch.steps(t.hardest()):
            t.step(step, x)


def an_order_of_scores(run, t):
    for epoch in run.epochs(4):
        order = t.scores().argsort()
        for step, at in epoch.steps(order.split(10)):
            t.step(step, DATA[at])


def a_snapshot(run, t):
    for epoch in run.epochs(4):
        teacher = copy.deepcopy(t.model)
        for step, (x,) in epoch.steps(t.loader):
            t.step(step, x, teacher=teacher)


def a_module_that_is_added_in_each_epoch(run, t):
    for epoch in run.epochs(4):
        target = copy.deepcopy(t.model)
        run.add("target", target)
        for step, (x,) in epoch.steps(t.loader):
            t.step(step, x, teacher=target)
            with torch.no_grad():
                for one, other in zip(target.parameters(), t.model.parameters(), strict=True):
                    one.lerp_(other, 0.1)


def an_optimizer_that_is_added_in_each_epoch(run, t):
    for epoch in run.epochs(4):
        optimizer = torch.optim.Adam(t.model.parameters(), 0.05 * 0.5**epoch)
        run.add("second", optimizer)
        for step, (x,) in epoch.steps(t.loader):
            t.step(step, x, optimizer=optimizer)


def a_weight_of_run_state(run, t):
    run.state.setdefault("weight", 1.0)
    for epoch in run.epochs(4):
        run.state.weight *= 0.7
        weight = run.state.weight
        for step, (x,) in epoch.steps(t.loader):
            t.step(step, x, weight)


def a_shuffled_list_of_run_state(run, t):
    run.state.setdefault("order", list(range(60)))
    for epoch in run.epochs(4):
        random.shuffle(run.state.order)
        for step, at in epoch.steps([run.state.order[k : k + 10] for k in range(0, 60, 10)]):
            t.step(step, DATA[at])


def a_shuffled_list_of_the_run(run, t):
    run.add("order", t.order)
    for epoch in run.epochs(4):
        random.shuffle(t.order)
        for step, at in epoch.steps([t.order[k : k + 10] for k in range(0, 60, 10)]):
            t.step(step, DATA[at])


def an_argument_of_a_function(run, t):
    def train(epoch, weight):
        for step, (x,) in epoch.steps(t.loader):
            t.step(step, x, weight)

    for epoch in run.epochs(4):
        train(epoch, t.scores().mean().item())


def a_rate_of_the_optimizer(run, t):
    for epoch in run.epochs(4):
        t.optimizer.param_groups[0]["lr"] *= 0.7
        weight = 1 + t.optimizer.param_groups[0]["lr"]
        for step, (x,) in epoch.steps(t.loader):
            t.step(step, x, weight)


def groups_that_are_added(run, t):
    t.optimizer = torch.optim.Adam(t.model[2].parameters(), 0.05)
    run.add("late", t.optimizer)
    for epoch in run.epochs(4):
        if epoch == 1:
            t.optimizer.add_param_group({"params": t.model[0].parameters()})
        teacher = copy.deepcopy(t.model)
        for step, (x,) in epoch.steps(t.loader):
            t.step(step, x, teacher=teacher)


def rounds_of_hard_examples(run, t):
    for number in range(4):
        for step, (x,) in run.steps(t.hardest(), name=f"round {number}"):
            t.step(step, x)


def rounds_with_a_weight(run, t):
    run.state.setdefault("weight", 1.0)
    for number in range(4):
        run.state.weight *= 0.7
        weight = run.state.weight
        for step, (x,) in run.steps(t.loader, name=f"round {number}"):
            t.step(step, x, weight)


def hard_examples_after_a_first_loop(run, t):
    for step, (x,) in run.steps(t.loader, epochs=1, name="first"):
        t.step(step, x)
    hard = t.hardest()
    for step, (x,) in run.steps(hard, epochs=3, name="second"):
        t.step(step, x)


def epochs_after_epochs(run, t):
    for epoch in run.epochs(1, name="first"):
        for step, (x,) in epoch.steps(t.loader):
            t.step(step, x)
    teacher = copy.deepcopy(t.model)
    for epoch in run.epochs(3, name="second"):
        weight = t.scores().mean().item()
        for step, (x,) in epoch.steps(t.loader):
            t.step(step, x, weight, teacher)


def a_scheduler_of_the_first_epoch(run, t):
    for epoch in run.epochs(4):
        warm = None
        if epoch == 0:
            warm = torch.optim.lr_scheduler.LinearLR(t.optimizer, 0.1, total_iters=4)
            run.add("warm", warm)
        for step, (x,) in epoch.steps(t.loader):
            t.step(step, x)
            if warm is not None:
                warm.step()


def clients_behind_the_steps(run, t):
    for epoch in run.epochs(4):
        for step, (x,) in epoch.steps(t.loader):
            t.step(step, x)
        client = copy.deepcopy(t.model)
        rate = torch.optim.SGD(client.parameters(), 0.1)
        run.add("client", client)
        run.add("rate", rate)
        for step, (x,) in run.steps(t.loader, name="client"):
            if step.number == t.kill:
                raise KilledError
            rate.zero_grad()
            client(x).square().mean().backward()
            rate.step()
        with torch.no_grad():
            for one, other in zip(t.model.parameters(), client.parameters(), strict=True):
                one.lerp_(other, 0.5)


def a_mean_that_is_printed(run, t):
    model, mean = t.model, None
    for epoch in run.epochs(4):
        for step, (x,) in epoch.steps(t.loader):
            t.step(step, x)
            value = model(x).mean().item()
            mean = value if mean is None else 0.9 * mean + 0.1 * value
        print(f"epoch {epoch}: {mean:.3f}")


PROGRAMS = [
    a_scheduler_of_the_first_epoch, clients_behind_the_steps, a_mean_that_is_printed,
    hard_examples, an_order_of_scores, a_snapshot, a_module_that_is_added_in_each_epoch,
    an_optimizer_that_is_added_in_each_epoch, a_weight_of_run_state, a_shuffled_list_of_run_state,
    a_shuffled_list_of_the_run, an_argument_of_a_function, a_rate_of_the_optimizer, groups_that_are_added,
    rounds_of_hard_examples, rounds_with_a_weight, hard_examples_after_a_first_loop, epochs_after_epochs,
]  # fmt: skip


def weights(run_dir, program, kill=None, *, objects_later=False):
    """Runs a program; returns its weights, or None if it was killed."""
    t = Training(kill)
    given = {"model": t.model, "optimizer": t.optimizer}
    try:
        with samebits.Run(run_dir, save=2, **({} if objects_later else given)) as run:
            if objects_later:
                for name, one in given.items():
                    run.add(name, one)
            program(run, t)
    except KilledError:
        return None
    return [one.tolist() for one in t.model.parameters()]


@pytest.mark.first_case_quick
@pytest.mark.parametrize("objects_later", [False, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda one: one.__name__)
def test_code_before_the_steps_begins_with_the_state_it_had(tmp_path, program, objects_later):
    """Killed in three epochs or loops, a program whose code before them reads the state ends with equal weights."""
    whole = weights(tmp_path / "whole", program, objects_later=objects_later)
    for kill in (9, 15, 21):  # the code before a first loop has the state of the commit
        assert weights(tmp_path / "run", program, kill, objects_later=objects_later) is None
    assert weights(tmp_path / "run", program, objects_later=objects_later) == whole


def test_without_the_state_of_the_begin_the_weights_are_others(tmp_path, monkeypatch):
    """Negative control: a run whose commits lack that state ends otherwise, or raises."""
    monkeypatch.setattr(epochs_module, "may_read_state", lambda *_: False)
    whole = weights(tmp_path / "whole", hard_examples)
    monkeypatch.setattr(commit_notes, "affordable", lambda *_, **__: False)  # no note that would say so
    assert weights(tmp_path / "run", hard_examples, 15) is None
    assert weights(tmp_path / "run", hard_examples) != whole


SCRIPT = """
import os, signal, sys, time, torch, samebits
from torch import nn
samebits.set_random_seed(2)
data = torch.randn(80, 4)
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), 0.1)
with samebits.Run("run", model=model, opt=opt, save=2) as run:
    for epoch in run.epochs(4):
        order = model(data).detach().flatten().argsort()
        for step, at in epoch.steps(order[:40].split(4)):
            time.sleep(0.01)
            if str(step.number) in sys.argv[1:]: os.kill(os.getpid(), signal.SIGKILL)
            loss = (model(data[at]) - data[at].prod(1, keepdim=True)).square().mean()
            opt.zero_grad(); loss.backward(); opt.step()
print("END", [one.tolist() for one in model.parameters()])
"""


@pytest.mark.slow
def test_a_killed_process_orders_its_data_as_the_whole_one(tmp_path):
    """The same with real processes and SIGKILL."""
    (tmp_path / "script.py").write_text(SCRIPT)

    def start(folder, *kills):
        folder.mkdir(exist_ok=True)
        command = [sys.executable, tmp_path / "script.py", *kills]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)

    whole = start(tmp_path / "whole")
    assert [start(tmp_path / "killed", kill).returncode for kill in ("7", "18", "33")] == [-9] * 3
    resumed = start(tmp_path / "killed")
    assert "END" in whole.stdout and resumed.stdout == whole.stdout, resumed.stderr


class Meter:
    def __init__(self, name="", form=":f"):
        self.sum = 0.0


args = argparse.Namespace(lr=0.1)


def plain_function(run, t):
    def train(epoch, loader, model, optimizer):
        losses, began = Meter("loss", ":.4e"), time.time()
        prefix = f"Epoch: [{epoch}]"
        size, total = len(loader), 0.0
        model.train()
        for step, (x,) in epoch.steps(loader):
            t.step(step, x)
            assert prefix and size and total == losses.sum and began

    loader, model, optimizer = t.loader, t.model, t.optimizer
    for epoch in run.epochs(1):
        print(f"Epoch {epoch + 1}")
        train(epoch, loader, model, optimizer)


def plain_numbers(run, t):
    loader = t.loader
    for epoch in run.epochs(1):
        weight = args.lr * 0.5**epoch
        for step, (x,) in epoch.steps(loader):
            t.step(step, x, weight)


def reads_a_rate(run, t):
    loader = t.loader
    for epoch in run.epochs(1):
        weight = t.optimizer.param_groups[0]["lr"]
        for step, (x,) in epoch.steps(loader):
            t.step(step, x, weight)


def reads_in_a_condition(run, t):
    loader = t.loader
    for epoch in run.epochs(1):
        if t.scores().mean() > 0:
            pass
        for step, (x,) in epoch.steps(loader):
            t.step(step, x)


def reads_in_an_argument(run, t):
    for epoch in run.epochs(1):
        for step, (x,) in epoch.steps(t.hardest()):
            t.step(step, x)


def reads_run_state(run, t):
    loader = t.loader
    for epoch in run.epochs(1):
        weight = run.state.get("weight", 1.0)
        for step, (x,) in epoch.steps(loader):
            t.step(step, x, weight)


def reads_by_a_global_function(run, t):
    loader = t.loader
    scores = t.scores
    for epoch in run.epochs(1):
        weight = float(scores().mean())
        for step, (x,) in epoch.steps(loader):
            t.step(step, x, weight)


@pytest.mark.parametrize(
    ("program", "held"),
    [
        (plain_function, False), (plain_numbers, False), (reads_a_rate, True), (reads_in_a_condition, True),
        (reads_in_an_argument, True), (reads_run_state, True), (reads_by_a_global_function, True),
    ],
)  # fmt: skip
def test_a_commit_holds_the_begin_only_where_the_body_may_read_it(tmp_path, program, held):
    """A body that makes meters and numbers before its steps costs no second state; one that reads the state does."""
    assert weights(tmp_path / "run", program, 3) is None
    current = load_commit(tmp_path / "run")["loops"]["current"]
    assert ("entered_with" in current) == held


def test_a_state_of_the_begin_is_exact_and_is_a_copy():
    """Names, types, bits and shared objects come back; a later change does not reach it. What cannot be saved is None."""
    row = [1.5, -0.0]
    t = torch.arange(6.0).view(2, 3).t()
    state = {
        "run_state": {"a": [row], "b": row},
        "t": t,
        "wide": torch.ones(1).expand(4),
        "empty": torch.ones(0),
    }
    entry = encoded(state)
    t.zero_()
    row.append(3)
    found = decoded(entry)
    assert found["run_state"]["a"][0] is found["run_state"]["b"]
    assert str(found["run_state"]["b"]) == "[1.5, -0.0]"
    assert found["t"].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]] and found["t"].stride() == (1, 3)
    assert encoded({"f": lambda: 1}) is None


def test_a_forged_state_of_the_begin_is_corrupt(tmp_path):
    """A text that is no tree, a tensor that lacks, a value of another type: CorruptCommitError. Control: the real one."""
    assert weights(tmp_path / "run", hard_examples, 9) is None
    saved = load_commit(tmp_path / "run")
    t = Training(None)
    objects = {"model": t.model, "optimizer": t.optimizer}
    check_content(saved, objects)
    entry = saved["loops"]["current"]["entered_with"]
    forged = (
        entry | {"tree": "{"}, entry | {"tensors": {}}, entry | {"tree": 3}, [], {},
        encoded(decoded(entry) | {"grads": 3}), encoded(decoded(entry) | {"training": {"model": ["x"]}}),
    )  # fmt: skip
    for one in forged:
        current = {**saved["loops"]["current"], "entered_with": one}
        with pytest.raises(CorruptCommitError):
            check_content({**saved, "loops": {**saved["loops"], "current": current}}, objects)


def test_one_name_twice_in_one_epoch_is_refused(tmp_path):
    """A module is added again by another epoch; not by the same one, nor of another shape."""
    for shapes, epochs in (((2, 2), 1), ((2, 3), 2)):
        samebits.set_random_seed(1)
        with samebits.Run(tmp_path / str(epochs)) as run, pytest.raises(DuplicateNameError, match="'net'"):
            for epoch in run.epochs(epochs):
                run.add("net", nn.Linear(2, shapes[epoch]))
                if epochs == 1:
                    run.add("net", nn.Linear(2, 2))
                for _step, _ in epoch.steps([1, 2]):
                    pass


def hard_examples_of_the_first_loop(run, t):
    hard = t.scores().topk(30).indices.tolist()
    loader = samebits.data.DataLoader(Subset(TensorDataset(DATA), hard), batch_size=5, shuffle=True)
    for step, (x,) in run.steps(loader, epochs=4):
        t.step(step, x)


def an_order_of_the_first_loop(run, t):
    order = t.scores().argsort()
    for step, at in run.steps(order.split(10), epochs=4):
        t.step(step, DATA[at])


def a_count_of_the_first_loop(run, t):
    model = t.model
    count = int((model(DATA) > 0).sum())
    for step, (x,) in run.steps(t.loader, epochs=4):
        t.step(step, x, count / 30)


def starts_in_run_state(run, t):
    run.state.starts = run.state.get("starts", 0) + 1
    starts = run.state.starts
    for step, (x,) in run.steps(t.loader, epochs=4):
        t.step(step, x, starts)


def hard_examples_after_a_break(run, t):
    for step, (x,) in run.steps(t.loader, epochs=2, name="first"):
        t.step(step, x)
        if step.number == 4:
            break
    hard = t.scores().topk(30).indices.tolist()
    loader = samebits.data.DataLoader(Subset(TensorDataset(DATA), hard), batch_size=5, shuffle=True)
    for step, (x,) in run.steps(loader, epochs=3, name="second"):
        t.step(step, x)


def the_same_loader_after_epochs(run, t):
    for epoch in run.epochs(2, name="first"):
        for step, (x,) in epoch.steps(t.loader):
            t.step(step, x)
    for step, (x,) in run.steps(t.loader, epochs=2, name="second"):
        t.step(step, x)


@pytest.mark.parametrize("kill", [12, 13])
def test_a_loader_goes_on_behind_the_epochs_that_ended(tmp_path, kill):
    """Killed between the end of `run.epochs` and the first commit of the next loop, the loader reads its next epoch."""
    whole = weights(tmp_path / "whole", the_same_loader_after_epochs)
    assert weights(tmp_path / "run", the_same_loader_after_epochs, kill) is None
    assert weights(tmp_path / "run", the_same_loader_after_epochs) == whole


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 1), nn.Linear(4, 1)
        self.active = (self.a,)

    def forward(self, x):
        return self.active[0](x) + 0.3 * self.b(x)


def modules_that_change_places(run, t):
    t.model = Heads()
    optimizer = torch.optim.Adam(t.model.parameters(), 0.05)
    t.model.active = ()
    run.add("heads", t.model)
    run.add("second", optimizer)
    for step, (x,) in run.steps(t.loader, epochs=4):
        if step.number == 7:
            t.model.a, t.model.b = t.model.b, t.model.a
        loss = (t.model.a(x) + 0.3 * t.model.b(x).detach()).square().mean()
        if step.number == t.kill:
            raise KilledError
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_modules_that_change_places_keep_their_optimizers_state(tmp_path):
    """`m.a, m.b = m.b, m.a` in mid-training: Adam's averages go to the weights that they are of."""
    whole = weights(tmp_path / "whole", modules_that_change_places)
    assert weights(tmp_path / "run", modules_that_change_places, 15) is None
    assert weights(tmp_path / "run", modules_that_change_places) == whole


def a_list_of_the_active_module(run, t):
    t.model = Heads()
    optimizer = torch.optim.Adam(t.model.parameters(), 0.05)
    t.model.active = [t.model.a]
    run.add("heads", t.model)
    run.add("second", optimizer)
    run.add("rest", samebits.state.attributes(t.model, "active"))
    for step, (x,) in run.steps(t.loader, epochs=4):
        if step.number == 7:
            t.model.active = [t.model.b]
        t.step(step, x, optimizer=optimizer)


def test_the_line_for_an_attribute_restores_which_module_it_means(tmp_path):
    """`attributes(model, "active")`, which the error types, gives back a module that was not in it at the start."""
    whole = weights(tmp_path / "whole", a_list_of_the_active_module)
    assert weights(tmp_path / "run", a_list_of_the_active_module, 15) is None
    assert weights(tmp_path / "run", a_list_of_the_active_module) == whole


def test_which_of_its_modules_an_attribute_means_is_named(tmp_path):
    """A plain tuple in a module that points at another of its modules is an error; one that never changes is none."""
    for changes in (True, False):
        t = Training(None)
        model = Heads()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def train(model=model, optimizer=optimizer, changes=changes, t=t):
            with samebits.Run(tmp_path / str(changes), model=model, optimizer=optimizer, save=2) as run:
                for step, (x,) in run.steps(t.loader, epochs=6):
                    loss = model(x).square().mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    if changes and step.number == 20:
                        model.active = (model.b,)

        if changes:
            with pytest.raises(IncompleteStateError, match=r"model\.active\[0\]"):
                train()
        else:
            train()


def part_weights(model):
    model.b.weight.data = model.b.weight.data.clone()


def tie_weights(model):
    model.b.weight.data = model.a.weight.data


def part_buffers(model):
    model.a.count = model.a.count + 1


@pytest.mark.parametrize(
    ("tied", "change", "path"),
    [
        (True, part_weights, "b.weight"), (False, tie_weights, "b.weight"), (True, part_buffers, "b.count"),
        (True, None, None), (False, None, None),
    ],
)  # fmt: skip
def test_weights_that_part_or_are_tied_in_training_are_refused_at_the_commit(tmp_path, tied, change, path):
    """A resume would have the memory of the beginning: UnsavableStateError by both names. Ties that stay are none."""
    t = Training(None)
    model, count = Heads(), torch.zeros(2)
    for one in (model.a, model.b):
        one.register_buffer("count", count if tied else count.clone())
    if tied:
        tie_weights(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def train():
        with samebits.Run(tmp_path / "run", model=model, optimizer=optimizer, save=2) as run:
            for step, (x,) in run.steps(t.loader, epochs=3):
                if change is not None and step.number == 7:
                    change(model)
                loss = (model.a(x) + 0.3 * model.b(x)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    if change is None:
        train()
        return
    with pytest.raises(
        UnsavableStateError, match=rf"model\.a\.\w+ and model\.{path} were {'one' if tied else 'two'} "
    ):
        train()


def what_rounds_collect(run, t):
    model, norms = t.model, []
    for number in range(4):
        for step, (x,) in run.steps(t.loader, name=f"round {number}"):
            t.step(step, x, 1 + sum(norms))
        norms.append(model[0].weight.norm().item())


@pytest.mark.parametrize(
    ("program", "path"),
    [
        (what_rounds_collect, "norms"),
        (hard_examples_of_the_first_loop, "loader.dataset.indices"), (an_order_of_the_first_loop, "loader[0]"),
        (a_count_of_the_first_loop, "count"), (starts_in_run_state, "starts"),
        (hard_examples_after_a_break, "loader.dataset.indices"),
    ],
)  # fmt: skip
def test_what_code_inside_with_makes_of_another_state_is_a_mismatch(tmp_path, monkeypatch, program, path):
    """Before the first loop, and after a `break`, the resumed program reads its commit's weights: it raises, by path."""
    monkeypatch.setattr(commit_notes, "_FIRST_SHARE", 1e9)
    monkeypatch.setattr(commit_notes, "_FIRST_SECONDS", 1e9)
    assert weights(tmp_path / "run", program, 15) is None
    with pytest.raises(ResumeMismatchError, match=rf"- {re.escape(path)}: it was"):
        weights(tmp_path / "run", program)


@pytest.mark.parametrize(
    "program", [rounds_of_hard_examples, rounds_with_a_weight], ids=lambda one: one.__name__
)
def test_in_a_first_round_the_error_says_to_make_epochs_of_rounds(tmp_path, monkeypatch, program):
    """What each round computes is no value to keep: the error names `run.epochs`, with which the test above is equal."""
    monkeypatch.setattr(commit_notes, "_FIRST_SHARE", 1e9)
    monkeypatch.setattr(commit_notes, "_FIRST_SECONDS", 1e9)
    assert weights(tmp_path / "run", program, 4) is None
    with pytest.raises(ResumeMismatchError, match=r"for epoch in run\.epochs\(n\)") as error:
        weights(tmp_path / "run", program)
    assert "setdefault" not in str(error.value)


def harmless_numbers(run, t):
    pid, began, folder = os.getpid() + int(time.time_ns()), time.time(), str(run.run_dir)
    resumed, rank, bound = run.resumed, run.rank, len(t.loader)
    best = run.state.get("best", 9.0)
    for step, (x,) in run.steps(t.loader, epochs=4):
        assert pid and began and folder and rank + bound and resumed in (True, False)
        t.step(step, x)
        run.state.best = best = min(best, x.sum().item())


def test_what_differs_by_process_is_no_mismatch(tmp_path, monkeypatch):
    """Negative control: a pid, a time, a folder, `run.resumed` and a value of run.state end no resume."""
    monkeypatch.setattr(commit_notes, "_FIRST_SHARE", 1e9)
    monkeypatch.setattr(commit_notes, "_FIRST_SECONDS", 1e9)
    whole = weights(tmp_path / "whole", harmless_numbers)
    assert weights(tmp_path / "run", harmless_numbers, 15) is None
    monkeypatch.setattr(os, "getpid", lambda: 12345)
    assert weights(tmp_path / "run", harmless_numbers) == whole


@pytest.mark.slow
def test_the_line_for_a_loader_works_where_it_is_pasted(tmp_path):
    """`hard = run.state.setdefault("hard", hard)` behind the line that the error names ends with equal weights."""
    script = SCRIPT.replace("    for epoch in run.epochs(4):\n        order", "    order").replace(
        "        for step, at in epoch.steps(order[:40].split(4)):",
        "    for step, at in run.steps(order[:40].split(4), epochs=4):",
    )
    file = tmp_path / "script.py"

    def start(folder, *kills):
        folder.mkdir(exist_ok=True)
        command = [sys.executable, file, *kills]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)

    file.write_text(script)
    start(tmp_path / "first", "17")
    error = start(tmp_path / "first").stderr
    line, code = re.search(r"script\.py, after line (\d+):\n +(order = .*)\n", error).groups()
    lines = script.splitlines()
    file.write_text("\n".join([*lines[: int(line)], "    " + code, *lines[int(line) :]]))
    whole = start(tmp_path / "whole")
    assert start(tmp_path / "killed", "17").returncode == -9
    resumed = start(tmp_path / "killed")
    assert "END" in whole.stdout and resumed.stdout == whole.stdout, resumed.stderr
