"""`Trainer.fit` killed anywhere: same weights, same history."""

import os

import numpy as np
import pytest
import torch
from torch import nn

import samebits
from at_step import AtStep
from samebits import _digest as digest
from samebits._context import CheckOverrides, process
from samebits.callbacks import Callback, EarlyStopping, ReduceLROnPlateau


class Data(torch.utils.data.Dataset):
    def __init__(self, length):
        self.x = torch.linspace(-1, 1, length)[:, None]

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index] + 0.1 * np.random.randn(), (self.x[index] > 0).long()[0]


class Jitter(Callback):
    """A user's callback with a counter that changes the training; its state is saved, or (control) is not."""

    def __init__(self, saved):
        self.count, self.saved = 0, saved

    def on_batch_end(self, trainer, step, logs):
        self.count += 1
        with torch.no_grad():
            trainer.model[0].bias += 0.001 * self.count

    def state_dict(self):
        return {"count": self.count} if self.saved else {}

    def load_state_dict(self, state_dict):
        self.count = state_dict.get("count", 0)


def fit(run_dir, killer=None, commits=None, saved=True):
    samebits.set_random_seed(4)
    process.overrides = CheckOverrides(commit_steps=commits)
    if killer is not None:
        process.observers.append(killer)
    model = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), samebits.nn.Dropout(0.3), nn.Linear(8, 2))
    opt = torch.optim.Adam(model.parameters(), 0.02)
    trainer = samebits.Trainer(
        model,
        nn.functional.cross_entropy,
        opt,
        scheduler=torch.optim.lr_scheduler.StepLR(opt, 2),
        metrics={"accuracy": lambda out, y: (out.argmax(1) == y).float().mean()},
        callbacks=[
            Jitter(saved),
            ReduceLROnPlateau(opt, factor=0.5, patience=0, min_delta=0.05),
            EarlyStopping(patience=3),
        ],
    )
    loader = samebits.data.DataLoader(Data(40), batch_size=8, shuffle=True)
    validation = samebits.data.DataLoader(Data(20), batch_size=10)
    ignore = [] if saved else ["callback_0_Jitter"]  # else it is an error that names the count
    history = trainer.fit(
        loader, epochs=5, validation_data=validation, run_dir=run_dir, verbose=False, ignore=ignore
    )
    return digest.of_value(model.state_dict()), history


@pytest.mark.first_case_quick
@pytest.mark.parametrize(
    ("step", "validating"), [(7, False), (9, True), (14, False), (19, True), (20, False)]
)
def test_killed_and_resumed_fit_is_equal(forked, tmp_path, step, validating):
    """Killed in a step or in a validation, fit ends with the weights and the complete history of an uninterrupted one."""
    expected = forked(fit, None).value
    killer = AtStep("validation_begins" if validating else "step_begins", step)
    assert forked(lambda: fit(tmp_path / "r", killer, commits=(step - 2, step))).code == -9
    assert forked(lambda: fit(tmp_path / "r")).value == expected
    assert len(expected[1].history["val_accuracy"]) == len(expected[1].history["loss"]) == 5


def test_a_callback_that_saves_nothing_is_lost(forked, tmp_path):
    """Negative control: a user's callback without state makes the resumed fit end with other weights."""
    expected = forked(fit, None).value
    assert forked(lambda: fit(tmp_path / "r", AtStep("step_begins", 9), commits=(8,), saved=False)).code == -9
    assert forked(lambda: fit(tmp_path / "r", saved=False)).value != expected


def test_a_finished_fit_returns_the_same_again(forked, tmp_path):
    """A second start after the end trains nothing and returns the same weights and history."""
    expected = forked(lambda: fit(tmp_path / "r")).value
    assert forked(lambda: fit(tmp_path / "r", AtStep("step_begins", 0))).value == expected


def test_progress_is_plain_lines_when_not_a_terminal(forked, tmp_path, capfd):
    """Without a terminal fit prints one line per epoch to stderr."""

    def verbose():
        samebits.set_random_seed(4)
        model = nn.Linear(1, 2)
        loader = samebits.data.DataLoader(Data(16), batch_size=8)
        opt = torch.optim.SGD(model.parameters(), 0.1)
        samebits.Trainer(model, nn.functional.cross_entropy, opt).fit(loader, epochs=2)

    assert forked(verbose).code == 0
    lines = capfd.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines] == ["epoch 1/2", "epoch 2/2"]


def test_a_nan_loss_ends_in_one_line(forked, tmp_path, capfd):
    """A loss that becomes NaN raises an error that names the step; what was committed stays and can be loaded."""

    def diverge():
        samebits.set_random_seed(4)
        process.overrides = CheckOverrides(commit_steps=(1, 2))
        model = nn.Linear(1, 2)
        opt = torch.optim.SGD(model.parameters(), 0.1)

        def loss_fn(out, y):
            position = process.position
            return nn.functional.cross_entropy(out, y) * (float("nan") if position.step == 3 else 1)

        loader = samebits.data.DataLoader(Data(80), batch_size=8)
        samebits.Trainer(model, loss_fn, opt).fit(loader, epochs=2, run_dir=tmp_path / "r")

    assert forked(diverge).code == 1
    assert "NonFiniteLossError: run.log(loss=nan) at step 3 (epoch 0, batch 3)" in capfd.readouterr().err
    assert any(name.startswith("000000000002") for name in os.listdir(tmp_path / "r" / "commits"))
