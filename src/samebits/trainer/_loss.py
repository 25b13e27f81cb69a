"""The loss of a batch, with weights of samples and of classes."""

from __future__ import annotations

import copy
import functools
import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from samebits._arguments import require
from samebits.errors import InvalidArgumentError
from samebits.trainer._batch import TrainingBatch

LossFunction = Callable[[Any, Any], torch.Tensor]


class Loss:
    """`loss_fn(output, target)`; with weights the mean of `weight * loss` over all elements of the loss.

    That is the rule of Keras 3 (`sum_over_batch_size`): the sum is divided by the number of elements. Not
    that of `CrossEntropyLoss(weight=...)`, which divides by the sum of the weights.

    Args:
        loss_fn: a function, or None: the model computes its loss, as `output.loss` or `output["loss"]`.
        class_weight: weight by class; a missing class weighs 1.

    Raises:
        InvalidArgumentError: a weight is negative or not finite, a class is no int of at least 0, or
            `loss_fn` cannot return the losses of single samples.
    """

    def __init__(self, loss_fn: LossFunction | None, class_weight: Mapping[int, float] | None = None) -> None:
        self._loss_fn = loss_fn
        self.computed_by_model = loss_fn is None
        self._class_weight = None if class_weight is None else _check_weights(class_weight)
        self._without_reduction = _without_reduction(loss_fn)
        if self._class_weight is not None and self._without_reduction is None:
            raise InvalidArgumentError(f"fit(class_weight=...): {_weight_error(loss_fn)}")

    def __call__(self, output: Any, batch: TrainingBatch) -> torch.Tensor:
        """Returns the loss as one number, with its graph."""
        if self._loss_fn is None:
            return _model_loss(output)
        if batch.weight is None and self._class_weight is None:
            return self._loss_fn(output, batch.target)
        if self._without_reduction is None:
            raise InvalidArgumentError(f"Trainer: the batches have weights: {_weight_error(self._loss_fn)}")
        if batch.weight is not None and self._class_weight is not None:
            raise InvalidArgumentError(
                "fit(class_weight=...): the batches have weights of their own. Use one of the two "
                "(Keras's rule)."
            )
        losses = self._without_reduction(output, batch.target)
        weight = batch.weight if self._class_weight is None else self._by_class(output, batch.target, losses)
        return (losses * _broadcast_weight(weight, losses)).mean()

    def _by_class(self, output: Any, target: torch.Tensor, losses: torch.Tensor) -> torch.Tensor:
        """Returns each target's weight; a target is an index, a number rounded to one, or a row (argmax)."""
        assert self._class_weight is not None
        has_classes = isinstance(output, torch.Tensor) and output.ndim > 1
        if has_classes and 1 < output.shape[1] < len(self._class_weight):
            raise InvalidArgumentError(
                f"fit(class_weight=...): it has a weight for class {len(self._class_weight) - 1}, the "
                f"model's output has {output.shape[1]} classes (shape {tuple(output.shape)})."
            )
        classes = _classes(target, losses)
        table = torch.tensor(self._class_weight, dtype=losses.dtype, device=losses.device)
        weight = table[classes.clamp(0, len(table) - 1)]
        return torch.where((classes >= 0) & (classes < len(table)), weight, 1.0)


def _classes(target: torch.Tensor, losses: torch.Tensor) -> torch.Tensor:
    if target.ndim == losses.ndim + 1 and target.is_floating_point():
        return target.argmax(1)
    if target.shape != losses.shape or (
        target.ndim > 1 and target.shape[-1] != 1 and target.is_floating_point()
    ):
        raise InvalidArgumentError(
            f"fit(class_weight=...): targets of shape {tuple(target.shape)} and losses of shape "
            f"{tuple(losses.shape)} do not give one class per loss. Give weights in the batches: (inputs, "
            f"target, weight)."
        )
    return target.round().long()


def _broadcast_weight(weight: torch.Tensor, losses: torch.Tensor) -> torch.Tensor:
    """Returns weights of samples, shaped for losses of several elements each."""
    if not isinstance(weight, torch.Tensor) or weight.shape != losses.shape[: weight.ndim]:
        given = tuple(weight.shape) if isinstance(weight, torch.Tensor) else type(weight).__name__
        raise InvalidArgumentError(
            f"Trainer: the weights of a batch have shape {given}, its losses {tuple(losses.shape)}. Give one "
            "per sample, or one per loss."
        )
    return weight.reshape(*weight.shape, *(1,) * (losses.ndim - weight.ndim)).to(losses.dtype)


def _model_loss(output: Any) -> torch.Tensor:
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if not isinstance(loss, torch.Tensor):
        raise InvalidArgumentError(
            f"Trainer(model, None, optimizer): the model's output ({type(output).__name__}) has no loss. "
            "Pass a loss_fn, or give the model what it computes its loss from (labels, say)."
        )
    return loss


def _without_reduction(loss_fn: Any) -> Callable[[Any, Any], torch.Tensor] | None:
    """Returns `loss_fn` with reduction="none"; None without such an option, or if it takes no mean."""
    if isinstance(loss_fn, torch.nn.Module):
        if getattr(loss_fn, "reduction", None) != "mean":
            return None
        single = copy.copy(loss_fn)  # shares the module's buffers
        single.reduction = "none"  # type: ignore[assignment]
        return single
    try:
        parameter = inspect.signature(loss_fn).parameters.get("reduction")
    except (TypeError, ValueError):
        return None
    if parameter is None or parameter.default != "mean":
        return None
    return functools.partial(loss_fn, reduction="none")


def _weight_error(loss_fn: Any) -> str:
    name = getattr(loss_fn, "__name__", type(loss_fn).__name__)
    return (
        f"{name} cannot return the loss of each sample. Use one with reduction='mean' that takes "
        "reduction='none' too, as torch's: nn.CrossEntropyLoss(), or def loss(output, target, "
        "reduction='mean')."
    )


def _check_weights(class_weight: Any) -> list[float]:
    """Returns the weights as a list by class; raises `InvalidArgumentError`."""
    is_dict = isinstance(class_weight, Mapping) and bool(class_weight)
    wanted = "give a dict from class to weight, {0: 1.0, 1: 2.0}"
    require(is_dict, "fit", wanted, class_weight=class_weight)
    for name, weight in class_weight.items():
        if not isinstance(name, int) or isinstance(name, bool) or name < 0:
            raise InvalidArgumentError(f"fit(class_weight=...): the class {name!r} is no int of at least 0.")
        if not math.isfinite(weight) or weight < 0:
            raise InvalidArgumentError(
                f"fit(class_weight={{{name}: {weight!r}}}): a weight is a finite number of at least 0."
            )
    return [float(class_weight.get(number, 1.0)) for number in range(max(class_weight) + 1)]
