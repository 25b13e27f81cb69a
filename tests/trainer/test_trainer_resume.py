"""`Trainer.fit` cut anywhere ends with equal bits: every step of short runs with many features, and real kills."""

import os
import signal

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import TensorDataset

import samebits
from samebits import _digest as digest
from samebits._context import CheckOverrides, process
from samebits.audit._child.variations import Killer
from samebits.callbacks import Callback, EarlyStopping, ReduceLROnPlateau
from trainer_metric import Correct

SCHEDULERS = {
    "none": lambda opt: {},
    "epochs": lambda opt: {"scheduler": lr_scheduler.StepLR(opt, 1, 0.7)},
    "plateau": lambda opt: {"scheduler": lr_scheduler.ReduceLROnPlateau(opt, patience=0, factor=0.5, threshold=0.5)},
    "cycle": lambda opt: {"scheduler": lr_scheduler.OneCycleLR(opt, 0.1, total_steps=30), "scheduler_step": "step"},
    "restarts": lambda opt: {"scheduler": lr_scheduler.CosineAnnealingWarmRestarts(opt, 3), "scheduler_step": "step"},
    "warm": lambda opt: {
        "scheduler": lr_scheduler.SequentialLR(
            opt, [lr_scheduler.LinearLR(opt, 0.1), lr_scheduler.LambdaLR(opt, lambda step: 0.9**step)], [2]
        ),
        "scheduler_step": "step",
    },
    "chained": lambda opt: {
        "scheduler": lr_scheduler.ChainedScheduler([lr_scheduler.ExponentialLR(opt, 0.9), lr_scheduler.ConstantLR(opt, 0.5)])
    },
}  # fmt: skip


class Cut(BaseException):
    """The process is gone."""


class Ender(Callback):
    """Ends the training at one of the places where it may be."""

    def __init__(self, step, place, end):
        self.step, self.place, self.end = step, place, end

    def at(self, place):
        if process.position.step == self.step and self.place == place:
            self.end()

    def on_batch_begin(self, trainer, step):
        self.at("begin")

    def on_batch_end(self, trainer, step, logs):
        self.at("end")

    def on_validation_begin(self, trainer):
        self.at("validation")

    def on_epoch_end(self, trainer, epoch, logs):
        self.at("epoch")


class Lengthless:
    """Batches that nobody knows the number of."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        return iter(self.loader)


class Loud(nn.CrossEntropyLoss):
    """A loss whose gradients overflow in fp16 at first."""

    def forward(self, output, target):
        return 64 * super().forward(output, target)


def data(number, weighted):
    x = torch.linspace(-1, 1, 2 * number).reshape(number, 2)
    targets = (x[:, 0] > 0.2).long()
    return TensorDataset(x, targets, x[:, 1].abs() + 0.5) if weighted else TensorDataset(x, targets)


def fit(features, run_dir, commits=None, ender=None, **options):
    """One training, to its end or to the `ender`'s; digests of all that it leaves."""
    samebits.set_random_seed(7)
    process.observers.clear()
    process.overrides = CheckOverrides(commit_steps=commits)
    model = nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.3), nn.Linear(6, 2))
    opt = torch.optim.AdamW(model.parameters(), 0.05)
    loader = samebits.data.DataLoader(data(11, features["weighted"]), batch_size=3, shuffle=True)
    validation = samebits.data.DataLoader(data(7, False), batch_size=3, shuffle=True)

    def spread(output, target):
        if ender is not None and not torch.is_grad_enabled():
            ender.at("inside")
        return output.std()

    trainer = samebits.Trainer(
        model,
        Loud() if features["precision"] == "fp16" else nn.CrossEntropyLoss(),
        opt,
        metrics={"accuracy": Correct(), "spread": spread},
        callbacks=[
            ReduceLROnPlateau(opt, "loss", factor=0.8, patience=1),
            EarlyStopping("val_loss", patience=2, min_delta=0.05),
            ender or Ender(-1, "", None),
        ],
        **SCHEDULERS[features["scheduler"]](opt),
        **{name: features[name] for name in ("accumulate", "clip_norm", "precision", "ema")},
    )
    history = trainer.fit(
        Lengthless(loader) if features["lengthless"] else loader,
        3,
        validation_data=validation,
        validation_freq=features["validation_freq"],
        steps_per_epoch=features["steps_per_epoch"],
        class_weight=None if features["weighted"] else {0: 0.5, 1: 2.0},
        run_dir=run_dir,
        verbose=0,
        check_loss=False,
        **options,
    )
    state = {name: thing.state_dict() for name, thing in trainer._stateful().items()}
    return digest.of_value(state), history


PLACES = ("begin", "end", "validation", "inside", "epoch")
FULL = {
    "accumulate": 3, "clip_norm": 0.5, "precision": "fp16", "ema": 0.9, "scheduler": "plateau", "weighted": False,
    "lengthless": False, "steps_per_epoch": 3, "validation_freq": 1,
}  # fmt: skip
FEATURES = st.fixed_dictionaries(
    {
        "accumulate": st.integers(1, 4),
        "clip_norm": st.sampled_from([None, 0.5]),
        "precision": st.sampled_from([None, "bf16", "fp16"]),
        "ema": st.sampled_from([None, 0.9]),
        "scheduler": st.sampled_from(sorted(SCHEDULERS)),
        "weighted": st.booleans(),
        "lengthless": st.booleans(),
        "steps_per_epoch": st.sampled_from([None, 3]),
        "validation_freq": st.sampled_from([1, 2, [1, 3]]),
    }
)


def ended(features, run_dir, commits, ender, **options):
    """Whether the ender's place was reached."""
    try:
        fit(features, run_dir, commits, ender, **options)
    except Cut:
        return True
    return False


def cut():
    raise Cut


@pytest.mark.slow
@example(FULL, 3)
@example(FULL | {"steps_per_epoch": None, "scheduler": "cycle", "precision": "bf16", "lengthless": True}, 0)
@given(FEATURES, st.integers(0, 4))
@settings(max_examples=6)
def test_cut_at_every_step(tmp_path_factory, features, shift):
    """Cut in each step of a short run, at changing places of its body, and in validations, a fit ends with equal bits."""
    expected = fit(features, None)
    steps = 3 * (features["steps_per_epoch"] or 4)
    reached = 0
    for step in range(steps):
        folder = tmp_path_factory.mktemp("cut")
        place = PLACES[(step + shift) % 2 if (step + 1) % (steps // 3) else (step + shift) % 5]
        reached += ended(features, folder, (step - step % 2, step), Ender(step, place, cut))
        assert fit(features, folder) == expected, (step, place)
    assert reached >= steps // 4


def test_what_is_not_saved_is_missed(tmp_path):
    """Negative control: a trainer that leaves its average or its scaler out of the commit ends with other bits."""
    for left_out in ("ema", "scaler", "logbook"):
        whole = samebits.Trainer._stateful

        def stateful(self, left_out=left_out):
            return {name: thing for name, thing in whole(self).items() if name != left_out}

        folder = tmp_path / left_out
        samebits.Trainer._stateful = stateful
        try:
            assert ended(FULL, folder, (7,), Ender(8, "begin", cut), check_complete=False)
            resumed = fit(FULL, folder, check_complete=False)
        finally:
            samebits.Trainer._stateful = whole
        assert resumed != fit(FULL, None)


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.first_case_quick
@pytest.mark.parametrize(
    "features",
    [FULL, FULL | {"steps_per_epoch": None, "lengthless": True, "scheduler": "warm"}],
    ids=["full", "lengthless"],
)
def test_killed_again_and_again(forked, tmp_path, features):
    """Killed with SIGKILL in a step, in a validation and at an epoch's end, one after the other, it ends with equal bits."""
    expected = forked(lambda: fit(features, None)).value
    last = 3 * (features["steps_per_epoch"] or 4) - 1
    kills = [(1, "end"), (last // 3, "inside"), (last // 3, "epoch"), (last - 1, "begin"), (last, "end")]
    for number, (step, place) in enumerate(kills):
        died = forked(lambda: fit(features, tmp_path / "r", (step - number % 2,), Ender(step, place, kill)))
        assert died.code == -signal.SIGKILL
    assert forked(lambda: fit(features, tmp_path / "r")).value == expected


def small(run_dir, epochs, **options):
    """A small fit in this process: the history and the trained weights."""
    samebits.set_random_seed(2)
    model = nn.Linear(2, 2)
    trainer = samebits.Trainer(
        model, nn.functional.cross_entropy, torch.optim.SGD(model.parameters(), 0.1, 0.9)
    )
    loader = samebits.data.DataLoader(data(10, False), batch_size=4, shuffle=True)
    history = trainer.fit(loader, epochs, run_dir=run_dir, verbose=0, **options)
    return digest.of_value(model.state_dict()), history


@pytest.mark.parametrize("steps", [None, 2])
def test_more_epochs_go_on(tmp_path, steps):
    """A run that has finished trains nothing and returns its history; asked for more epochs it goes on as if asked before."""
    whole = small(None, 5, steps_per_epoch=steps)
    first = small(tmp_path / "r", 2, steps_per_epoch=steps)
    assert first[1].epoch == [0, 1]
    assert small(tmp_path / "r", 2, steps_per_epoch=steps) == first
    assert small(tmp_path / "r", 5, steps_per_epoch=steps) == whole


def test_epochs_of_fewer_steps_read_the_loader_on(tmp_path):
    """With steps_per_epoch=2 and 3 batches, two epochs see a pass and the first batch of the next one."""
    _, whole = small(None, 2)
    samebits.set_random_seed(2)
    seen = []
    loader = samebits.data.DataLoader(data(10, False), batch_size=4, shuffle=True)
    with samebits.Run(None) as run:
        expected = [batch[0] for _, batch in run.steps(loader, 2)]
    loader = samebits.data.DataLoader(data(10, False), batch_size=4, shuffle=True)
    with samebits.Run(None) as run:
        for step, batch in run.steps(loader, 3, steps_per_epoch=2):
            seen.append(batch[0])
            assert (step.epoch, step.batch_index, step.ends_epoch) == (
                len(seen[1:]) // 2,
                len(seen[1:]) % 2,
                len(seen) % 2 == 0,
            )
    assert len(seen) == 6
    assert all(map(torch.equal, seen, expected))


def test_initial_epoch_is_that_of_a_new_training(tmp_path):
    """Epochs are numbered from initial_epoch; a resumed fit keeps its own numbers, whatever it is told then."""
    seen = []
    samebits.set_random_seed(2)
    model = nn.Linear(2, 2)
    watch = samebits.callbacks.Lambda(on_epoch_begin=lambda trainer, epoch: seen.append(epoch))
    opt = torch.optim.SGD(model.parameters(), 0.1)
    trainer = samebits.Trainer(model, nn.functional.cross_entropy, opt, callbacks=[watch])
    loader = samebits.data.DataLoader(data(10, False), batch_size=4)
    logs = {"run_dir": tmp_path / "r", "verbose": 0, "ignore": ["callback_0_Lambda"]}  # `seen` is a log
    assert trainer.fit(loader, 5, initial_epoch=3, **logs).epoch == [3, 4]
    assert trainer.fit(loader, 6, initial_epoch=5, **logs).epoch == [3, 4, 5]
    assert seen == [3, 4, 5]


def test_verify_kills_between_two_steps_of_the_optimizer(forked, tmp_path):
    """`verify`'s kill in a step's optimizer hits a step that only accumulates gradients, too: at its end."""

    def killed():
        process.observers.append(Killer("optimizer", 1, lambda *about: None))
        trainer = samebits.Trainer(model, nn.functional.cross_entropy, opt, accumulate=3)
        trainer.fit(samebits.data.DataLoader(data(9, False), batch_size=3), 1, verbose=0)

    samebits.set_random_seed(1)
    model = nn.Linear(2, 2)
    opt = torch.optim.SGD(model.parameters(), 0.1)
    assert forked(killed).code == -signal.SIGKILL
