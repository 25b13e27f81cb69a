"""What the callbacks of a fit are told of its run."""

from __future__ import annotations

from collections.abc import Sequence

from samebits._context import Observer, Position
from samebits.callbacks import Callback
from samebits.callbacks._base import TrainerView
from samebits.train._run import Run


class Told(Observer):
    """Tells them what is durable."""

    def __init__(self, trainer: TrainerView, run: Run, callbacks: Sequence[Callback]) -> None:
        self._trainer, self._run, self._callbacks = trainer, run, callbacks

    def committed(self, run: Run, step: Position) -> None:
        """A commit of this run, or of another one in the process."""
        if run is self._run:
            for callback in self._callbacks:
                callback.on_commit(self._trainer, step.step)
