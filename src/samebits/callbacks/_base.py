"""What a callback is: hooks of `Trainer.fit`, and a state that is part of every commit."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Protocol

import torch

from samebits.errors import InvalidArgumentError


class TrainerView(Protocol):
    """What a callback may use of the trainer."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    epochs: int
    initial_epoch: int
    steps_per_epoch: int | None
    validates: bool
    """Whether `fit` was given validation data."""

    @property
    def eval_model(self) -> torch.nn.Module:
        """What validation measures: the moving average of the weights, if there is one, else `model`."""
        ...

    @property
    def run_dir(self) -> Path | str | None:
        """Where commits go; None: there are none, and nothing will ever be resumed."""
        ...

    @property
    def resumed(self) -> bool:
        """Whether this `fit` goes on from a commit."""
        ...

    def stop_training(self) -> None:
        """Ends training after this step; at the end of an epoch: after its callbacks."""
        ...

    def commit(self) -> None:
        """Asks for a commit between this step and the next (before the first one, from `on_train_begin`)."""
        ...


_KERAS = {
    "on_train_batch_begin": "on_batch_begin",
    "on_train_batch_end": "on_batch_end",
    "on_test_begin": "on_validation_begin",
    "on_test_end": "on_validation_end",
}


class Callback:
    """Base of callbacks. Hooks do nothing here; override what is needed.

    A callback that remembers anything from one call to the next must return it from `state_dict` and take it back
    in `load_state_dict`: training may be killed between any two calls. Values are plain or tensors (copies, not the
    model's own).

    ```python
    class Patience(samebits.callbacks.Callback):
        def __init__(self):
            self.bad_epochs = 0

        def on_epoch_end(self, trainer, epoch, logs):
            self.bad_epochs += logs["val_loss"] > 0.5
            if self.bad_epochs == 3:
                trainer.stop_training()

        def state_dict(self):
            return {"bad_epochs": self.bad_epochs}

        def load_state_dict(self, state_dict):
            self.bad_epochs = state_dict["bad_epochs"]
    ```

    A file that a callback writes is not part of the commit. After a kill it is ahead of it: bring it back to what
    the state says in `on_train_begin` (`trainer.resumed`), and keep what a resume may still need until `on_commit`.
    """

    every_rank = True
    """Whether every process of a distributed training calls the hooks; False for what writes files or prints: rank 0 does."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuses a hook that nobody would call."""
        super().__init_subclass__(**kwargs)
        hooks = [name for name in vars(Callback) if name.startswith("on_")]
        for name in vars(cls):
            if name.startswith("on_") and name not in hooks:
                known = f"Here it is {_KERAS[name]}." if name in _KERAS else f"Hooks are {', '.join(hooks)}."
                raise InvalidArgumentError(f"class {cls.__name__}: there is no hook {name}. {known}")

    def on_train_begin(self, trainer: TrainerView) -> None:
        """Once per `fit`, before its first step; after a resume too, with the state loaded already."""

    def on_epoch_begin(self, trainer: TrainerView, epoch: int) -> None:
        """In the epoch's first step, before the model is called; not again when an epoch is resumed in its middle."""

    def on_batch_begin(self, trainer: TrainerView, step: int) -> None:
        """Before the model is called; `step` is the number of the batch in the whole run, from 0."""

    def on_batch_end(self, trainer: TrainerView, step: int, logs: dict[str, float]) -> None:
        """After each batch; `logs` holds its loss. With `accumulate` the weights have changed after a group's last."""

    def on_validation_begin(self, trainer: TrainerView) -> None:
        """Before a validation of `fit`, behind the epoch's last batch; again when it was killed and is resumed."""

    def on_validation_end(self, trainer: TrainerView, logs: dict[str, float]) -> None:
        """After it; `logs` holds its loss and metrics, by their own names."""

    def on_epoch_end(self, trainer: TrainerView, epoch: int, logs: dict[str, float]) -> None:
        """After the epoch's last step and its validation; `logs` may be added to."""

    def on_commit(self, trainer: TrainerView, step: int) -> None:
        """A commit is durable that holds the effects of every step before number `step`.

        How often that happens is a matter of time: change nothing here that is part of the state.
        """

    def on_train_end(self, trainer: TrainerView) -> None:
        """Once, when training has ended (again when a finished run is started again)."""

    def on_exit(self, trainer: TrainerView) -> None:
        """When `fit` is left, in whatever way: give back what is held (a terminal, a file)."""

    def state_dict(self) -> dict[str, Any]:
        """The state; nothing here."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Puts the state back."""


class AttributeState(Callback):
    """A callback whose state is the attributes named in `_state`."""

    _state: tuple[str, ...] = ()

    def state_dict(self) -> dict[str, Any]:
        """The named attributes; containers are copies, so that the next hook does not change what was taken."""
        return {name: copy.copy(getattr(self, name)) for name in self._state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Sets the named attributes."""
        for name in self._state:
            setattr(self, name, copy.copy(state_dict[name]))
