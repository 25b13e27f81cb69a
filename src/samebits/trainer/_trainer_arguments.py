"""The arguments of `Trainer` and of its `fit`, checked before anything is changed."""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from samebits._arguments import can_be_called, is_fraction, is_int, is_number, require, require_int
from samebits.callbacks import Callback
from samebits.callbacks._base import HOOKS
from samebits.errors import InvalidArgumentError, UnimplementedError
from samebits.train._loop.loop_positions import check_steps
from samebits.train._run_arguments import check_batches

PRECISIONS = {None: None, "bf16": torch.bfloat16, "fp16": torch.float16}


def check_parts(model: Any, loss_fn: Any, optimizer: Any) -> None:
    if not isinstance(model, torch.nn.Module):
        raise InvalidArgumentError(
            f"Trainer(model, loss_fn, optimizer): the model is a {type(model).__name__}, no torch.nn.Module. "
            "Was the order swapped?"
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidArgumentError(
            f"Trainer(model, loss_fn, optimizer): the optimizer is a {type(optimizer).__name__}. Was the "
            "order swapped?"
        )
    if loss_fn is not None and (isinstance(loss_fn, torch.optim.Optimizer | type) or not callable(loss_fn)):
        what = f"the class {loss_fn.__name__}" if isinstance(loss_fn, type) else f"a {type(loss_fn).__name__}"
        raise InvalidArgumentError(
            f"Trainer(model, loss_fn, optimizer): the loss_fn is {what}. Give a function of output and "
            "target, nn.CrossEntropyLoss() say, or None for a model that computes its loss itself."
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UnimplementedError(
            "Trainer: LBFGS calls the model many times per step. Write the loop with samebits.Run, which "
            "saves it as well."
        )


def check_callbacks(callbacks: Sequence[Callback]) -> None:
    """Raises for anything but a sequence of instances of `Callback`."""
    if isinstance(callbacks, Callback) or callbacks is None:
        raise InvalidArgumentError("Trainer(callbacks=...): give a list of callbacks, [callback].")
    for callback in callbacks:
        if isinstance(callback, type):
            raise InvalidArgumentError(
                f"Trainer(callbacks=[{callback.__name__}]): a class. "
                f"Give an instance, {callback.__name__}(...)."
            )
        if not isinstance(callback, Callback):
            raise InvalidArgumentError(
                f"Trainer(callbacks=[{callback!r:.60}]): not a samebits.callbacks.Callback. Derive it from "
                "that class, so that it has a state."
            )
        for hook in HOOKS:
            _check_hook(callback, hook)


def _check_hook(callback: Callback, hook: str) -> None:
    """Raises for a hook with other arguments, as Keras's `on_epoch_end(epoch, logs)`: it would fail later."""
    _, *given = inspect.signature(getattr(Callback, hook)).parameters
    method = getattr(callback, hook)
    if not can_be_called(method, *given) and not (
        hook == "on_train_end" and can_be_called(method, "trainer")
    ):
        raise InvalidArgumentError(
            f"Trainer(callbacks=[{type(callback).__name__}]): its {hook} takes {inspect.signature(method)}, "
            f"and is called with ({', '.join(given)}): let it take these (in a class after self)."
        )


def check_scheduler(scheduler: Any, step: str, optimizer: torch.optim.Optimizer) -> None:
    require(step in ("epoch", "step"), "Trainer", "one of 'epoch', 'step'", scheduler_step=step)
    if scheduler is None:
        none = "there is no scheduler. Pass one: scheduler=scheduler"
        require(step == "epoch", "Trainer", none, scheduler_step=step)
        return
    made = "not a scheduler of torch.optim.lr_scheduler, made with the optimizer"
    require(isinstance(scheduler, LRScheduler), "Trainer", made, scheduler=scheduler)
    if scheduler.optimizer is not optimizer:
        raise InvalidArgumentError(
            f"Trainer(scheduler={type(scheduler).__name__}(...)): it belongs to another optimizer "
            f"({type(scheduler.optimizer).__name__}), so that it would change nothing here. Make it with "
            f"the trainer's."
        )
    if isinstance(scheduler, ReduceLROnPlateau) and step == "step":
        raise InvalidArgumentError(
            "Trainer(scheduler=ReduceLROnPlateau(...), scheduler_step='step'): its metric is known at the "
            "end of an epoch. Pass scheduler_step='epoch'."
        )


def check_update(accumulate: Any, clip_norm: Any, clip_value: Any, precision: Any, ema: Any) -> None:
    """Raises for numbers outside their range."""
    batches = "the number of batches per step of the optimizer, an int of at least 1"
    require(is_int(accumulate), "Trainer", batches, accumulate=accumulate)
    for name, value in (("clip_norm", clip_norm), ("clip_value", clip_value)):
        fits = value is None or (is_number(value) and 0 < value < math.inf)
        require(fits, "Trainer", "must be a finite number above 0", **{name: value})
    if clip_norm is not None and clip_value is not None:
        raise InvalidArgumentError(
            f"Trainer(clip_norm={clip_norm}, clip_value={clip_value}): choose one (Keras's rule)."
        )
    require(precision in PRECISIONS, "Trainer", "one of None, 'bf16', 'fp16'", precision=precision)
    share = "the share of the average that stays at each step, between 0 and 1; usually 0.999"
    require(ema is None or is_fraction(ema), "Trainer", share, ema=ema)


def check_shards(shards: Any, metrics: Collection[str]) -> None:
    """Raises for an invalid number of shards, and for metrics that a rank would count alone."""
    fits = shards is None or (is_int(shards) and shards >= 1)
    require(fits, "Trainer", "the number of logical shards of a batch, an int of at least 1", shards=shards)
    if shards is not None and metrics:
        name = next(iter(metrics))
        raise InvalidArgumentError(
            f"Trainer(shards={shards}, metrics={{{name!r}: ...}}): an object counts the shards of its own "
            "rank alone. Give a function of output and target, whose mean is that of all samples."
        )


def check_hook(hook: Any, loss_fn: Any, metrics: Any) -> None:
    """Raises when a forward hook is invalid, or comes with arguments that it replaces."""
    if hook is None:
        return
    require(
        callable(hook), "Trainer", "give a function of model and batch that returns the loss", forward=hook
    )
    if loss_fn is not None or metrics:
        given = "loss_fn" if loss_fn is not None else "metrics"
        raise InvalidArgumentError(
            f"Trainer(forward=..., {given}=...): the function computes loss and metrics itself, and returns "
            "them. Pass None as loss_fn, and no metrics."
        )


@dataclass(frozen=True)
class FitPlan:
    """The arguments of `fit` about epochs and validation.

    Raises InvalidArgumentError for one outside its range, or against another or a loader's length.
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
                f"fit(epochs={self.epochs}, initial_epoch={self.initial_epoch}): no epoch is left to train. "
                "epochs counts all epochs, those before initial_epoch too."
            )
        check_steps(self.loader, self.steps_per_epoch, "fit(steps_per_epoch")
        self._check_validation()

    def validates_after(self, epoch: int) -> bool:
        """Returns True if `epoch` (from 0) is validated: every `validation_freq`-th, or listed (from 1)."""
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
                    f"fit(validation_data={type(self.validation_data).__name__}): it is read after each "
                    "epoch. Pass a samebits.data.DataLoader, a list of batches, or any object whose __iter__ "
                    "starts anew."
                )
            check_steps(self.validation_data, self.validation_steps, "fit(validation_steps")
