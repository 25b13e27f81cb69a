"""Other hyperparameters than a run began with are refused by name before anything is changed, or accepted with a warning."""

import hashlib
import warnings

import pytest
import torch
from torch.optim import lr_scheduler

import samebits
from samebits.errors import RunMismatchError


def train(run_dir, make, epochs=1, late=False, **options):
    """Trains a parameter with `make(parameters)`: an optimizer, and a scheduler or None. Returns parameter and optimizer."""
    samebits.set_random_seed(1)
    value = torch.nn.Parameter(torch.ones(2))
    opt, plan = make([value])
    objects = {name: it for name, it in (("opt", opt), ("plan", plan)) if it is not None}
    run_on(run_dir, value, objects, epochs, late, **options)
    return value, objects


def run_on(run_dir, value, objects, epochs, late=False, **options):
    state = torch.nn.ParameterList([value])
    with samebits.Run(run_dir, value=state, **({} if late else objects), **options) as run:
        for name, it in objects.items() if late else ():
            run.add(name, it)
        for _ in run.steps([1, 2, 3], epochs=epochs):
            value.grad = value.detach().clone()
            objects["opt"].step()
            if "plan" in objects:
                objects["plan"].step()


def sgd(lr=0.1, plan=None, **options):
    def make(parameters):
        opt = torch.optim.SGD(parameters, lr, **options)
        return opt, None if plan is None else plan(opt)

    return make


def adamw(**options):
    return lambda parameters: (torch.optim.AdamW(parameters, **options), None)


def plan(kind, *args, **options):
    return sgd(plan=lambda opt: kind(opt, *args, **options), momentum=0.9)


def in_turn(length):
    return sgd(
        plan=lambda opt: lr_scheduler.SequentialLR(
            opt, [lr_scheduler.LinearLR(opt), lr_scheduler.CosineAnnealingLR(opt, length)], [2]
        )
    )


def warm_up(lr):
    return sgd(lr, plan=lambda opt: lr_scheduler.LambdaLR(opt, lambda step: min(1.0, step / 4)))


def two_groups(lr):
    def make(parameters):
        other = torch.nn.Parameter(torch.ones(1))
        return torch.optim.SGD([{"params": parameters}, {"params": [other], "lr": lr}], 0.1), None

    return make


CHANGES = {
    "rate": (sgd(0.1), sgd(0.05), ["opt.lr: 0.1 in the commit, 0.05 here"]),
    "rate as a tensor": (
        sgd(torch.tensor(0.5)),
        sgd(torch.tensor(0.25)),
        ["opt.lr: 0.5 in the commit, 0.25 here"],
    ),
    "rate of a group": (two_groups(0.1), two_groups(0.3), ["opt[1].lr: 0.1 in the commit, 0.3 here"]),
    "rate under a warm-up from 0": (warm_up(0.1), warm_up(0.5), ["opt.lr: 0.1 in the commit, 0.5 here"]),
    "momentum and decay": (
        sgd(momentum=0.9, weight_decay=0.1),
        sgd(momentum=0.8),
        ["opt.momentum: 0.9 in the commit, 0.8 here", "opt.weight_decay: 0.1 in the commit, 0 here"],
    ),
    "betas": (adamw(), adamw(betas=(0.9, 0.95)), ["opt.betas: [0.9, 0.999] in the commit, [0.9, 0.95] here"]),
    "length of a cosine": (
        plan(lr_scheduler.CosineAnnealingLR, 3),
        plan(lr_scheduler.CosineAnnealingLR, 6),
        ["plan.T_max: 3 in the commit, 6 here"],
    ),
    "milestones": (
        plan(lr_scheduler.MultiStepLR, [2, 4]),
        plan(lr_scheduler.MultiStepLR, [2, 5]),
        ["plan.milestones: [2, 4] in the commit, [2, 5] here"],
    ),
    "length of one cycle": (
        plan(lr_scheduler.OneCycleLR, 0.1, total_steps=20),
        plan(lr_scheduler.OneCycleLR, 0.1, total_steps=40),
        ["plan.total_steps: 20 in the commit, 40 here"],
    ),
    "inside a sequence": (in_turn(5), in_turn(9), ["plan._schedulers[1].T_max: 5 in the commit, 9 here"]),
}


def bytes_of(folder):
    return {
        file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        if file.is_file()
        else ""
        for file in folder.rglob("*")
    }


@pytest.mark.parametrize("late", [False, True], ids=["given", "added"])
@pytest.mark.parametrize("name", CHANGES)
def test_other_values_are_refused_by_name(tmp_path, name, late):
    """The error lists each value with both numbers, the three ways on, and the folder is byte for byte as it was."""
    first, other, lines = CHANGES[name]
    train(tmp_path / "r", first, late=late)
    before, threads = bytes_of(tmp_path), torch.get_num_threads()
    with pytest.raises(RunMismatchError) as caught:
        train(tmp_path / "r", other, epochs=2, late=late)
    text = str(caught.value)
    assert all(f"\n  {line}\n" in text for line in lines)
    assert "begun with other hyperparameters" in text and "Put the old values back" in text
    assert "another run directory" in text and "Run(allow_changes=['hyperparameters'])" in text
    assert bytes_of(tmp_path) == before and torch.get_num_threads() == threads


@pytest.mark.parametrize("late", [False, True], ids=["given", "added"])
@pytest.mark.parametrize("name", CHANGES)
def test_equal_values_resume(tmp_path, name, late):
    """Negative control: the same program continues without a word, whatever its scheduler has done to the rate by then."""
    first, _, _ = CHANGES[name]
    train(tmp_path / "r", first, late=late)
    before = bytes_of(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "Detected call of|To get the last learning rate", UserWarning)
        train(tmp_path / "r", first, epochs=2, late=late)
    assert bytes_of(tmp_path) != before


@pytest.mark.parametrize("late", [False, True], ids=["given", "added"])
@pytest.mark.parametrize("name", ["rate", "length of a cosine"])
def test_allowed_values_are_a_warning_and_the_commits_are_used(tmp_path, name, late):
    """allow_changes=["hyperparameters"] warns with both values; the bits are those of the run as it began, then and later."""
    first, other, (line,) = CHANGES[name]
    train(tmp_path / "r", first, late=late)
    with pytest.warns(UserWarning, match=f"{line}. Those of the commit are used"):
        changed, _ = train(tmp_path / "r", other, 2, late, allow_changes=["hyperparameters"])
    whole, _ = train(tmp_path / "whole", first, epochs=2)
    assert torch.equal(changed, whole)
    with pytest.raises(RunMismatchError, match="in the commit"):  # the run is still the one that began
        train(tmp_path / "r", other, epochs=3, late=late)
    train(tmp_path / "r", first, epochs=3, late=late)


def test_another_name_does_not_allow_them(tmp_path):
    """allow_changes=["torch"] refuses them still, and shows the list with both names."""
    train(tmp_path / "r", sgd(0.1))
    with pytest.raises(RunMismatchError, match=r"allow_changes=\['hyperparameters', 'torch'\]"):
        train(tmp_path / "r", sgd(0.2), 2, allow_changes=["torch"])


def test_the_same_objects_may_run_on(tmp_path):
    """A second run of one process with objects that the first has moved on is no change; a rate set between them is."""
    value, objects = train(tmp_path / "r", sgd(0.1, plan=lambda opt: lr_scheduler.StepLR(opt, 1, 0.5)))
    assert objects["opt"].param_groups[0]["lr"] < 0.1
    run_on(tmp_path / "r", value, objects, epochs=2)
    value, objects = train(tmp_path / "s", sgd(0.1))
    objects["opt"].param_groups[0]["lr"] = 0.3
    with pytest.raises(RunMismatchError, match="opt.lr: 0.1 in the commit, 0.3 here"):
        run_on(tmp_path / "s", value, objects, epochs=2)


def test_a_rate_that_the_loop_sets_is_no_change(tmp_path):
    """Objects whose rate the loop's body set by hand continue in the same process, and in a new one (new objects)."""
    samebits.set_random_seed(1)

    def loop(opt, epochs):
        with samebits.Run(tmp_path / "r", opt=opt) as run:
            for step, _ in run.steps([1, 2, 3], epochs=epochs):
                opt.param_groups[0]["lr"] = 0.1 / (step.number + 1)

    def new():
        return torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1)

    opt = new()
    loop(opt, 1)
    loop(opt, 2)
    loop(new(), 3)


def test_the_trainer_takes_the_same_name(tmp_path):
    """Trainer.fit refuses another rate, and accepts it with allow_changes=["hyperparameters"]."""
    batches = [(torch.ones(4, 2), torch.zeros(4, 1))] * 3

    def fit(lr, epochs, **options):
        samebits.set_random_seed(1)
        model = torch.nn.Linear(2, 1)
        trainer = samebits.Trainer(model, torch.nn.MSELoss(), torch.optim.SGD(model.parameters(), lr))
        return trainer.fit(batches, epochs, run_dir=tmp_path / "r", verbose=0, **options).epoch

    fit(0.1, 1)
    with pytest.raises(RunMismatchError, match="optimizer.lr: 0.1 in the commit, 0.05 here"):
        fit(0.05, 2)
    with pytest.warns(UserWarning, match="optimizer.lr: 0.1 in the commit, 0.05 here. Those of the commit"):
        assert fit(0.05, 2, allow_changes=["hyperparameters"]) == [0, 1]
