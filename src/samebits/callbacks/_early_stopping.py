"""Callbacks that end training; their rules are those of Keras 3's callbacks of the same names."""

from __future__ import annotations

import copy
import math
from typing import Any

from samebits.callbacks._base import Callback, TrainerView
from samebits.callbacks._callback_errors import check
from samebits.callbacks._monitored_metric import Monitored


class EarlyStopping(Monitored):
    """Stops training when the metric has not improved for `patience` epochs; may restore the best weights.

    Args:
        monitor: name in the epoch's logs.
        min_delta: a change counts as an improvement if it exceeds this.
        patience: epochs without improvement before training stops. It never stops after the first epoch.
        mode: "min", "max", or "auto" (by the name: losses and errors are to fall, accuracies to rise).
        baseline: patience is reset only by an improvement over this value.
        restore_best_weights: load the best epoch's weights when training ends (into `trainer.eval_model`).
        start_from_epoch: epochs to wait before watching.

    Example:
        >>> samebits.set_random_seed(1)
        >>> model, loss = torch.nn.Linear(2, 1), torch.nn.MSELoss()
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.0)  # nothing gets better
        >>> stop = samebits.callbacks.EarlyStopping("loss", patience=2)
        >>> trainer = samebits.Trainer(model, loss, optimizer, callbacks=[stop])
        >>> trainer.fit([(torch.ones(4, 2), torch.ones(4, 1))], epochs=100, verbose=0).epoch
        [0, 1, 2]
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
        super().__init__(monitor, mode, min_delta)
        check("EarlyStopping", patience=patience, baseline=baseline, start_from_epoch=start_from_epoch)
        self.patience = patience
        self.baseline = baseline
        self.restore_best_weights = restore_best_weights
        self.start_from_epoch = start_from_epoch
        self._reset()

    def _reset(self) -> None:
        self.best = None
        self.wait = 0
        self.best_epoch = 0
        self.stopped_epoch = 0
        self.best_weights: dict[str, Any] | None = None

    def on_train_begin(self, trainer: TrainerView) -> None:
        """Resets the state for a new training; a resumed one continues."""
        if not trainer.resumed:
            self._reset()

    def on_epoch_end(self, trainer: TrainerView, epoch: int, logs: dict[str, float]) -> None:
        """Decides by the rule of Keras 3's `EarlyStopping.on_epoch_end`."""
        value = self._value(trainer, logs)
        if value is None or epoch < self.start_from_epoch:
            return
        self.wait += 1
        if self._improves(value, self.best):
            self.best = value
            self._remember(trainer, epoch)
            if self.baseline is None or self._improves(value, self.baseline):
                self.wait = 0
        elif self.wait >= self.patience and epoch > 0:
            self.stopped_epoch = epoch
            trainer.stop_training = True

    def on_train_end(self, trainer: TrainerView, logs: dict[str, float] | None = None) -> None:
        """Loads the best weights."""
        if self.best_weights is not None:
            trainer.eval_model.load_state_dict(self.best_weights)

    def _remember(self, trainer: TrainerView, epoch: int) -> None:
        self.best_epoch = epoch
        if self.restore_best_weights:
            self.best_weights = dict(copy.deepcopy(trainer.eval_model.state_dict()))


class TerminateOnNaN(Callback):
    """Ends training, as finished, after the first step whose loss is NaN or infinite.

    As in Keras the weights have taken that step. The rest of the epoch is left out, also its `on_epoch_end`.
    Without this callback `fit` raises `NonFiniteLossError` before the step, and commits nothing more.

    Example:
        >>> samebits.set_random_seed(1)
        >>> model, loss = torch.nn.Linear(2, 1), torch.nn.MSELoss()
        >>> tell = samebits.callbacks.Lambda(on_batch_end=lambda trainer, step, logs: print(step, logs))
        >>> both = [samebits.callbacks.TerminateOnNaN(), tell]
        >>> trainer = samebits.Trainer(model, loss, torch.optim.SGD(model.parameters()), callbacks=both)
        >>> batches = [(torch.ones(4, 2), torch.full((4, 1), torch.nan))] * 3
        >>> history = trainer.fit(batches, epochs=2, verbose=0)  # ends after the first of six batches
        0 {'loss': nan}
    """

    def on_batch_end(self, trainer: TrainerView, step: int, logs: dict[str, float]) -> None:
        """Checks the epoch's loss so far."""
        if not math.isfinite(logs["loss"]):
            trainer.stop_training = True
