"""Checks of the arguments of `Trainer`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from samebits._arguments import is_fraction, is_int, is_number, require
from samebits.callbacks import Callback
from samebits.errors import InvalidArgumentError, UnimplementedError

PRECISIONS = {None: None, "bf16": torch.bfloat16, "fp16": torch.float16}


def check_parts(model: Any, loss_fn: Any, optimizer: Any) -> None:
    """Raises when one of the three is invalid."""
    if not isinstance(model, torch.nn.Module):
        raise InvalidArgumentError(
            f"Trainer(model, loss_fn, optimizer): the model is a {type(model).__name__}, no torch.nn.Module. Was the order "
            "swapped?"
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidArgumentError(
            f"Trainer(model, loss_fn, optimizer): the optimizer is a {type(optimizer).__name__}. Was the order swapped?"
        )
    if loss_fn is not None and (isinstance(loss_fn, torch.optim.Optimizer | type) or not callable(loss_fn)):
        what = f"the class {loss_fn.__name__}" if isinstance(loss_fn, type) else f"a {type(loss_fn).__name__}"
        raise InvalidArgumentError(
            f"Trainer(model, loss_fn, optimizer): the loss_fn is {what}. Give a function of output and target, "
            "nn.CrossEntropyLoss() say, or None for a model that computes its loss itself."
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise UnimplementedError(
            "Trainer: LBFGS calls the model many times per step. Write the loop with samebits.Run, which saves it as well."
        )


def check_callbacks(callbacks: Sequence[Callback]) -> None:
    """Raises for anything but a sequence of instances of `Callback`."""
    if isinstance(callbacks, Callback) or callbacks is None:
        raise InvalidArgumentError("Trainer(callbacks=...): give a list of callbacks, [callback].")
    for callback in callbacks:
        if isinstance(callback, type):
            raise InvalidArgumentError(
                f"Trainer(callbacks=[{callback.__name__}]): a class. Give an instance, {callback.__name__}(...)."
            )
        if not isinstance(callback, Callback):
            raise InvalidArgumentError(
                f"Trainer(callbacks=[{callback!r:.60}]): not a samebits.callbacks.Callback. Derive it from that "
                "class, so that it has a state."
            )
        for hook in [name for name in vars(Callback) if name.startswith("on_")]:
            _check_hook(callback, hook)


def _check_hook(callback: Callback, hook: str) -> None:
    """Raises for a hook with other arguments, Keras's `on_epoch_end(epoch, logs)` say, which would fail after an epoch."""
    _, *given = inspect.signature(getattr(Callback, hook)).parameters
    try:
        taken = inspect.signature(getattr(callback, hook))
    except ValueError:  # written in C
        return
    try:
        taken.bind(*given)
    except TypeError:
        raise InvalidArgumentError(
            f"Trainer(callbacks=[{type(callback).__name__}]): its {hook} takes {taken}, and is called with "
            f"({', '.join(given)}): let it take these (in a class after self)."
        ) from None


def check_scheduler(scheduler: Any, step: str, optimizer: torch.optim.Optimizer) -> None:
    """Raises when the scheduler is invalid, belongs to another optimizer, or cannot be stepped as requested."""
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
            f"({type(scheduler.optimizer).__name__}), so that it would change nothing here. Make it with the trainer's."
        )
    if isinstance(scheduler, ReduceLROnPlateau) and step == "step":
        raise InvalidArgumentError(
            "Trainer(scheduler=ReduceLROnPlateau(...), scheduler_step='step'): its metric is known at the end of an "
            "epoch. Pass scheduler_step='epoch'."
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
            f"Trainer(forward=..., {given}=...): the function computes loss and metrics itself, and returns them. Pass None "
            "as loss_fn, and no metrics."
        )
