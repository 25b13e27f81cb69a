"""Callbacks that watch a metric; their rules are those of Keras 3's callbacks of the same names."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch

from samebits.callbacks.base import AttributeState, TrainerView
from samebits.errors import InvalidArgumentError


class _Monitor(AttributeState):
    """Compares a metric with the best so far."""

    def __init__(self, monitor: str, mode: str, min_delta: float, patience: int) -> None:
        call = type(self).__name__
        if mode not in ("auto", "min", "max"):
            raise InvalidArgumentError(f"{call}(mode={mode!r}): one of 'auto', 'min', 'max'.")
        if patience < 0:
            raise InvalidArgumentError(f"{call}(patience={patience!r}): must be at least 0.")
        self.monitor = monitor
        self.min_delta = abs(min_delta)
        self.patience = patience
        higher = mode == "max" or (
            mode == "auto" and monitor.removeprefix("val_").endswith(("acc", "accuracy", "auc"))
        )
        self._sign = 1.0 if higher else -1.0
        self.best = -math.inf * self._sign
        self.wait = 0

    def _improves(self, value: float, best: float) -> bool:
        return self._sign * (value - best) > self.min_delta

    def _value(self, logs: dict[str, float]) -> float | None:
        if self.monitor not in logs:
            warnings.warn(
                f"{type(self).__name__}(monitor={self.monitor!r}): not among the logs ({', '.join(sorted(logs))}). "
                "Pass validation_data to fit, or monitor='loss'.",
                stacklevel=4,
            )
        return logs.get(self.monitor)


class EarlyStopping(_Monitor):
    """Stops training when the metric has not improved for `patience` epochs; restores the best weights at the end.

    Args:
        monitor: name in the epoch's logs.
        min_delta: what counts as an improvement must exceed it.
        patience: epochs without improvement before training stops.
        mode: "min", "max", or "auto" (names ending in acc, accuracy, auc are to grow).
        baseline: patience is reset only by an improvement over this value.
        restore_best_weights: load the weights of the best epoch when training ends.
        start_from_epoch: epochs to wait before watching.
    """

    _state = ("best", "wait", "best_epoch", "stopped_epoch", "best_weights")

    def __init__(
        self,
        monitor: str = "val_loss",
        min_delta: float = 0.0,
        patience: int = 0,
        mode: str = "auto",
        baseline: float | None = None,
        restore_best_weights: bool = True,
        start_from_epoch: int = 0,
    ) -> None:
        super().__init__(monitor, mode, min_delta, patience)
        self.baseline = baseline
        self.restore_best_weights = restore_best_weights
        self.start_from_epoch = start_from_epoch
        self.best_epoch = 0
        self.stopped_epoch = 0
        self.best_weights: dict[str, Any] | None = None

    def on_epoch_end(self, trainer: TrainerView, epoch: int, logs: dict[str, float]) -> None:
        """Keras 3's rule, `EarlyStopping.on_epoch_end`."""
        value = self._value(logs)
        if value is None or epoch < self.start_from_epoch:
            return
        if self.restore_best_weights and self.best_weights is None:
            self._remember(trainer, epoch)
        self.wait += 1
        if self._improves(value, self.best):
            self.best = value
            self._remember(trainer, epoch)
            if self.baseline is None or self._improves(value, self.baseline):
                self.wait = 0
            return
        if self.wait >= self.patience and epoch > 0:
            self.stopped_epoch = epoch
            trainer.stop_training()

    def on_train_end(self, trainer: TrainerView) -> None:
        """Loads the best weights."""
        if self.best_weights is not None:
            trainer.model.load_state_dict(self.best_weights)

    def _remember(self, trainer: TrainerView, epoch: int) -> None:
        self.best_epoch = epoch
        if self.restore_best_weights:
            state = trainer.model.state_dict()
            self.best_weights = {name: value.detach().clone() for name, value in state.items()}


class ReduceLROnPlateau(_Monitor):
    """Multiplies the learning rates by `factor` when the metric has not improved for `patience` epochs.

    Args:
        optimizer: whose param_groups are changed.
        monitor: name in the epoch's logs.
        factor: below 1.
        patience: epochs without improvement before the rate is reduced.
        mode: "min", "max", or "auto".
        min_delta: what counts as an improvement must exceed it.
        cooldown: epochs after a reduction in which nothing is counted.
        min_lr: lower bound of the rates.
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
        super().__init__(monitor, mode, min_delta, patience)
        if not 0 < factor < 1:
            raise InvalidArgumentError(f"ReduceLROnPlateau(factor={factor!r}): must be between 0 and 1.")
        self.optimizer = optimizer
        self.factor = factor
        self.cooldown = cooldown
        self.min_lr = min_lr
        self.cooldown_counter = 0

    def on_epoch_end(self, trainer: TrainerView, epoch: int, logs: dict[str, float]) -> None:
        """Keras 3's rule, `ReduceLROnPlateau.on_epoch_end`."""
        logs["lr"] = float(self.optimizer.param_groups[0]["lr"])
        value = self._value(logs)
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
        for group in self.optimizer.param_groups:
            group["lr"] = max(float(group["lr"]) * self.factor, self.min_lr)
        self.cooldown_counter = self.cooldown
        self.wait = 0
