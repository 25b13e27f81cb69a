"""The arguments of one call of `Trainer.fit`, checked before anything is changed."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from samebits._arguments import require, require_int
from samebits.errors import InvalidArgumentError
from samebits.train._loop.loop_positions import check_steps
from samebits.train._run_arguments import check_batches


@dataclass(frozen=True)
class FitPlan:
    """The arguments of `fit` about epochs and validation.

    Raises:
        InvalidArgumentError: one is outside its range, or contradicts another or a loader's length.
    """

    loader: Iterable[Any]
    epochs: int
    initial_epoch: int = 0
    steps_per_epoch: int | None = None
    validation_data: Iterable[Any] | None = None
    validation_freq: int | Collection[int] = 1
    validation_steps: int | None = None

    def __post_init__(self) -> None:
        check_batches(self.loader, "fit(loader")
        require_int("fit", epochs=self.epochs)
        require_int("fit", 0, initial_epoch=self.initial_epoch)
        if self.initial_epoch >= self.epochs:
            raise InvalidArgumentError(
                f"fit(epochs={self.epochs}, initial_epoch={self.initial_epoch}): no epoch is left to train. epochs counts all "
                "epochs, those before initial_epoch too."
            )
        check_steps(self.loader, self.steps_per_epoch, "fit(steps_per_epoch")
        self._check_validation()

    def validates_after(self, epoch: int) -> bool:
        """Returns True if a validation follows `epoch` (from 0): after every `validation_freq` epochs, or after those listed (from 1)."""
        if self.validation_data is None:
            return False
        if isinstance(self.validation_freq, int):
            return (epoch + 1) % self.validation_freq == 0
        return epoch + 1 in self.validation_freq

    def _check_validation(self) -> None:
        options = {
            "validation_freq": self.validation_freq != 1,
            "validation_steps": self.validation_steps is not None,
        }
        for name in [name for name, given in options.items() if given and self.validation_data is None]:
            cure = "there is no validation_data. Pass validation_data=loader"
            require(False, "fit", cure, **{name: getattr(self, name)})
        if isinstance(self.validation_freq, Collection) and not isinstance(self.validation_freq, str):
            for epoch in self.validation_freq:
                require_int("fit", **{"validation_freq: an epoch": epoch})
        else:
            require_int("fit", validation_freq=self.validation_freq)
        if self.validation_data is not None:
            check_batches(self.validation_data, "fit(validation_data")
            if hasattr(self.validation_data, "__next__"):
                raise InvalidArgumentError(
                    f"fit(validation_data={type(self.validation_data).__name__}): it is read after each epoch. Pass a "
                    "samebits.data.DataLoader, a list of batches, or any object whose __iter__ starts anew."
                )
            check_steps(self.validation_data, self.validation_steps, "fit(validation_steps")
