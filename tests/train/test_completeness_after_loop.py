"""Values that only the code after the loop reads are carried past each commit, too: the best weights, and what is like them."""

import copy
import re
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import carried_state
import paste_robot
import samebits
from completeness_loops import parts, update
from samebits.errors import IncompleteStateError, IncompleteStateWarning

LOST, KEPT, PRINTED = {}, {}, {}
BEST = None


def lost(path):
    return lambda loop: LOST.setdefault(loop.__name__, (loop, path))


def kept(loop):
    return KEPT.setdefault(loop.__name__, loop)


def printed(loop):
    return PRINTED.setdefault(loop.__name__, loop)


def value_of(epoch):
    """A validation loss with its minimum in epoch 1."""
    return abs(epoch - 1) + 1.0


@lost("best")
def in_a_local(make):
    model, optimizer, loader = parts()
    best = copy.deepcopy(model.state_dict())
    with make(model=model, optimizer=optimizer) as run:
        for epoch in run.epochs(4):
            for _, (x, y) in epoch.steps(loader):
                update(model, optimizer, x, y)
            if value_of(epoch.number) < run.state.get("value", 9):
                run.state.value, best = value_of(epoch.number), copy.deepcopy(model.state_dict())
    model.load_state_dict(best)


@lost("best")
def in_a_local_of_steps_that_is_none_at_first(make):
    model, optimizer, loader = parts()
    best = None
    with make(model=model, optimizer=optimizer) as run:
        for step, (x, y) in run.steps(loader, epochs=4):
            update(model, optimizer, x, y)
            if step.ends_epoch and value_of(step.epoch) < run.state.get("value", 9):
                run.state.value = value_of(step.epoch)
                best = [one.detach().clone() for one in model.parameters()]
    if best is not None:
        for parameter, one in zip(model.parameters(), best, strict=True):
            parameter.data.copy_(one)


def restore(model, weights):
    model.load_state_dict(weights)


@lost("best")
def for_a_function_that_the_code_after_the_loop_calls(make):
    model, optimizer, loader = parts()
    best = copy.deepcopy(model.state_dict())
    with make(model=model, optimizer=optimizer) as run:
        for step, (x, y) in run.steps(loader, epochs=4):
            update(model, optimizer, x, y)
            if step.number % 3 == 2:
                best = copy.deepcopy(model.state_dict())
        restore(model, best)


@lost("best")
def that_the_function_returns(make):
    def train():
        best = copy.deepcopy(model.state_dict())
        with make(model=model, optimizer=optimizer) as run:
            for step, (x, y) in run.steps(loader, epochs=4):
                update(model, optimizer, x, y)
                if step.number % 3 == 2:
                    best = copy.deepcopy(model.state_dict())
        return best

    model, optimizer, loader = parts()
    model.load_state_dict(train())


class Net(nn.Module):
    """A user's class: a commit's state is looked up in it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x)


@lost("best")
def as_a_copy_of_what_a_commit_had_then(make):
    _, _, loader = parts()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    best = copy.deepcopy(model.state_dict())
    with make(model=model, optimizer=optimizer) as run:
        for epoch in run.epochs(5):
            for _, (x, y) in epoch.steps(loader):
                update(model, optimizer, x, y)
            if epoch.number == 0:
                best = copy.deepcopy(model.state_dict())
    model.load_state_dict(best)


def keep_global(model):
    global BEST
    BEST = copy.deepcopy(model.state_dict())


def restore_global(model):
    model.load_state_dict(BEST)


@lost("BEST")
def in_a_global(make):
    keep_global(model := parts()[0])
    _, _, loader = parts()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with make(model=model, optimizer=optimizer) as run:
        for step, (x, y) in run.steps(loader, epochs=4):
            update(model, optimizer, x, y)
            if step.number % 3 == 2:
                keep_global(model)
    restore_global(model)


class Keeper:
    def __init__(self, model):
        self.model, self.top = model, copy.deepcopy(model.state_dict())

    def keep(self, number):
        if number % 3 == 2:
            self.top = copy.deepcopy(self.model.state_dict())

    def restore(self):
        self.model.load_state_dict(self.top)


@lost("keeper")
def in_an_attribute(make):
    model, optimizer, loader = parts()
    keeper = Keeper(model)
    with make(model=model, optimizer=optimizer) as run:
        for step, (x, y) in run.steps(loader, epochs=4):
            update(model, optimizer, x, y)
            keeper.keep(step.number)
    keeper.restore()


class Trainer:
    def __init__(self):
        self.model, self.optimizer, self.loader = parts()
        self.kept = copy.deepcopy(self.model.state_dict())

    def fit(self, make):
        with make(model=self.model, optimizer=self.optimizer) as run:
            for step, (x, y) in run.steps(self.loader, epochs=4):
                update(self.model, self.optimizer, x, y)
                if step.number % 3 == 2:
                    self.kept = copy.deepcopy(self.model.state_dict())


@lost("self")
def in_an_attribute_that_the_loops_caller_reads(make):
    trainer = Trainer()
    trainer.fit(make)
    trainer.model.load_state_dict(trainer.kept)


@lost("best")
def in_a_cell(make):
    def keep():
        nonlocal best
        best = copy.deepcopy(model.state_dict())

    model, optimizer, loader = parts()
    best = copy.deepcopy(model.state_dict())
    with make(model=model, optimizer=optimizer) as run:
        for step, (x, y) in run.steps(loader, epochs=4):
            update(model, optimizer, x, y)
            if step.number % 3 == 2:
                keep()
    model.load_state_dict(best)


@lost("hardest")
def after_the_steps_of_an_epoch(make):
    model, optimizer, loader = parts()
    with make(model=model, optimizer=optimizer) as run:
        for epoch in run.epochs(3):
            hardest = None
            for step, batch in epoch.steps(loader):
                update(model, optimizer, *batch)
                if step.batch_index % 2 == 1:
                    hardest = batch
            update(model, optimizer, *hardest)


@lost("best")
def after_a_while_loop(make):
    model, optimizer, loader = parts()
    best = copy.deepcopy(model.state_dict())
    with make(model=model, optimizer=optimizer) as run:
        steps = run.steps(loader, epochs=3)
        while (item := next(steps, None)) is not None:
            step, (x, y) = item
            update(model, optimizer, x, y)
            if step.number % 3 == 2:
                best = copy.deepcopy(model.state_dict())
    model.load_state_dict(best)


@kept
def written_by_each_body(make):
    model, optimizer, loader = parts()
    keeper = Keeper(model)
    with make(model=model, optimizer=optimizer) as run:
        for _, (x, y) in run.steps(loader, epochs=3):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            last = loss.item()
            keeper.top = copy.deepcopy(model.state_dict())
    keeper.restore()
    print(last)
    return loss


@kept
def written_in_each_epoch_by_an_inner_loop(make):
    model, optimizer, loader = parts()
    with make(model=model, optimizer=optimizer) as run:
        for epoch in run.epochs(3):
            for _, (x, y) in epoch.steps(loader):
                loss = F.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            value = loss.item()
    return value, loss


@kept
def at_the_end_of_each_epoch(make):
    model, optimizer, loader = parts()
    keeper, value = Keeper(model), 0.0
    with make(model=model, optimizer=optimizer) as run:
        for step, (x, y) in run.steps(loader, epochs=3):
            update(model, optimizer, x, y)
            if step.ends_epoch:
                value = F.cross_entropy(model(x), y).item()
                keeper.top = copy.deepcopy(model.state_dict())
            if not step.ends_epoch:
                continue
            weights = copy.deepcopy(model.state_dict())
    model.load_state_dict(weights if value > 0 else keeper.top)


@kept
def in_run_state(make):
    model, optimizer, loader = parts()
    with make(model=model, optimizer=optimizer) as run:
        for step, (x, y) in run.steps(loader, epochs=3):
            update(model, optimizer, x, y)
            if step.number % 3 == 2:
                run.state.best = copy.deepcopy(model.state_dict())
    model.load_state_dict(run.state.best)


@kept
def made_before_the_loop(make):
    model, optimizer, loader = parts()
    first, test = copy.deepcopy(model.state_dict()), torch.ones(4, 4)
    with make(model=model, optimizer=optimizer) as run:
        for _, (x, y) in run.steps(loader, epochs=3):
            update(model, optimizer, x, y)
    model(test)
    model.load_state_dict(first)


@kept
def written_again_before_it_is_read(make):
    model, optimizer, loader = parts()
    best = copy.deepcopy(model.state_dict())
    with make(model=model, optimizer=optimizer) as run:
        for step, (x, y) in run.steps(loader, epochs=3):
            update(model, optimizer, x, y)
            if step.number % 3 == 2:
                best = copy.deepcopy(model.state_dict())
    best = copy.deepcopy(model.state_dict())
    model.load_state_dict(best)


@printed
def a_figure_that_some_steps_write(make):
    model, optimizer, loader = parts()
    shown = 0.0
    with make(model=model, optimizer=optimizer) as run:
        for step, (x, y) in run.steps(loader, epochs=3):
            update(model, optimizer, x, y)
            if step.number % 3 == 2:
                shown = float(x.sum())
    print(f"the last figure was {shown}")


@pytest.fixture
def make(tmp_path):
    samebits.set_random_seed(3)
    return lambda **given: samebits.Run(tmp_path / "run", **given)


@pytest.mark.parametrize(("loop", "path"), LOST.values(), ids=LOST)
def test_what_only_the_code_after_the_loop_reads_is_named(loop, path, make):
    """Best weights in a local, a global, an attribute, a cell; of epochs, steps and inner loops: the error names them, and only them."""
    with pytest.raises(IncompleteStateError) as error:
        loop(make)
    assert set(re.findall(r"^  - (\w+)", str(error.value), re.MULTILINE)) == {path}, error.value


@pytest.mark.parametrize("loop", KEPT.values(), ids=KEPT)
def test_what_each_body_writes_and_what_the_loop_never_writes_is_left_alone(loop, make):
    """No error and no warning for a value that is written before it is read after the loop, or never changes."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loop(make)


@pytest.mark.parametrize("loop", PRINTED.values(), ids=PRINTED)
def test_what_the_code_after_the_loop_only_prints_is_a_warning(loop, make):
    """A figure for a print after the loop stops nothing."""
    with pytest.warns(IncompleteStateWarning, match="only printed"):
        loop(make)


SCRIPT = """
import os, signal, sys, torch, samebits
from torch import nn
samebits.set_random_seed(1)
x = torch.randn(16, 4)
loader = samebits.data.DataLoader(x, batch_size=4, shuffle=True)
model = nn.Linear(4, 1)
opt = torch.optim.SGD(model.parameters(), 0.1)
class Box: loss = 9.0
box, last, held = Box(), 9.0, {{"loss": 9.0}}
rate = 1.0
def kill(at):
    if len(sys.argv) > 2 and sys.argv[2] == at:
        os.kill(os.getpid(), signal.SIGKILL)
with samebits.Run(sys.argv[1], model=model, opt=opt, save=1) as run:
    for step, a in run.steps(loader, name="first"):
        loss = model(a).square().mean()
        opt.zero_grad(); loss.backward(); opt.step()
        {inside}
    {between}
    for step, a in run.steps(loader, name="second"):
        kill(str(step.batch_index))
        loss = model(a).square().mean() * rate
        opt.zero_grad(); loss.backward(); opt.step()
{before}
print("END", [p.tolist() for p in model.parameters()])
"""
LEFT = {
    "a variable": ("last = loss.item()", "rate = last / 9"),
    "a tensor": ("last = loss.detach()", "rate = float(last) / 9"),
    "an attribute": ("box.loss = loss.item()", "rate = box.loss / 9"),
    "an item": ("held['loss'] = loss.item()", "rate = held['loss'] / 9"),
}
LEFT_ALONE = {
    "printed": ("last = loss.item()", "print(f'{last:.3f}')"),
    "set again": ("last = loss.item()", "last = 0.5; rate = last"),
    "kept in run.state": ("run.state.last = loss.item()", "rate = run.state.last / 9"),
}


@pytest.mark.first_case_quick
@pytest.mark.parametrize("at", ["0", "end"])
@pytest.mark.parametrize("name", [*LEFT, *LEFT_ALONE])
def test_what_a_loop_that_is_over_has_left_is_compared(name, at, tmp_path):
    """A resumed process runs no step of it: a number that the code behind it reads is an error, if it is another.

    Read between two loops, and killed before a commit of the second; and read after both, and killed there.
    """
    inside, between = {**LEFT, **LEFT_ALONE}[name]
    behind = f"kill('end')\n{between}\nmodel.weight.data.mul_(rate)"
    texts = (between, "") if at == "0" else ("pass", behind)
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(inside=inside, between=texts[0], before=texts[1]))
    whole = carried_state.run(script, tmp_path / "whole")[0]
    assert carried_state.end(whole), whole
    carried_state.run(script, tmp_path / "killed", at)
    text = carried_state.run(script, tmp_path / "killed")[0]
    if name in LEFT_ALONE:
        assert carried_state.end(text) == carried_state.end(whole), text
    else:
        assert "ResumeMismatchError" in text and re.search(r"run\.(add|state)", text), text


def test_the_line_for_what_a_loop_has_left_works_where_it_is_pasted(tmp_path):
    """`run.state.last` in the place of `last`, as the error says: equal weights after a kill in the second loop."""
    script = tmp_path / "train.py"
    texts = LEFT["a variable"]
    script.write_text(SCRIPT.format(inside=texts[0], between=texts[1], before=""))
    carried_state.run(script, tmp_path / "killed", "1")
    found = paste_robot.cures(carried_state.run(script, tmp_path / "killed")[0])
    assert paste_robot.paste(tmp_path, found) == 3
    whole = carried_state.run(script, tmp_path / "whole")[0]
    carried_state.run(script, tmp_path / "again", "1")
    assert carried_state.end(whole)
    assert carried_state.end(carried_state.run(script, tmp_path / "again")[0]) == carried_state.end(whole)
