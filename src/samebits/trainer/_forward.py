"""One batch through a model: its loss and its metrics, the same way in training and in evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from samebits.errors import EmptyDatasetError, InvalidArgumentError
from samebits.trainer._batch import (
    LABELS,
    TrainingBatch,
    call_model,
    concatenate,
    detach,
    device_of,
    move_to,
    split_batch,
)
from samebits.trainer._loss import Loss
from samebits.trainer._metrics import Means, Metrics, SumOverRanks, mean_over_ranks

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
    """The forward pass of a trainer: on the model's device, in its precision, by its rule or a hook."""

    loss: Loss
    metrics: Metrics
    dtype: torch.dtype | None = None
    """The dtype of `torch.autocast`; None: switched off."""
    hook: ForwardHook | None = None

    def output(self, model: torch.nn.Module, batch: Any) -> Any:
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
        """Returns the parts of a batch; all of it is the inputs for a model that computes its loss itself."""
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
            f"Trainer(forward=...): it returned {result!r:.80}. Return the loss, a tensor, or the loss and a "
            "dict of metrics (of other names than 'loss')."
        )
    return ForwardResult(loss, count, values=values)


@dataclass(frozen=True)
class Evaluation:
    """A model in eval mode and without gradients; `forward` has metrics of its own."""

    model: torch.nn.Module
    forward: Forward

    def measure(
        self, batches: Iterable[Any], loader: Iterable[Any], over: SumOverRanks = dict
    ) -> dict[str, float]:
        """Returns the means of loss and metrics over the samples (`over`: of all ranks) of `loader`.

        Raises `EmptyDatasetError` without a batch.
        """
        means = Means()
        self.forward.metrics.reset()
        with evaluating(self.model):
            for batch in batches:
                self.add(batch, means)
        return self.take_means(means, loader, over)

    def add(self, batch: Any, means: Means) -> None:
        means.add(*self.values(batch))

    def values(self, batch: Any) -> tuple[dict[str, float], int]:
        """Returns loss and metrics of one batch, in `evaluating`, and the number of its samples."""
        result = self.forward(self.model, batch)
        return self.forward.measure(result), result.count

    def take_means(self, means: Means, loader: Iterable[Any], over: SumOverRanks = dict) -> dict[str, float]:
        """Returns the means over the added batches, and the metrics; resets both. Raises as `measure`."""
        if not means.sums:
            raise EmptyDatasetError(
                f"Trainer.evaluate: the {type(loader).__name__} has no batch. Is its dataset empty, or an "
                "iterator that can be read only once?"
            )
        return means.take(over) | mean_over_ranks(self.forward.metrics.take(), over)

    def predict(self, loader: Iterable[Any]) -> Any:
        """Returns the outputs for all batches as one, on the CPU. `EmptyDatasetError` without a batch."""
        with evaluating(self.model):
            outputs = [
                move_to(self.forward.output(self.model, batch), torch.device("cpu")) for batch in loader
            ]
        if not outputs:
            raise EmptyDatasetError(f"Trainer.predict: the {type(loader).__name__} has no batch.")
        return concatenate(outputs)


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Switches to eval mode and no gradients; restores each module's mode afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training
