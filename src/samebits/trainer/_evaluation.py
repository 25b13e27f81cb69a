"""Evaluation: loss, metrics and predictions of a model for batches that it is not trained on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from samebits.errors import EmptyDatasetError
from samebits.trainer._batch import concatenate, move_to
from samebits.trainer._epoch_means import Means, SumOverRanks, mean_over_ranks
from samebits.trainer._forward import Forward


@dataclass(frozen=True)
class Evaluation:
    """A model in eval mode and without gradients; `forward` has metrics of its own."""

    model: torch.nn.Module
    forward: Forward

    def measure(
        self, batches: Iterable[Any], loader: Iterable[Any], over: SumOverRanks = dict
    ) -> dict[str, float]:
        """Returns the means of loss and metrics over the samples (`over`: of all ranks); `loader` is the source of the batches.

        Raises `EmptyDatasetError` without a batch.
        """
        means = Means()
        self.forward.metrics.reset()
        with evaluating(self.model):
            for batch in batches:
                self.add(batch, means)
        return self.take_means(means, loader, over)

    def add(self, batch: Any, means: Means) -> None:
        """Measures one batch, in `evaluating`."""
        result = self.forward(self.model, batch)
        means.add(self.forward.measure(result), result.count)

    def take_means(self, means: Means, loader: Iterable[Any], over: SumOverRanks = dict) -> dict[str, float]:
        """Returns the means over the added batches, and the metrics; resets both. Raises as `measure`."""
        if not means.sums:
            raise EmptyDatasetError(
                f"Trainer.evaluate: the {type(loader).__name__} has no batch. Is its dataset empty, or an iterator that can "
                "be read only once?"
            )
        return means.take(over) | mean_over_ranks(self.forward.metrics.take(), over)

    def predict(self, loader: Iterable[Any]) -> Any:
        """Returns the outputs for all batches as one, on the CPU. Raises `EmptyDatasetError` without a batch."""
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
