"""Callbacks that set learning rates; their rules are those of Keras 3's callbacks of the same names.

Keras keeps a rate in float32, torch in a Python float: the values are equal up to that rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Real
from typing import Any

import torch

from samebits._arguments import can_be_called
from samebits.callbacks._base import Callback, TrainerView
from samebits.callbacks._callback_errors import check
from samebits.callbacks._monitored_metric import Monitored
from samebits.errors import InvalidArgumentError


class ReduceLROnPlateau(Monitored):
    """Multiplies the learning rates by `factor` when the metric has not improved for `patience` epochs.

    Adds `learning_rate`, the first group's rate in this epoch, to the logs.

    Args:
        optimizer: the optimizer whose param_groups are changed.
        monitor: name in the epoch's logs.
        factor: below 1.
        patience: epochs without improvement before the rate is reduced; 0 is the same as 1.
        mode: "min", "max", or "auto" (by the name: losses and errors are to fall, accuracies to rise).
        min_delta: a change counts as an improvement if it exceeds this.
        cooldown: epochs after a reduction in which nothing is counted.
        min_lr: lower bound of the rates.

    Example:
        >>> samebits.set_random_seed(1)
        >>> model, loss = torch.nn.Linear(2, 1, bias=False), torch.nn.MSELoss()
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        >>> plateau = samebits.callbacks.ReduceLROnPlateau(optimizer, "loss", factor=0.5, patience=2)
        >>> trainer = samebits.Trainer(model, loss, optimizer, callbacks=[plateau])
        >>> history = trainer.fit([(torch.zeros(4, 2), torch.ones(4, 1))], epochs=6, verbose=0)
        >>> history.history["learning_rate"]  # the loss stays at 1
        [1.0, 1.0, 1.0, 0.5, 0.5, 0.25]
    """

    _state = ("best", "wait", "cooldown_counter")

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        monitor: str = "val_loss",
        factor: float = 0.1,
        patience: int = 10,
        mode: str = "auto",
        min_delta: float = 1e-4,
        cooldown: int = 0,
        min_lr: float = 0.0,
    ) -> None:
        super().__init__(monitor, mode, min_delta)
        check(
            self._call,
            optimizer=optimizer,
            factor=factor,
            patience=patience,
            cooldown=cooldown,
            min_lr=min_lr,
        )
        self.optimizer = optimizer
        self.factor = factor
        self.patience = patience
        self.cooldown = cooldown
        self.min_lr = min_lr
        self._reset()

    def _reset(self) -> None:
        self.best = None
        self.wait = 0
        self.cooldown_counter = 0

    def on_train_begin(self, trainer: TrainerView) -> None:
        """Resets the state for a new training; a resumed one continues."""
        if not trainer.resumed:
            self._reset()

    def on_epoch_end(self, trainer: TrainerView, epoch: int, logs: dict[str, float]) -> None:
        """Reduces the rates by the rule of Keras 3's `ReduceLROnPlateau.on_epoch_end`."""
        logs["learning_rate"] = float(self.optimizer.param_groups[0]["lr"])
        value = self._value(trainer, logs)
        if value is None:
            return
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.wait = 0
        if self._improves(value, self.best):
            self.best = value
            self.wait = 0
        elif self.cooldown_counter == 0:
            self.wait += 1
            if self.wait >= self.patience:
                self._reduce()

    def _reduce(self) -> None:
        """Reduces the rates. Those at `min_lr` already stay, and then (Keras's rule) no cooldown begins."""
        groups = [group for group in self.optimizer.param_groups if float(group["lr"]) > self.min_lr]
        for group in groups:
            _set_rate(group, max(float(group["lr"]) * self.factor, self.min_lr))
        if groups:
            self.cooldown_counter = self.cooldown
            self.wait = 0


class LearningRateScheduler(Callback):
    """Sets the learning rates at the beginning of each epoch: `schedule(epoch, rate)`, or `schedule(epoch)`.

    `schedule` is called once per group of the trainer's optimizer, with the group's rate. It must be a
    function of its arguments alone, which has no state. Adds `learning_rate`, the first group's, to the logs.

    Example:
        >>> samebits.set_random_seed(1)
        >>> model, loss = torch.nn.Linear(2, 1), torch.nn.MSELoss()
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        >>> halve = samebits.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
        >>> trainer = samebits.Trainer(model, loss, optimizer, callbacks=[halve])
        >>> history = trainer.fit([(torch.ones(4, 2), torch.ones(4, 1))], epochs=3, verbose=0)
        >>> history.history["learning_rate"]
        [0.5, 0.25, 0.125]
    """

    def __init__(self, schedule: Callable[..., float]) -> None:
        if not callable(schedule):
            raise InvalidArgumentError(
                f"LearningRateScheduler({schedule!r:.60}): give a function of the epoch."
            )
        self.schedule = schedule
        self._takes_rate = can_be_called(schedule, 0, 0.1)

    def on_epoch_begin(self, trainer: TrainerView, epoch: int) -> None:
        """Computes all rates, then sets them."""
        groups = trainer.optimizer.param_groups
        rates = [self._rate(epoch, float(group["lr"])) for group in groups]
        for group, rate in zip(groups, rates, strict=True):
            _set_rate(group, rate)

    def on_epoch_end(self, trainer: TrainerView, epoch: int, logs: dict[str, float]) -> None:
        """Notes the rate."""
        logs["learning_rate"] = float(trainer.optimizer.param_groups[0]["lr"])

    def _rate(self, epoch: int, rate: float) -> float:
        new = self.schedule(epoch, rate) if self._takes_rate else self.schedule(epoch)
        if isinstance(new, bool) or not isinstance(new, Real) or not math.isfinite(float(new)):
            raise InvalidArgumentError(
                f"LearningRateScheduler: schedule(epoch={epoch}) returned {new!r:.60}. Return a finite "
                f"number."
            )
        return float(new)


def _set_rate(group: dict[str, Any], rate: float) -> None:
    if isinstance(group["lr"], torch.Tensor):  # a captured graph reads this very tensor
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate
