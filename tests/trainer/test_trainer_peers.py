"""The task on which Lightning, Accelerate, Keras and Hugging Face's Trainer end with other weights after a kill.

The digits that come with scikit-learn, 45 batches of 32 in an epoch; two Dropout layers, Adam, a learning rate that
falls on a plateau, early stopping, noise drawn by the dataset from the global generator; killed in step 245 (epoch 5).
"""

import os
import signal

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import samebits
from at_step import AtStep
from samebits import _digest as digest
from samebits._context import CheckOverrides, process
from samebits.callbacks import EarlyStopping, ReduceLROnPlateau

KILLED, EPOCH, EPOCHS = 245, 45, 14
digits = load_digits()
IMAGES, LABELS = (digits.data / 16).astype(np.float32), digits.target.astype(np.int64)


class Digits(torch.utils.data.Dataset):
    def __init__(self, augment):
        self.augment = augment

    def __len__(self):
        return 1437

    def __getitem__(self, index):
        image = torch.from_numpy(IMAGES[index])
        if self.augment:
            image = image + 0.1 * torch.randn(64)
        return image, LABELS[index]


def prepare(hit, commits):
    samebits.set_random_seed(7)
    process.overrides = CheckOverrides(commit_steps=commits)
    process.observers += [hit] if hit else []
    model = nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, 128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, 10)
    )  # fmt: skip
    return model, torch.optim.Adam(model.parameters(), 2e-3)


VALIDATION = torch.from_numpy(IMAGES[1437:]), torch.from_numpy(LABELS[1437:])


def own_loop(
    run_dir, hit=None, commits=(), workers=0, augment=True, phase=False, loader_of=None, sigterm=None
):
    """A loop of one's own. `phase`: validation is one of the run; `sigterm`: SIGTERM in a validation of the body."""
    model, optimizer = prepare(hit, commits)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1, threshold=0.1)
    loader = (loader_of or samebits.data.DataLoader)(Digits(augment), 32, shuffle=True, num_workers=workers)
    with samebits.Run(run_dir, model=model, optimizer=optimizer, plateau=plateau) as run:
        for step, (x, y) in run.steps(loader, epochs=EPOCHS):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step.ends_epoch:
                batches = list(zip(*(tensor.split(90) for tensor in VALIDATION), strict=True))
                val = 0.0
                model.eval()
                with torch.no_grad():
                    for number, (x, y) in enumerate(run.validate(batches) if phase else batches):
                        val += nn.functional.cross_entropy(model(x), y).item() / len(batches)
                        if sigterm == (step.number, number):
                            os.kill(os.getpid(), signal.SIGTERM)
                model.train()
                plateau.step(val)
                run.state.history = [*run.state.get("history", []), val]
                if val < run.state.get("best", 1e9) - 0.02:
                    run.state.best, run.state.bad = val, 0
                else:
                    run.state.bad += 1
                if run.state.bad == 3:
                    run.stop()
        end = digest.of_value(
            [model.state_dict(), optimizer.state_dict(), plateau.state_dict(), dict(run.state)]
        )
        return end, len(run.state.history), run.resumed


def trainer(run_dir, hit=None, commits=(), augment=True, workers=0):
    """The same task with `Trainer.fit` and callbacks that are named as Keras's."""
    model, optimizer = prepare(hit, commits)
    callbacks = [
        ReduceLROnPlateau(optimizer, factor=0.5, patience=1),
        EarlyStopping(patience=3, min_delta=0.02),
    ]
    loader = samebits.data.DataLoader(Digits(augment), 32, shuffle=True, num_workers=workers)
    validation = samebits.data.DataLoader(torch.utils.data.TensorDataset(*VALIDATION), 90)
    fit = samebits.Trainer(model, nn.functional.cross_entropy, optimizer, callbacks=callbacks)
    history = fit.fit(loader, EPOCHS, validation_data=validation, run_dir=run_dir, verbose=0).history
    states = [callback.state_dict() for callback in callbacks]
    end = digest.of_value([model.state_dict(), optimizer.state_dict(), states, dict(history)])
    return end, len(history["val_loss"]), None


ENDS = {}


@pytest.fixture
def uninterrupted(forked):
    """End and number of epochs of a run that nobody kills, each kind once."""

    def end_of(train, **options):
        key = train.__name__, *sorted(map(str, options.items()))
        if key not in ENDS:
            ENDS[key] = forked(lambda: train(None, **options)).value[:2]
        return ENDS[key]

    return end_of


CASES = {
    "in the middle of epoch 5, a commit at every step": (own_loop, ("step_begins", KILLED), range(1, KILLED + 1), {}),
    "in the middle of epoch 5, replayed from epoch 4": (own_loop, ("step_begins", KILLED), (200,), {}),
    "right behind the commit of an epoch's last step": (own_loop, ("committed", 5 * EPOCH), (5 * EPOCH,), {}),
    "in the validation of an epoch's last step": (own_loop, ("validation_begins", 5 * EPOCH - 1), (5 * EPOCH - 1,), {"phase": True}),
    "torch's DataLoader": (own_loop, ("step_begins", KILLED), (KILLED,), {"loader_of": torch.utils.data.DataLoader}),
    "Trainer, in the middle of epoch 5": (trainer, ("step_begins", KILLED), (KILLED,), {}),
    "Trainer, right behind the commit of an epoch's last step": (trainer, ("committed", 5 * EPOCH), (5 * EPOCH,), {}),
    "Trainer, in a validation": (trainer, ("validation_begins", 5 * EPOCH - 1), (5 * EPOCH - 2,), {}),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore:resuming replays")
def test_killed_and_resumed_it_ends_with_the_same_weights(forked, uninterrupted, tmp_path, case):
    """SIGKILL where peers lose something: weights, optimizer, schedule, stopping and number of epochs are equal."""
    train, (event, step), commits, options = CASES[case]
    hit = AtStep(event, step)
    assert forked(lambda: train(tmp_path / "r", hit, tuple(commits), **options)).code == -signal.SIGKILL
    end, epochs, resumed = forked(lambda: train(tmp_path / "r", **options)).value
    assert (end, epochs) == uninterrupted(train, **options)
    assert resumed in (True, None) and epochs > 6


@pytest.mark.slow
def test_two_workers_before_the_kill_and_one_after_it(forked, uninterrupted, tmp_path):
    """Random augmentation with 2 workers, killed; with 1 worker after the resume; with none uninterrupted: equal."""
    killed = forked(lambda: own_loop(tmp_path / "r", AtStep("step_begins", KILLED), (KILLED - 3,), workers=2))
    assert killed.code == -signal.SIGKILL
    assert forked(lambda: own_loop(tmp_path / "r", workers=1)).value[:2] == uninterrupted(own_loop)


@pytest.mark.slow
@pytest.mark.parametrize("phase", [False, True], ids=["in the loop's body", "run.validate"])
def test_sigterm_inside_a_validation(forked, uninterrupted, tmp_path, phase):
    """SIGTERM between two batches of a validation: exit code 75 with a commit, and equal after the resume."""
    step = 5 * EPOCH - 1
    code = forked(lambda: own_loop(tmp_path / "r", None, (step,), phase=phase, sigterm=(step, 1))).code
    assert code == 75
    assert forked(lambda: own_loop(tmp_path / "r", phase=phase)).value[:2] == uninterrupted(
        own_loop, phase=phase
    )


@pytest.mark.slow
def test_the_wrong_ways_do_end_elsewhere(forked, uninterrupted, tmp_path):
    """Negative control: another seed, no augmentation, and a schedule that is lost at the resume change the end."""
    ends = {uninterrupted(own_loop)[0], uninterrupted(own_loop, augment=False)[0], uninterrupted(trainer)[0]}
    assert len(ends) == 3

    def forgets(run_dir, hit=None, commits=()):
        keep = torch.optim.lr_scheduler.ReduceLROnPlateau.load_state_dict
        torch.optim.lr_scheduler.ReduceLROnPlateau.load_state_dict = lambda self, state: None
        try:
            return own_loop(run_dir, hit, commits)
        finally:
            torch.optim.lr_scheduler.ReduceLROnPlateau.load_state_dict = keep

    assert (
        forked(lambda: forgets(tmp_path / "r", AtStep("step_begins", KILLED), (KILLED,))).code
        == -signal.SIGKILL
    )
    assert forked(lambda: forgets(tmp_path / "r")).value[0] != uninterrupted(own_loop)[0]
