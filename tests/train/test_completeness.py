"""`Run` itself names what a loop carries from step to step and no commit holds."""

import re
import subprocess
import sys
import warnings
import weakref
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import completeness_loops as loops
import samebits
from samebits import _digest as digest
from samebits._context import CheckOverrides, process
from samebits.errors import IncompleteStateError, InvalidArgumentError

TESTS = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def _seeded():
    samebits.set_random_seed(3)


@pytest.fixture
def make(tmp_path):
    return lambda **given: samebits.Run(tmp_path / "run", **given)


def named(error):
    """The subjects of the lines of an error."""
    return set(re.findall(r"^  - ([\w.]+)", str(error.value), re.MULTILINE))


@pytest.mark.parametrize("loop", loops.ORDINARY.values(), ids=loops.ORDINARY)
def test_an_ordinary_loop_is_left_alone(loop, make):
    """A loop that keeps all that it carries trains to its end, without an error or a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loop(make)


@pytest.mark.parametrize(("loop", "paths"), loops.FORGETFUL.values(), ids=loops.FORGETFUL)
def test_a_forgetful_loop_is_named(loop, paths, make):
    """What a loop forgets is an error that names each place, and only those, and offers to ignore all that it shows."""
    with pytest.raises(IncompleteStateError) as error:
        loop(make)
    assert named(error) == set(paths)
    offered = re.search(r"Run\(ignore=\[(.*?)\]\)", str(error.value))[1]
    assert set(offered.replace('"', "").split(", ")) <= set(paths)
    assert len(offered.split(", ")) == len(paths)


@pytest.mark.parametrize(("loop", "paths"), loops.FORGETFUL.values(), ids=loops.FORGETFUL)
def test_what_is_ignored_is_no_error(loop, paths, make):
    """Each named path is what `run.ignore` takes: with them ignored the same loop trains to its end."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loop(lambda **given: make(ignore=[*paths, *(p.split(".")[0] for p in paths)], **given))


def test_the_check_is_off_where_nothing_can_be_resumed_and_where_it_is_turned_off(make):
    """`check_complete=False`, no run_dir, and a check that names the difference itself: nothing is looked at."""
    loop, _ = loops.FORGETFUL["locals_that_live_on"]
    loop(lambda **given: samebits.Run(None, **given))
    loop(lambda **given: make(check_complete=False, **given))
    before = process.overrides
    process.overrides = CheckOverrides(check_complete=False)
    try:
        loop(lambda **given: samebits.Run(None, **given))
    finally:
        process.overrides = before


def train(run, steps=12):
    """Digest of the weights after a loop that draws, with a forgetful local."""
    torch.manual_seed(1)
    model, optimizer, loader = loops.parts()
    run.add("model", model)
    run.add("optimizer", optimizer)
    total = 0.0
    with run:
        for _step, (x, y) in run.steps(loader, epochs=steps // 4):
            total += loops.update(model, optimizer, x + 0.1 * torch.randn(x.shape), y).item()
    return digest.of_value(model.state_dict()), total


def test_looking_changes_no_bit(tmp_path):
    """The weights are the same bits with the check and without; so is what a loop's body draws."""
    checked = train(samebits.Run(tmp_path / "a", ignore=["total"]))
    assert checked == train(samebits.Run(tmp_path / "b", check_complete=False))


def test_looking_keeps_nothing_alive(tmp_path):
    """The output of a step is gone as soon as the next one takes its name, as without the check."""
    model, optimizer, loader = loops.parts()
    before, alive = [], []
    with samebits.Run(tmp_path / "r", model=model, optimizer=optimizer, ignore=["before", "alive"]) as run:
        for _step, (x, y) in run.steps(loader, epochs=1):
            output = model(x)
            alive += [gone() is not None for gone in before]
            optimizer.zero_grad()
            F.cross_entropy(output, y).backward()
            optimizer.step()
            before[:] = [weakref.ref(output)]
    assert alive == [False] * 3


def test_the_error_comes_before_a_commit(make, tmp_path):
    """What is incomplete is not committed: the folder of commits is empty."""
    with pytest.raises(IncompleteStateError):
        loops.FORGETFUL["locals_that_live_on"][0](make)
    assert not list((tmp_path / "run").glob("commits/*"))


def test_a_path_of_nothing_is_warned_of(tmp_path):
    """A path that `ignore` was given and that matches nothing is named when the run ends; others are not."""
    with pytest.warns(UserWarning, match=r"'totl'") as told:
        train(samebits.Run(tmp_path / "r", ignore=["total", "totl"]))
    assert len([one for one in told if "ignore" in str(one.message)]) == 1
    with pytest.raises(InvalidArgumentError, match="a path"):
        samebits.Run(None).ignore("")


def test_a_prefix_ends_at_a_name(tmp_path):
    """Negative control of prefixes: `tot` does not cover `total`."""
    with pytest.raises(IncompleteStateError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(samebits.Run(tmp_path / "r", ignore=["tot"]))


class Patience(samebits.callbacks.Callback):
    def __init__(self, *, keeps):
        self.keeps, self.wait, self.last = keeps, 0, None

    def on_batch_end(self, trainer, step, logs):
        self.last = logs["loss"]
        self.wait += self.last > 0.5

    def state_dict(self):
        return {"wait": self.wait} if self.keeps else {}

    def load_state_dict(self, state):
        self.wait = state["wait"]


class Forgetful(Patience):
    def state_dict(self):
        return {}


class Smoothed:
    def __init__(self):
        self.value = 0.0

    def __call__(self, output, target):
        self.value = 0.9 * self.value + 0.1 * float(output.mean())
        return torch.tensor(self.value)


def fit(tmp_path, **parts):
    model, optimizer, loader = loops.parts()
    trainer = samebits.Trainer(model, F.cross_entropy, optimizer, **parts)
    trainer.fit(loader, epochs=2, run_dir=tmp_path / "run", verbose=False)


@pytest.mark.slow
def test_the_trainers_parts_are_looked_at(tmp_path):
    """Under `Trainer` a callback's and a metric's forgotten attributes are named; a callback that keeps them is fine."""
    fit(tmp_path / "a", callbacks=[Patience(keeps=True), samebits.callbacks.EarlyStopping(monitor="loss")])
    with pytest.raises(IncompleteStateError) as error:
        fit(tmp_path / "b", callbacks=[Forgetful(keeps=False)], metrics={"smooth": Smoothed()})
    assert {name.split(".")[-1] for name in named(error)} == {"wait", "metrics"}


SCRIPT = """
import sys
import samebits, torch
samebits.set_random_seed(1)
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = samebits.data.DataLoader(torch.randn(16, 4), batch_size=4, shuffle=True)
temperature = 2.0

def softened(x):
    global temperature
    temperature *= 0.9
    return x / temperature

with samebits.Run("run", model=model, optimizer=optimizer, ignore=sys.argv[1:]) as run:
    warm = iter(range(5)) if run.resumed else iter(())
    for step, x in run.steps(loader, epochs=2):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * (next(warm, 9) + 1)
        loss = model(softened(x)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step.number == 5:
            run.commit()
        if step.number == 6 and not run.resumed:
            break
"""


@pytest.mark.slow
def test_scripts_are_looked_at(tmp_path):
    """In a plain script a global that a function counts in is named; what only a resumed process carries is named there."""

    (tmp_path / "script.py").write_text(SCRIPT)

    def start(*ignored):
        command = [sys.executable, "script.py", *ignored]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    first = start("temperature")
    assert first.returncode == 0, first.stderr
    resumed = start()
    assert resumed.returncode == 1
    assert "- warm (an iterator" in resumed.stderr
    assert "- temperature (a global variable, now " in resumed.stderr


def test_a_user_who_holds_locals_keeps_them(make):
    """The dict that `locals()` gave is not emptied by looking."""
    model, optimizer, loader = loops.parts()
    with make(model=model, optimizer=optimizer) as run:
        held = locals()
        for step, (x, y) in run.steps(loader, epochs=1):
            loops.update(model, optimizer, x, y)
            assert held["model"] is model and step.number >= 0


def inner_loop(run, several):
    """A loop whose learning rate depends on what an inner loop set last."""
    model, optimizer, loader = loops.parts()
    run.add("model", model)
    run.add("optimizer", optimizer)
    with run:
        for _step, (x, y) in run.steps(loader, epochs=2):
            for _ in several(x):
                loss = F.cross_entropy(model(x), y) / 2
                loss.backward()
            optimizer.param_groups[0]["lr"] = 0.1 if loss > 0.3 else 0.05
            optimizer.step()
            optimizer.zero_grad()


def test_a_variable_of_an_inner_loop_that_may_be_empty_is_a_warning(make):
    """Read after the inner loop, it is carried only past an empty one: a warning that names it, and the run goes on."""
    with pytest.warns(samebits.errors.IncompleteStateWarning, match="loss: an inner loop sets it"):
        inner_loop(make(), lambda x: x.chunk(2))


def micro_steps(make, count):
    model, optimizer, loader = loops.parts()
    with make(model=model, optimizer=optimizer) as run:
        for _step, (x, y) in run.steps(loader, epochs=2):
            for _ in range(count):
                loss = F.cross_entropy(model(x), y) / 2
                loss.backward()
            optimizer.param_groups[0]["lr"] = 0.1 if loss > 0.3 else 0.05
            optimizer.step()
            optimizer.zero_grad()


def test_a_variable_of_an_inner_loop_that_runs_is_left_alone(make):
    """`for micro_step in range(count)` with a count above 0 sets it in each step: neither an error nor a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        micro_steps(make, 2)


def test_a_scheduler_that_was_not_given_is_no_output(make):
    """`scheduler.step(loss)` of a scheduler that no commit holds is an error, although its result is not used."""
    model, optimizer, loader = loops.parts()
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    with (
        pytest.raises(IncompleteStateError, match="scheduler"),
        make(model=model, optimizer=optimizer) as run,
    ):
        for _step, (x, y) in run.steps(loader, epochs=3):
            scheduler.step(loops.update(model, optimizer, x, y).item())
