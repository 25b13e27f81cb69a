"""The callbacks against what Keras 3's did with the same series (recorded by tests/facts/keras_callbacks.py)."""

import csv
import json
import math
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from samebits.callbacks import (
    CSVLogger,
    EarlyStopping,
    LearningRateScheduler,
    ModelCheckpoint,
    ReduceLROnPlateau,
    TerminateOnNaN,
)
from samebits.callbacks._monitored_metric import Monitored

FOLDER = Path(__file__).parent.parent / "facts"
FACTS = json.loads((FOLDER / "keras_callbacks.json").read_text())
SERIES = FACTS["series"]


class View:
    """What a callback sees of a trainer."""

    def __init__(self):
        self.model = self.eval_model = nn.Linear(1, 1, bias=False)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 1.0)
        self.run_dir, self.resumed, self.validates, self.stop_training = None, False, True, False


def stopping(values, arguments, callback=EarlyStopping):
    view, callback = View(), callback("val_loss", restore_best_weights=True, **arguments)
    callback.on_train_begin(view)
    for epoch, value in enumerate(values):
        nn.init.constant_(view.model.weight, epoch)
        callback.on_epoch_end(view, epoch, {"val_loss": value})
        if view.stop_training:
            break
    callback.on_train_end(view)
    ended = epoch if view.stop_training else None
    return {"stopped": ended, "best_epoch": callback.best_epoch, "weight": view.model.weight.item()}


def plateau(values, arguments):
    view = View()
    callback, rates = ReduceLROnPlateau(view.optimizer, **arguments), []
    callback.on_train_begin(view)
    for epoch, value in enumerate(values):
        callback.on_epoch_end(view, epoch, {"val_loss": value})
        rates.append(view.optimizer.param_groups[0]["lr"])
    return rates


def test_the_facts_are_many():
    """Every kind of fact is there, with both outcomes: training that stops and that does not, rates that fall and not."""
    assert FACTS["versions"]["keras"].startswith("3.")
    stopped = [outcome["stopped"] for _, _, outcome in FACTS["early_stopping"]]
    assert 20 <= stopped.count(None) < len(stopped) - 100
    lowest = [rates[-1] for _, _, rates in FACTS["reduce_lr_on_plateau"]]
    assert 10 < lowest.count(1.0) < len(lowest) - 200
    assert any(math.isnan(value) for values in SERIES for value in values)


def test_early_stopping_stops_where_keras_does():
    """For every recorded series and setting: the same last epoch, the same best epoch, its weights restored."""
    for number, arguments, outcome in FACTS["early_stopping"]:
        assert stopping(SERIES[number], arguments) == outcome, (SERIES[number], arguments)


class InDouble(EarlyStopping):
    """Compares as Python does, which seems the same."""

    def _improves(self, value, reference):
        if reference is None:
            return True
        difference = value - reference if self._rises else reference - value
        return difference > self.min_delta


class WorstFirst(EarlyStopping):
    """Begins with infinity as the best, which seems the same."""

    def _improves(self, value, reference):
        if reference is None:
            reference = -math.inf if self._rises else math.inf
        return super()._improves(value, reference)


@pytest.mark.parametrize("wrong", [InDouble, WorstFirst])
def test_the_facts_tell_keras_rule_from_its_likes(wrong):
    """Negative control: two rules that differ from Keras's in rounding, or after a NaN, contradict the facts."""
    assert any(
        stopping(SERIES[number], arguments, wrong) != outcome
        for number, arguments, outcome in FACTS["early_stopping"]
    )


def test_reduce_lr_on_plateau_reduces_where_keras_does():
    """For every recorded series and setting: the same rate after each epoch, up to Keras's float32."""
    for number, arguments, rates in FACTS["reduce_lr_on_plateau"]:
        mine = plateau(SERIES[number], arguments)
        np.testing.assert_allclose(mine, rates, rtol=1e-6, err_msg=f"{SERIES[number]} {arguments}")
        if arguments["factor"] == 0.5 and arguments["min_lr"] != 0.05:
            assert mine == rates  # no rounding there


def test_model_checkpoint_saves_what_keras_saves(tmp_path):
    """With save_best_only the same epochs are written, under the same names."""
    for case, (number, arguments, names) in enumerate(FACTS["model_checkpoint"]):
        folder = tmp_path / str(case)
        view = View()
        callback = ModelCheckpoint(folder / "{epoch:02d}-{val_loss:.3f}.pt", save_best_only=True, **arguments)
        callback.on_train_begin(view)
        for epoch, value in enumerate(SERIES[number]):
            callback.on_epoch_end(view, epoch, {"val_loss": value})
        assert sorted(path.stem for path in folder.glob("*")) == sorted(names), (SERIES[number], arguments)


def test_learning_rate_scheduler_sets_what_keras_sets():
    """Schedules of one and of two arguments give the same rates, up to Keras's float32."""
    schedules = runpy.run_path(str(FOLDER / "keras_callbacks.py"))["SCHEDULES"]
    for name, rates in FACTS["learning_rate_scheduler"].items():
        view, callback, mine = View(), LearningRateScheduler(schedules[name]), []
        for epoch in range(len(rates)):
            logs = {}
            callback.on_epoch_begin(view, epoch)
            callback.on_epoch_end(view, epoch, logs)
            mine.append(logs["learning_rate"])
        np.testing.assert_allclose(mine, rates, rtol=1e-6, err_msg=name)


def test_terminate_on_nan_ends_at_the_batch_where_keras_does():
    """For every recorded series of losses: NaN and both infinities end training, at the same batch."""
    for values, batch in zip(SERIES, FACTS["terminate_on_nan"], strict=True):
        view, ended = View(), None
        for step, value in enumerate(values):
            TerminateOnNaN().on_batch_end(view, step, {"loss": value})
            if view.stop_training:
                ended = step
                break
        assert ended == batch, values


def test_csv_logger_writes_the_cells_that_keras_writes(tmp_path):
    """The same columns and the same text in every cell, also where the first epoch has no validation."""
    for rows, text in FACTS["csv_logger"]:
        view, callback = View(), CSVLogger(tmp_path / "log.csv")
        callback.on_train_begin(view)
        for epoch, logs in enumerate(rows):
            callback.on_epoch_end(view, epoch, logs)
        callback.on_exit(view)
        mine = (tmp_path / "log.csv").read_text().splitlines()
        assert list(csv.reader(mine)) == list(csv.reader(text.splitlines()))


def test_direction_is_guessed_from_the_name():
    """Names of losses and errors are to fall, of accuracies to rise, with and without val_."""
    for name, rises in (("loss", False), ("val_mse", False), ("val_accuracy", True), ("top5_acc", True)):
        assert Monitored(name, "auto", 0.0)._rises is rises
