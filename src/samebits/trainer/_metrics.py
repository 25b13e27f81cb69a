"""The metrics of a trainer: functions, averaged over samples (`Means`), and objects that count themselves."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch

from samebits._arguments import require
from samebits.errors import InvalidArgumentError


@runtime_checkable
class MetricObject(Protocol):
    """A metric that counts by itself, as those of torchmetrics; its state is part of every commit."""

    def update(self, output: Any, target: Any) -> Any:
        """Adds a batch."""
        ...

    def compute(self) -> Any:
        """Returns the value, one number, over all batches since `reset`."""
        ...

    def reset(self) -> Any:
        """Forgets all batches."""
        ...

    def state_dict(self) -> Any:
        """Returns the counts."""
        ...

    def load_state_dict(self, state_dict: Any) -> Any:
        """Restores the counts."""
        ...


Metric = Callable[[Any, Any], Any] | MetricObject


class Metrics:
    """`metrics=` of a trainer, by name.

    Raises InvalidArgumentError for a name that the trainer uses itself, and a value that is neither a
    function nor an object with update, compute, reset, state_dict and load_state_dict.
    """

    def __init__(self, metrics: Mapping[str, Metric]) -> None:
        wanted = "give a dict from name to function, {'accuracy': accuracy}"
        require(isinstance(metrics, Mapping), "Trainer", wanted, metrics=metrics)
        self.functions: dict[str, Callable[[Any, Any], Any]] = {}
        self.objects: dict[str, MetricObject] = {}
        for name, metric in metrics.items():
            if not isinstance(name, str) or name in ("loss", "learning_rate") or name.startswith("val_"):
                raise InvalidArgumentError(
                    f"Trainer(metrics={{{name!r}: ...}}): 'loss', 'learning_rate' and names that begin with "
                    "'val_' are the trainer's own. Choose another name."
                )
            if hasattr(metric, "compute"):
                self.objects[name] = _metric_object(name, metric)
            elif callable(metric):
                self.functions[name] = metric
            else:
                raise InvalidArgumentError(f"Trainer(metrics={{{name!r}: {metric!r:.60}}}): give a function.")

    def copy(self) -> Metrics:
        """Returns the same functions and copied objects: a validation leaves the epoch's counts alone."""
        copied = Metrics(self.functions)
        copied.objects = copy.deepcopy(self.objects)
        return copied

    def names(self, *, validates: bool) -> list[str]:
        """Returns the names in the logs of an epoch, the loss first."""
        names = ["loss", *self.functions, *self.objects]
        return names + [f"val_{name}" for name in names if validates]

    def reset(self) -> None:
        """Resets the objects, which an interrupted pass over data may have left with counts."""
        for metric in self.objects.values():
            metric.reset()

    def measure(self, output: Any, target: Any) -> dict[str, float]:
        """Returns the functions' values for a batch; updates the objects."""
        for metric in self.objects.values():
            metric.update(output, target)
        return {name: float(function(output, target)) for name, function in self.functions.items()}

    def take(self) -> dict[str, float]:
        """Returns the objects' values over all batches since the last call, and resets them."""
        values = {}
        for name, metric in self.objects.items():
            value = metric.compute()
            if isinstance(value, Mapping) or (isinstance(value, torch.Tensor) and value.numel() != 1):
                raise InvalidArgumentError(
                    f"Trainer(metrics={{{name!r}: ...}}): {type(metric).__name__}.compute() returned "
                    f"{value!r:.60}. A metric is one number: give each its own, or an average."
                )
            values[name] = float(value)
            metric.reset()
        return values


def _metric_object(name: str, metric: Any) -> MetricObject:
    if isinstance(metric, type) or not isinstance(metric, MetricObject):
        what = f"the class {metric.__name__}" if isinstance(metric, type) else f"a {type(metric).__name__}"
        raise InvalidArgumentError(
            f"Trainer(metrics={{{name!r}: ...}}): {what}. Give an object with update, compute, reset, "
            "state_dict and load_state_dict, or a function of output and target."
        )
    if callable(persistent := getattr(metric, "persistent", None)):
        persistent(True)  # without it torchmetrics leaves its counts out of state_dict
    return metric


SumOverRanks = Callable[[Mapping[str, float]], dict[str, float]]
"""Sums each value over the processes of a run; with one process it returns the values."""


def mean_over_ranks(values: Mapping[str, float], over_ranks: SumOverRanks) -> dict[str, float]:
    means = Means()
    means.add(values, 1)
    return means.take(over_ranks)


_SAMPLES, _BATCHES = "/samples", "/batches"
"""Key of the count among the sums; no metric has this name."""


class Means:
    """Means over the samples of the added batches."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = {}

    def add(self, values: Mapping[str, float], count: int) -> None:
        self.sums[_BATCHES] = self.batches + 1
        self.sums[_SAMPLES] = self.sums.get(_SAMPLES, 0) + count
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + value * count

    @property
    def batches(self) -> int:
        """Number of added batches."""
        return int(self.sums.get(_BATCHES, 0))

    def so_far(self) -> dict[str, float]:
        """Returns the means over the batches since the last `take`, by name."""
        samples = self.sums.get(_SAMPLES, 0) or 1
        return {name: of / samples for name, of in self.sums.items() if name not in (_SAMPLES, _BATCHES)}

    def take(self, over_ranks: SumOverRanks = dict) -> dict[str, float]:
        """Returns the means, by name, and resets them. `over_ranks` sums over several processes."""
        self.sums = over_ranks(self.sums)
        means, self.sums = self.so_far(), {}
        return means
