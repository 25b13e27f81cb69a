"""What a callback is: hooks of `Trainer.fit`, and a state that is part of every commit."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from samebits.errors import InvalidArgumentError


class TrainerView(Protocol):
    """What a callback may use of the trainer."""

    model: torch.nn.Module
    epochs: int
    steps_per_epoch: int | None

    def stop_training(self) -> None:
        """Ends training after this epoch's callbacks."""
        ...


class Callback:
    """Base of callbacks. Hooks do nothing here; override what is needed.

    A callback that remembers anything from one call to the next must return it from `state_dict` and take it back
    in `load_state_dict`: training may be killed between any two calls. Values are plain or tensors.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuses a hook that nobody would call."""
        super().__init_subclass__(**kwargs)
        hooks = [name for name in vars(Callback) if name.startswith("on_")]
        for name in vars(cls):
            if name.startswith("on_") and name not in hooks:
                raise InvalidArgumentError(
                    f"class {cls.__name__}: there is no hook {name}. Hooks are {', '.join(hooks)}."
                )

    def on_train_begin(self, trainer: TrainerView) -> None:
        """Once per process, before the first step (after a restore, too)."""

    def on_batch_end(self, trainer: TrainerView, step: int, logs: dict[str, float]) -> None:
        """After each step; `logs` holds the batch's loss."""

    def on_epoch_end(self, trainer: TrainerView, epoch: int, logs: dict[str, float]) -> None:
        """After the epoch's last step and its validation; `logs` may be added to."""

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
        """The named attributes."""
        return {name: getattr(self, name) for name in self._state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Sets the named attributes."""
        for name in self._state:
            setattr(self, name, state_dict[name])
