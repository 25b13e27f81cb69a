"""The call of `on_commit` of the callbacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from samebits._context import Observer, Position
from samebits.callbacks._base import Callback, TrainerView


class CommitNotifier(Observer):
    """Calls `on_commit` of the callbacks when a commit of `run`, a `samebits.Run`, is durable."""

    def __init__(self, trainer: TrainerView, run: Any, callbacks: Sequence[Callback]) -> None:
        self._trainer, self._run, self._callbacks = trainer, run, callbacks

    def committed(self, run: Any, step: Position) -> None:
        """Passes on a commit of this run, not of another run in the process."""
        if run is self._run:
            for callback in self._callbacks:
                callback.on_commit(self._trainer, step.step)
