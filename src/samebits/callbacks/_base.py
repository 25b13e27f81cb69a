"""The base of callbacks: hooks of `Trainer.fit`, and a state that is part of every commit."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Protocol

import torch

from samebits.errors import InvalidArgumentError


class TrainerView(Protocol):
    """The parts of the trainer that a callback may use."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    epochs: int
    initial_epoch: int
    steps_per_epoch: int | None
    validates: bool
    """True if `fit` has validation data."""

    @property
    def eval_model(self) -> torch.nn.Module:
        """The model that validation measures: the moving average of the weights if any, else `model`."""
        ...

    @property
    def run_dir(self) -> Path | str | None:
        """The folder of the commits; None: nothing is saved or resumed."""
        ...

    @property
    def resumed(self) -> bool:
        """True if this `fit` resumes from a commit."""
        ...

    @property
    def stop_training(self) -> bool:
        """Set to True, it ends training after this step; at the end of an epoch: after its callbacks."""
        ...

    @stop_training.setter
    def stop_training(self, value: bool) -> None: ...

    def commit(self) -> None:
        """Requests a commit between this step and the next (before the first one, from `on_train_begin`)."""
        ...


_KERAS = {
    "on_train_batch_begin": "on_batch_begin",
    "on_train_batch_end": "on_batch_end",
    "on_test_begin": "on_validation_begin",
    "on_test_end": "on_validation_end",
}


class Callback:
    """Base of callbacks. Hooks do nothing here; override what is needed.

    A callback that remembers anything from one call to the next must return it from `state_dict` and take it
    back in `load_state_dict`: training may be killed between any two calls. Values are plain or tensors
    (copies, not the model's own).

    ```python
    class Patience(samebits.callbacks.Callback):
        def __init__(self):
            self.bad_epochs = 0

        def on_epoch_end(self, trainer, epoch, logs):
            self.bad_epochs += logs["val_loss"] > 0.5
            if self.bad_epochs == 3:
                trainer.stop_training = True

        def state_dict(self):
            return {"bad_epochs": self.bad_epochs}

        def load_state_dict(self, state_dict):
            self.bad_epochs = state_dict["bad_epochs"]
    ```

    A file that a callback writes is not part of the commit. After a kill it is ahead of the commit: reset it
    to the state in `on_train_begin` (`trainer.resumed`), and keep what a resume may need until `on_commit`.

    Example:
        >>> class Tell(samebits.callbacks.Callback):
        ...     def on_epoch_end(self, trainer, epoch, logs):
        ...         print("epoch", epoch, "of", trainer.epochs)
        >>> samebits.set_random_seed(1)
        >>> model, mse = torch.nn.Linear(2, 1), torch.nn.MSELoss()
        >>> trainer = samebits.Trainer(model, mse, torch.optim.SGD(model.parameters()), callbacks=[Tell()])
        >>> history = trainer.fit([(torch.ones(4, 2), torch.ones(4, 1))], epochs=1, verbose=0)
        epoch 0 of 1
    """

    __holds_user_objects__ = True
    every_rank = True
    """True: all processes of a distributed training call the hooks. False: rank 0 does (files, output)."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Raises for a hook that is never called."""
        super().__init_subclass__(**kwargs)
        for name in vars(cls):
            if name.startswith("on_") and name not in HOOKS:
                known = f"Here it is {_KERAS[name]}." if name in _KERAS else f"Hooks are {', '.join(HOOKS)}."
                raise InvalidArgumentError(f"class {cls.__name__}: there is no hook {name}. {known}")

    def on_train_begin(self, trainer: TrainerView) -> None:
        """Called once per `fit`, before its first step; after a resume too, with the state loaded already."""

    def on_epoch_begin(self, trainer: TrainerView, epoch: int) -> None:
        """Called in an epoch's first step, before the model; not again when a resume begins in its middle."""

    def on_batch_begin(self, trainer: TrainerView, step: int) -> None:
        """Called before the model; `step` is the number of the batch in the whole run, from 0."""

    def on_batch_end(self, trainer: TrainerView, step: int, logs: dict[str, float]) -> None:
        """Called after each batch; `logs` holds the means over the epoch so far, as Keras's.

        Those of the loss and of metrics that are functions, over the batches of this process; a metric object
        is computed at the epoch's end. With `accumulate` the weights have changed after a group's last batch.
        """

    def on_validation_begin(self, trainer: TrainerView) -> None:
        """Called before a validation of `fit`, after the epoch's last batch; again if it is resumed."""

    def on_validation_end(self, trainer: TrainerView, logs: dict[str, float]) -> None:
        """Called after a validation; `logs` holds its loss and metrics, by their own names."""

    def on_epoch_end(self, trainer: TrainerView, epoch: int, logs: dict[str, float]) -> None:
        """Called after the epoch's last step and its validation; entries may be added to `logs`."""

    def on_commit(self, trainer: TrainerView, step: int) -> None:
        """Called when a commit is durable that holds the effects of every step before number `step`.

        Its frequency depends on time: do not change the state here.
        """

    def on_train_end(self, trainer: TrainerView, logs: dict[str, float]) -> None:
        """Called once, when training has ended (again when a finished run is started again).

        `logs`: the last values of the history, by name. A hook that takes the trainer alone gets it alone.
        """

    def on_exit(self, trainer: TrainerView) -> None:
        """Called when `fit` is left in any way: release resources (a terminal, a file)."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the state; empty here."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the state."""


HOOKS = tuple(name for name in vars(Callback) if name.startswith("on_"))


class AttributeState:
    """Mixin of callbacks, before `Callback`: the state is the attributes named in `_state`."""

    _state: tuple[str, ...] = ()

    def _before_state(self) -> None:
        """Called before the state is read for a commit: writes what the commit relies on."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the named attributes; containers are copies, so that the next hook does not change them."""
        self._before_state()
        return {name: copy.copy(getattr(self, name)) for name in self._state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Sets the named attributes."""
        for name in self._state:
            setattr(self, name, copy.copy(state_dict[name]))
