"""The events of commits, passed on to the callbacks of a fit."""

from __future__ import annotations

from collections.abc import Sequence

from samebits._context import Observer, Position
from samebits.callbacks import Callback
from samebits.callbacks._base import TrainerView
from samebits.train._run import Run


class CommitNotifier(Observer):
    """Calls `on_commit` of the callbacks when a commit of this run is durable."""

    def __init__(self, trainer: TrainerView, run: Run, callbacks: Sequence[Callback]) -> None:
        self._trainer, self._run, self._callbacks = trainer, run, callbacks

    def committed(self, run: Run, step: Position) -> None:
        """Passes on a commit of this run, not of another one in the process."""
        if run is self._run:
            for callback in self._callbacks:
                callback.on_commit(self._trainer, step.step)
