"""What `Run` does between two bodies of a loop is counted, not timed: calls of functions, in Python and in C."""

import gc
import sys

import pytest
import torch

import samebits
from samebits.data import DataLoader

MOST = 215
"""Calls of functions between two bodies: loader, generators, digest, the look at the switch (2026-11-27, Python 3.11: 204).

22 of them compare the generators around the loader's task (`rng_states.of_process`).
"""


@pytest.fixture(autouse=True)
def _no_garbage_collection():
    """What other tests have left is not collected between two bodies: its finalizers would be counted."""
    gc.disable()
    yield
    gc.enable()


def calls_between_bodies(layers, folder, **options):
    """For steps 10 to 40 the number of function calls from the end of a body to the begin of the next."""
    model = torch.nn.Sequential(*[torch.nn.Linear(2, 2) for _ in range(layers)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    counts, count = [], 0

    def seen(frame, event, argument):
        nonlocal count
        count += event in {"call", "c_call"}

    loader = DataLoader(torch.utils.data.TensorDataset(torch.arange(50)), batch_size=1)
    objects = {"model": model, "optimizer": optimizer}
    with samebits.Run(folder, save="explicit", check_complete=False, **options, **objects) as run:
        for step, _ in run.steps(loader):
            sys.setprofile(None)
            if step.number > 10:
                counts.append(count)
            if step.number == 40:
                break
            count = 0
            sys.setprofile(seen)
    sys.setprofile(None)
    return counts


def test_no_part_of_an_empty_step_grows_with_the_model(tmp_path):
    """A step of 400 layers makes as many calls as one of 2: nothing walks modules, parameters or the optimizer's state."""
    samebits.set_random_seed(1)
    calls_between_bodies(2, tmp_path / "first")  # what is imported, compiled and cached by a first run
    few, many = (calls_between_bodies(layers, tmp_path / str(layers)) for layers in (2, 400))
    assert few == many
    assert max(few) <= MOST


def test_the_count_sees_a_walk_over_modules(tmp_path):
    """Negative control: an observer that walks the model at each boundary is counted, and grows with it."""
    samebits.set_random_seed(1)

    class Walks(samebits._context.Observer):
        def boundary(self, run, step, frame):
            for module in run.objects["model"].modules():
                module.training

    with samebits._context.observed(Walks()):
        few, many = (min(calls_between_bodies(layers, tmp_path / str(layers))) for layers in (2, 400))
    assert many > few + 398


def test_looks_for_forgotten_state_take_no_more_than_their_share(tmp_path):
    """With the check on, most steps make the calls that they make without it, and a few more to ask whether it is time."""
    samebits.set_random_seed(1)
    folder = tmp_path / "run"
    model = torch.nn.Linear(2, 2)
    counts, count = [], 0

    def seen(frame, event, argument):
        nonlocal count
        count += event in {"call", "c_call"}

    with samebits.Run(folder, save="explicit", ignore=["counts", "count", "seen"], model=model) as run:
        for step, _ in run.steps([0] * 200):
            sys.setprofile(None)
            counts.append(count)
            count = 0
            sys.setprofile(seen)
    sys.setprofile(None)
    usual = sorted(counts[10:])[95]
    assert usual < MOST  # a look makes thousands: the first steps have one each, later ones seldom
    assert max(counts[1:5]) > 5 * usual  # negative control: a look is counted
