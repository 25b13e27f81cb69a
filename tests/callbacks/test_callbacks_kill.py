"""All callbacks in one `Trainer.fit` that is killed: their files and their state end as if it had not been."""

import os
import signal

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

import samebits
from samebits import _digest as digest
from samebits._context import CheckOverrides, process
from samebits.audit._record.record_file import RecordFile, read_record
from samebits.audit._record.recorder import Recorder, recording
from samebits.callbacks import (
    CSVLogger,
    EarlyStopping,
    Lambda,
    LearningRateScheduler,
    ModelCheckpoint,
    ProgressBar,
    ReduceLROnPlateau,
    TensorBoard,
    TerminateOnNaN,
)


class Forgetful(CSVLogger):
    """A logger as others are: what it has written is not part of the commit."""

    _state = ()

    def on_train_begin(self, trainer):
        super().on_train_begin(trainer)
        if trainer.resumed:
            self._file.write(self.path.with_suffix(".copy").read_bytes())
            self._fields = ["loss"]


def dataset(length):
    x = torch.linspace(-1, 1, length)[:, None]
    return torch.utils.data.TensorDataset(x, (x[:, 0] > 0.2).long())


def fit(folder, kill_at=None, commits=None, logger=CSVLogger, more=()):
    """Returns the digest of weights, optimizer and callbacks, and the history; the files are in `folder`."""
    samebits.set_random_seed(4)
    process.overrides = CheckOverrides(commit_steps=commits)
    model = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), samebits.nn.Dropout(0.3), nn.Linear(8, 2))
    opt = torch.optim.Adam(model.parameters(), 0.02)
    counted = {"steps": 0}

    def count(trainer, step, logs):
        counted["steps"] += 1
        if step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    callbacks = [
        LearningRateScheduler(lambda epoch, lr: lr * (0.9 if epoch else 1.0)),
        ReduceLROnPlateau(opt, factor=0.5, patience=1, min_delta=0.05),
        EarlyStopping("val_accuracy", patience=4),
        TerminateOnNaN(),
        ModelCheckpoint(folder / "files" / "best.safetensors", save_best_only=True),
        ModelCheckpoint(folder / "files" / "{epoch:02d}.pt", keep_best=2),
        ModelCheckpoint(folder / "files" / "all-{epoch}.pth"),
        CSVLogger(folder / "files" / "epochs.csv"),
        CSVLogger(folder / "files" / "appended.csv", append=True),
        logger(folder / "files" / "steps.csv", update_freq="batch", separator=";"),
        ProgressBar(file=open(os.devnull, "w")),
        *more,
        Lambda(counted, on_batch_end=count),
    ]
    metrics = {"accuracy": lambda out, y: (out.argmax(1) == y).float().mean()}
    trainer = samebits.Trainer(model, nn.functional.cross_entropy, opt, callbacks=callbacks, metrics=metrics)
    loader = samebits.data.DataLoader(dataset(40), batch_size=8, shuffle=True)
    validation = samebits.data.DataLoader(dataset(20), batch_size=10)
    # else it is an error that names what it forgets
    ignore = ["callback_9_Forgetful"] if logger is Forgetful else []
    history = trainer.fit(
        loader, 8, validation_data=validation, run_dir=folder / "run", verbose=False, ignore=ignore
    )
    state = [callback.state_dict() for callback in callbacks]
    return digest.of_value([model.state_dict(), opt.state_dict(), state]), history


def files(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in (folder / "files").rglob("*")
        if path.is_file()
    }


def begin(folder):
    """A folder with a log of an earlier training in it."""
    (folder / "files").mkdir(parents=True)
    (folder / "files" / "appended.csv").write_text("epoch,loss\n0,7.0\n")
    return folder


@pytest.fixture
def whole(forked, tmp_path):
    """What one go gives."""
    folder = begin(tmp_path / "whole")
    return forked(fit, folder).value, files(folder)


def test_killed_twice_all_callbacks_end_as_in_one_go(forked, tmp_path, whole):
    """Killed before the first commit, then up to three epochs behind one: weights, rates, state and every file are equal."""
    expected, expected_files = whole
    folder = begin(tmp_path / "killed")
    assert forked(lambda: fit(folder, kill_at=7, commits=())).code == -9
    assert len(files(folder)["files/steps.csv"].splitlines()) == 1 + 8  # it had come that far
    assert forked(lambda: fit(folder, kill_at=27, commits=(12,))).code == -9
    assert len(files(folder)["files/steps.csv"].splitlines()) == 1 + 28
    assert forked(lambda: fit(folder)).value == expected
    assert files(folder) == expected_files
    assert forked(lambda: fit(folder)).value == expected  # finished: nothing is done again
    assert files(folder) == expected_files
    history = expected[1]
    assert history.history["learning_rate"][0] > 2 * history.history["learning_rate"][-1]
    assert len(expected_files["files/steps.csv"].splitlines()) == 1 + 5 * len(history.history["loss"])
    assert expected_files["files/appended.csv"].startswith(b"epoch,loss\n0,7.0\n0,")


def shown(folder):
    """What TensorBoard shows of a folder: by tag, each (step, value)."""
    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]
    }


@pytest.mark.slow
def test_tensorboard_shows_a_killed_training_as_one_go(forked, tmp_path):
    """Killed before the first commit and behind one: every step once, with the values of one go; before the resume (control) not."""

    def trained(name, **how):
        board = tmp_path / name / "board"
        forked(lambda: fit(tmp_path / name, more=[TensorBoard(board, update_freq="batch")], **how)[1].history)
        return shown(board)

    expected = trained("whole")
    assert [step for step, _ in expected["batch/loss"]] == list(range(len(expected["loss"]) * 5))
    trained("killed", kill_at=7, commits=())
    assert trained("killed", kill_at=27, commits=(12,)) != expected
    assert trained("killed") == expected


def recorded(folder, to):
    """What the recorder sees of the callbacks in every step, by step and path."""
    recorder = Recorder(RecordFile(to))
    with recording(recorder, "script.py", level="state", every=1, allowed=(folder.parent,)):
        fit(folder)
    recorder.finish()
    recorder.file.close()
    steps = read_record(to).steps
    return {step: dict(line.leaves["locals"]) for (_, step), line in steps.items()}


def test_no_attribute_tells_that_there_was_a_kill(forked, tmp_path):
    """At every step after the resume each attribute of each callback is the one of the run in one go, as verify asks."""
    folder = begin(tmp_path / "fit")
    assert forked(lambda: fit(folder, kill_at=27, commits=(12,))).code == -9
    mine = forked(recorded, folder, tmp_path / "b").value
    folder.rename(tmp_path / "killed")  # paths are attributes, too
    expected = forked(recorded, begin(folder), tmp_path / "a").value
    assert list(mine) == list(range(12, len(expected)))
    assert any(path.startswith("callbacks[5].kept") for path in mine[12])  # it does look there
    for step, leaves in mine.items():
        assert leaves == expected[step], step
        assert leaves != expected[step - 1]  # control: it tells one step from the next


@pytest.mark.slow
def test_a_log_that_the_commit_does_not_know_repeats_steps(forked, tmp_path, whole):
    """Negative control: a logger whose state is not in the commit has steps twice after the kill."""
    folder = begin(tmp_path / "killed")
    assert forked(lambda: fit(folder, kill_at=27, commits=(12,), logger=Forgetful)).code == -9
    steps = folder / "files" / "steps.csv"
    steps.with_suffix(".copy").write_bytes(steps.read_bytes())
    assert forked(lambda: fit(folder, logger=Forgetful)).code == 0
    mine, expected = files(folder), whole[1]
    assert mine["files/steps.csv"].count(b"\n20;") == 2
    assert mine["files/epochs.csv"] == expected["files/epochs.csv"]
