"""Iterators of Python's own around the loops of a run: what a resume would begin anew is an error."""

import itertools

import pytest
import torch
from torch import nn
from tqdm import tqdm

import samebits
from samebits.errors import IncompleteStateError


class Wrapped:
    """The user's own iterator around another."""

    def __init__(self, inner):
        self.inner = inner

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.inner)


def log_every(inner):
    yield from inner


def counts(wrap):
    def loop(run, loader, update):
        for epoch in run.epochs(2):
            for i, (_, x) in wrap(epoch.steps(loader)):
                update(x[0], i)

    return loop


def counts_epochs(run, loader, update):
    for n, epoch in enumerate(run.epochs(2), 1):
        for _, x in epoch.steps(loader):
            update(x[0], n)


def pairs(run, loader, update):
    for (_, x), scale in zip(run.steps(loader, epochs=2), [1, 2, 3, 4], strict=False):
        update(x[0], scale)


def groups(run, loader, update):
    steps = run.steps(loader, epochs=2)
    while group := list(itertools.islice(steps, 2)):
        for _, x in group:
            update(x[0], 1)


def neighbours(run, loader, update):
    for (_, x), (_, y) in itertools.pairwise(run.steps(loader, epochs=2)):
        update(x[0] + y[0], 1)


def prints_count(run, loader, update):
    for n, epoch in enumerate(run.epochs(2), 1):
        bar = tqdm(enumerate(epoch.steps(loader)))
        for i, (_, x) in bar:
            update(x[0], 1)
            if i % 2 == 0:
                print(f"epoch {n} [{i}/{len(loader)}]")
                bar.set_postfix(n=n)


def prints_total_in_a_bar(run, loader, update):
    total = count = 0
    for _, x in (bar := tqdm(run.steps(loader, epochs=2))):
        total += update(x[0], 1)
        count += 1
        if count % 2 == 0:
            bar.set_postfix(loss=total / count)


def chained(run, loader, update):
    steps = itertools.chain(run.steps(loader), run.steps(loader, name="second"))
    for _, x in map(lambda pair: pair, steps):
        update(x[0], 1)


def with_a_loader_of_the_run(run, loader, update):
    for epoch in run.epochs(2):
        for (_, x), y in zip(epoch.steps(loader), run.objects["other"], strict=True):
            update(x[0] + y[0], 1)


ANEW = {
    "enumerate": (counts(enumerate), r"from 0 again.* step.batch_index in the place of i\."),
    "a generator": (counts(lambda it: enumerate(log_every(it))), r"step.batch_index in the place of i\."),
    "a class": (counts(lambda it: enumerate(Wrapped(it))), r"step.batch_index in the place of i\."),
    "a bar": (counts(lambda it: enumerate(tqdm(it))), r"step.batch_index in the place of i\."),
    "epochs": (counts_epochs, r"from 1 again.* epoch.number \+ 1 in the place of n\."),
    "zip": (pairs, r'values\[step.number % len\(values\)\].*ignore=\["scale"\]'),
    "islice": (groups, r'islice reads steps before.*ignore=\["islice"\]'),
    "pairwise": (neighbours, "pairwise reads steps before"),
}
RESUME = [prints_total_in_a_bar, chained, with_a_loader_of_the_run]


def train(loop, run_dir, **options):
    samebits.set_random_seed(1)
    model, data = nn.Linear(4, 1), torch.utils.data.TensorDataset(torch.randn(12, 4))
    loader, other = (samebits.data.DataLoader(data, 4, shuffle=True) for _ in range(2))
    steps = 0

    def update(x, scale):
        nonlocal steps
        steps += 1
        with torch.no_grad():
            model.weight += 0.01 * scale * model(x).mean()
        return model.weight.sum().item()

    with samebits.Run(run_dir, model=model, other=other, **options) as run:
        loop(run, loader, update)
    return steps


@pytest.mark.parametrize(
    "kind",
    ["a generator", *(pytest.param(one, marks=pytest.mark.slow) for one in ANEW if one != "a generator")],
)
def test_an_iterator_that_a_resume_begins_anew_is_an_error_before_the_first_step(kind, tmp_path):
    """enumerate, zip, islice around a loop: the error has what to write; ignore= and no run directory allow."""
    loop, message = ANEW[kind]
    with pytest.raises(IncompleteStateError, match=message) as caught:
        train(loop, tmp_path / "run")
    assert "test_wrapped_loops.py, line " in str(caught.value)


@pytest.mark.slow
def test_an_iterator_around_a_loop_is_allowed_by_its_path(tmp_path):
    """`ignore`, `check_complete=False` and `Run(None)` train as they do for other forgotten state."""
    assert train(pairs, tmp_path / "a", ignore=["scale", "update"]) == 4
    assert train(pairs, tmp_path / "b", check_complete=False) == 4
    assert train(pairs, None) == 4


@pytest.mark.parametrize(
    "loop", [prints_count, *(pytest.param(one, marks=pytest.mark.slow) for one in RESUME)]
)
def test_an_iterator_that_a_resume_does_not_begin_anew_is_no_error(loop, tmp_path):
    """A count that is printed, a progress bar, a chain, a loader that the run has."""
    assert train(loop, tmp_path / "run", ignore=["update"]) == 6


@pytest.mark.filterwarnings("ignore")
def test_an_object_is_added_again_quietly_and_another_one_is_not(tmp_path):
    """The line that an error says to paste works in a function that each epoch calls."""
    model = nn.Linear(1, 1)
    with samebits.Run(tmp_path / "run") as run:
        run.add("model", model)
        run.add("model", model)
        with pytest.raises(samebits.errors.DuplicateNameError):
            run.add("model", nn.Linear(1, 1))
