"""One batch through a model: its loss and its metrics, the same way in training and in evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from samebits.errors import InvalidArgumentError
from samebits.trainer._batch import LABELS, TrainingBatch, call_model, detach, device_of, move_to, split_batch
from samebits.trainer._loss import Loss
from samebits.trainer._metrics import Metrics

ForwardHook = Callable[[torch.nn.Module, Any], Any]
"""`forward(model, batch)` returns the loss, or the loss and a dict of metrics."""


@dataclass(frozen=True)
class ForwardResult:
    """The result of the forward pass of a batch."""

    loss: torch.Tensor
    count: int
    """Number of samples."""
    output: Any = None
    target: Any = None
    values: Mapping[str, Any] = field(default_factory=dict)
    """The metrics that the hook returned."""


@dataclass(frozen=True)
class Forward:
    """The forward pass of a trainer: on the model's device, in its precision, by its own rule or the user's hook."""

    loss: Loss
    metrics: Metrics
    dtype: torch.dtype | None = None
    """The dtype of `torch.autocast`; None: switched off."""
    hook: ForwardHook | None = None

    def output(self, model: torch.nn.Module, batch: Any) -> Any:
        """Returns the model's output alone."""
        device = device_of(model)
        with self._precision(device):
            return call_model(model, self._parts(move_to(batch, device)).inputs)

    def __call__(self, model: torch.nn.Module, batch: Any) -> ForwardResult:
        """Returns the loss, with its graph, and the inputs of the metrics."""
        device = device_of(model)
        batch = move_to(batch, device)
        with self._precision(device):
            if self.hook is not None:
                return _hook_result(self.hook(model, batch), len(TrainingBatch(batch)))
            split = self._parts(batch)
            output = call_model(model, split.inputs)
            return ForwardResult(self.loss(output, split), len(split), output, split.target)

    def measure(self, result: ForwardResult) -> dict[str, float]:
        """Returns loss and metrics of a batch; metrics that are objects are updated."""
        values = {"loss": float(result.loss.detach())}
        if self.hook is not None:
            return values | {name: float(value) for name, value in result.values.items()}
        return values | self.metrics.measure(detach(result.output), result.target)

    def _parts(self, batch: Any) -> TrainingBatch:
        """Returns the batch in its parts; all of it is the inputs of a model that computes its loss itself."""
        if self.hook is not None or not self.loss.computed_by_model:
            return split_batch(batch)
        return TrainingBatch(batch, batch.get(LABELS) if isinstance(batch, Mapping) else None)

    @contextmanager
    def _precision(self, device: torch.device) -> Iterator[None]:
        if self.dtype is None:
            yield
        else:
            with torch.autocast(device.type, self.dtype):
                yield


def _hook_result(result: Any, count: int) -> ForwardResult:
    loss, values = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
    if not isinstance(loss, torch.Tensor) or not isinstance(values, Mapping) or "loss" in values:
        raise InvalidArgumentError(
            f"Trainer(forward=...): it returned {result!r:.80}. Return the loss, a tensor, or the loss and a dict of "
            "metrics (of other names than 'loss')."
        )
    return ForwardResult(loss, count, values=values)
