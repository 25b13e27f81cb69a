"""The history that `fit` returns, and its state and that of the means of an epoch in commits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np
import torch

from samebits.errors import InvalidArgumentError
from samebits.trainer._metrics import Means


@dataclass
class History:
    """The result of `fit`, as in Keras: complete after a resume, as if never interrupted."""

    epoch: list[int] = field(default_factory=list)
    """The numbers of the trained epochs."""
    history: dict[str, list[float]] = field(default_factory=dict)
    """One value per epoch for each name; those of a validation only for epochs with one."""


class Logbook:
    """The part of a fit's state that is in no object of the user's; in every commit."""

    def __init__(self) -> None:
        self.initial_epoch = 0
        self.means = Means()
        self.validation = Means()
        """Means of the validation under way, which may be killed and resumed inside."""
        self.history = History()
        self._packed: dict[str, Any] | None = None
        """The history as arrays, cached until an epoch is added: a commit may come after each step."""

    def end_epoch(self, epoch: int, logs: Mapping[str, Any]) -> None:
        """Adds an epoch's values. Raises `InvalidArgumentError` for one that is no number."""
        for name, value in logs.items():
            if not isinstance(value, Real) and not (isinstance(value, torch.Tensor) and value.numel() == 1):
                raise InvalidArgumentError(
                    f"on_epoch_end: logs[{name!r}] is a {type(value).__name__}. Add numbers only."
                )
        self.history.epoch.append(epoch)
        for name, value in logs.items():
            self.history.history.setdefault(name, []).append(float(value))
        self._packed = None

    def state_dict(self) -> dict[str, Any]:
        if self._packed is None:
            values = {name: np.array(of, np.float64) for name, of in self.history.history.items()}
            self._packed = {"epoch": np.array(self.history.epoch, np.int64), "history": values}
        return {
            "initial_epoch": self.initial_epoch,
            "sums": dict(self.means.sums),
            "validation": dict(self.validation.sums),
            **self._packed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.initial_epoch = state["initial_epoch"]
        self.means.sums = dict(state["sums"])
        self.validation.sums = dict(state["validation"])
        values = {name: array.tolist() for name, array in state["history"].items()}
        self.history = History(state["epoch"].tolist(), values)
        self._packed = None
