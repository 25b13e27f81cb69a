"""Epochs of a given number of batches, whatever the length of the loader's own passes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from samebits._context import Position, process
from samebits.errors import InvalidArgumentError, RunMismatchError
from samebits.train._loop.batch_source import BatchSource


class FixedLengthEpochs:
    """A source whose epochs have `steps` batches: each continues in the loader where the last one ended.

    The batches of a pass that an epoch leaves over come first in the next epoch, and the next pass follows them.
    """

    def __init__(self, source: BatchSource, steps: int) -> None:
        self._source = source
        self.steps = steps
        """Batches of an epoch."""
        self._pass = self._batch = 0
        """Position in the loader: number of complete passes, and of batches since."""
        self._held: dict[str, Any] | None = None

    @property
    def rolled(self) -> int:
        """Rolling digest of the batches of the loader's pass, if it keeps one."""
        return self._source.rolled

    def state(self) -> dict[str, Any]:
        """Returns the state for a commit: the position in the loader, and the loader's own state."""
        return self._held or {
            "steps": self.steps,
            "pass": self._pass,
            "batch": self._batch,
            "loader": self._source.state(),
        }

    def load(self, state: dict[str, Any], batch_index: int) -> None:
        """Restores a state; raises `RunMismatchError` in the middle of an epoch of another length."""
        if batch_index and state["steps"] != self.steps:
            raise RunMismatchError(
                f"steps_per_epoch={self.steps}: the commit is in the middle of an epoch of {state['steps']} steps. "
                "Ask for as many, or use another run directory."
            )
        self._pass, self._batch = state["pass"], state["batch"]
        self._source.load(state["loader"], self._batch)

    def set_position(self, position: Position) -> None:
        """Sets the position in the run of the next batch; it matters where a pass begins."""
        if self._batch == 0:
            self._source.set_position(replace(position, batch_index=0))

    def hold(self) -> None:
        """Keeps the current state until `release`."""
        self._held = self.state()

    def release(self) -> None:
        """Notes that the batch has arrived, and that the loop has it."""
        self._held = None

    def next(self, epoch: int, batch_index: int) -> tuple[Any, bool]:
        """Returns the next batch, and True if it is the last one of the epoch of `steps` batches."""
        batch, ends = self._source.next(self._pass, self._batch)
        self._pass, self._batch = (self._pass + 1, 0) if ends else (self._pass, self._batch + 1)
        return batch, batch_index + 1 >= self.steps

    def leave_epoch(self) -> None:
        """Ends an epoch that may have batches left: they come first in the next one."""

    def finish(self) -> dict[str, Any]:
        """Releases the iterator at the end of the loop; returns the state, which may be inside a pass."""
        state = self.state()
        self._source.finish()
        return state


def with_epoch_length(source: BatchSource, steps_per_epoch: int | None) -> BatchSource | FixedLengthEpochs:
    """Returns `source` with epochs of that many batches; None: with its own."""
    if steps_per_epoch is None:
        return source
    steps = min(steps_per_epoch, source.limit or steps_per_epoch)
    source.limit = None
    return FixedLengthEpochs(source, steps)


def length(loader: Any) -> int | None:
    """Returns the number of batches of a pass over `loader`; None if it is unknown."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None


def is_endless(loader: Any) -> bool:
    """Returns True for a pipeline without an end (`repeat()`), also inside a torch loader; of others nothing is known."""
    return any(getattr(one, "endless", False) is True for one in (loader, getattr(loader, "dataset", None)))


def epoch_length(loader: Any, steps_per_epoch: int | None) -> int | None:
    """Returns the number of batches of an epoch of a loop over `loader`; None if it is unknown before its end."""
    known = [steps_per_epoch or length(loader), process.overrides.batches_per_epoch]
    return min((one for one in known if one is not None), default=None) if known[0] is not None else None


def check_steps(loader: Any, steps: Any, call: str) -> None:
    """Raises when `loader` does not have `steps` batches, or no loader can; or it has no end and `steps` is None.

    `call` names the argument.
    """
    if steps is None:
        if is_endless(loader):
            name = call.rpartition("(")[2]
            raise InvalidArgumentError(
                f"{call}=None): the {type(loader).__name__} does not end, and so its first epoch would not. "
                f"Give {name}=N, the number of batches of an epoch."
            )
        return
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise InvalidArgumentError(f"{call}={steps!r}): must be an int of at least 1.")
    known = length(loader)
    if known is not None and steps > known:
        raise InvalidArgumentError(
            f"{call}={steps}): the {type(loader).__name__} has {known} batches. Ask for at most as many; more epochs "
            "read it more often."
        )
