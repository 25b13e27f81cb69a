"""The means of loss and metrics over the batches of an epoch, and over the processes of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

SumOverRanks = Callable[[Mapping[str, float]], dict[str, float]]
"""Sums each value over the processes of a run; with one process it returns the values."""


def mean_over_ranks(values: Mapping[str, float], over_ranks: SumOverRanks) -> dict[str, float]:
    """Returns the mean of each value over the processes."""
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
        """Adds means over a batch of `count` samples."""
        self.sums[_BATCHES] = self.batches + 1
        self.sums[_SAMPLES] = self.sums.get(_SAMPLES, 0) + count
        for name, value in values.items():
            self.sums[name] = self.sums.get(name, 0.0) + value * count

    @property
    def batches(self) -> int:
        """Number of added batches."""
        return int(self.sums.get(_BATCHES, 0))

    def take(self, over_ranks: SumOverRanks = dict) -> dict[str, float]:
        """Returns the means, by name, and resets them. `over_ranks` sums over several processes."""
        sums, self.sums = over_ranks(self.sums), {}
        samples, _ = sums.pop(_SAMPLES, 0) or 1, sums.pop(_BATCHES, 0)
        return {name: value / samples for name, value in sums.items()}
