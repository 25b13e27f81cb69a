"""The base of callbacks that watch a metric: direction, comparison, and the error when it is missing."""

from __future__ import annotations

from typing import Any

import numpy as np

from samebits.callbacks._base import AttributeState, Callback, TrainerView
from samebits.callbacks._callback_errors import check
from samebits.errors import InvalidArgumentError

_RISING = ("acc", "accuracy", "auc", "precision", "recall", "f1", "f1_score", "iou", "r2", "r2_score")
_FALLING = ("loss", "error", "mae", "mse", "rmse", "crossentropy", "cross_entropy", "perplexity")


class Monitored(AttributeState, Callback):
    """Compares a metric with the best so far, by the rule of Keras 3's `MonitorCallback`.

    Two of its properties are odd, and kept: values are compared as float32, and the first value is the best
    so far whatever it is. So a first NaN is never improved on, and a later one is no improvement.
    """

    best: float | None

    def __init__(self, monitor: str, mode: str, min_delta: float) -> None:
        check(self._call, monitor=monitor, mode=mode, min_delta=min_delta)
        self.monitor = monitor
        self.min_delta = abs(min_delta)
        self._rises = mode == "max" or (mode == "auto" and self._guess_rises())
        self.best = None

    @property
    def _call(self) -> str:
        return type(self).__name__

    def _guess_rises(self) -> bool:
        name = self.monitor.removeprefix("val_")
        if not name.endswith(_RISING + _FALLING):
            raise InvalidArgumentError(
                f"{self._call}(monitor={self.monitor!r}, mode='auto'): the name does not show whether the "
                "metric should rise or fall. Pass mode='max' or mode='min'."
            )
        return name.endswith(_RISING)

    def _improves(self, value: float, reference: float | None) -> bool:
        if reference is None:
            return True
        with np.errstate(over="ignore"):
            if self._rises:
                return bool(np.float32(value - self.min_delta) > np.float32(reference))
            return bool(np.float32(value + self.min_delta) < np.float32(reference))

    def _value(self, trainer: TrainerView, logs: dict[str, Any]) -> float | None:
        """Returns the metric; None in an epoch without validation.

        Raises `InvalidArgumentError` when no epoch will have it.
        """
        if self.monitor in logs:
            return float(logs[self.monitor])
        if self.monitor.startswith("val_"):
            if not trainer.validates:
                self._raise_unknown(logs, "Pass validation_data to fit, or monitor='loss'.")
            if not any(name.startswith("val_") for name in logs):
                return None
        return self._raise_unknown(logs, "Choose one of them.")

    def _raise_unknown(self, logs: dict[str, Any], cure: str) -> None:
        raise InvalidArgumentError(
            f"{self._call}(monitor={self.monitor!r}): the metrics are {', '.join(sorted(logs))}. {cure}"
        )
