"""`Pipeline`: an immutable description of a stream of elements, read with equal bits by any number of workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch.utils.data as torch_data

from samebits.data.function import Function
from samebits.data.iterator import PipelineIterator
from samebits.data.stage import Addressed, Stage
from samebits.data.stages.batching import batch
from samebits.data.stages.elementwise import Filter, FlatMap, Map, apply
from samebits.data.stages.order import Part, Repeat, Shuffle
from samebits.data.stages.source import Range, Source
from samebits.random import seeds, words


class Pipeline:
    """A stream of elements: element k is a function of (pipeline, seed, epoch, k).

    Every method gives a new pipeline. `iter(pipeline)` starts the next epoch.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._epoch = 0

    @classmethod
    def from_source(cls, data: Any) -> Pipeline:
        """The elements of any object with `__len__` and `__getitem__` (`__getitems__` is used where there is one)."""
        return cls(Source(data))

    @classmethod
    def range(cls, *arguments: int) -> Pipeline:
        """The integers of `range(*arguments)`."""
        return cls(Range(*arguments))

    def map(self, function: Callable[..., Any]) -> Pipeline:
        """`function(element)` for every element; see the class for what it may draw."""
        return Pipeline(apply(Map(Function(function, "map")), self._stage))

    def filter(self, predicate: Callable[..., Any]) -> Pipeline:
        """The elements for which `predicate(element)` is true."""
        return Pipeline(apply(Filter(Function(predicate, "filter")), self._stage))

    def flat_map(self, function: Callable[..., Any]) -> Pipeline:
        """All elements of the finite iterable `function(element)`, for every element."""
        return Pipeline(apply(FlatMap(Function(function, "flat_map")), self._stage))

    def shuffle(self, *, reshuffle_each_epoch: bool = True) -> Pipeline:
        """All elements in a keyed order, another in each epoch; O(1) memory, nothing to fill before the first."""
        assert isinstance(self._stage, Addressed)
        return Pipeline(Shuffle(self._stage, reshuffle_each_epoch=reshuffle_each_epoch))

    def repeat(self, count: int | None = None) -> Pipeline:
        """`count` repetitions (None: no end), each shuffled and augmented anew."""
        assert isinstance(self._stage, Addressed)
        return Pipeline(Repeat(self._stage, count))

    def take(self, count: int) -> Pipeline:
        """The first `count` elements."""
        assert isinstance(self._stage, Addressed)
        return Pipeline(Part(self._stage, range(min(count, self._stage.length))))

    def batch(
        self,
        batch_size: int,
        *,
        drop_remainder: bool = False,
        collate: Callable[[list[Any]], Any] = torch_data.default_collate,
    ) -> Pipeline:
        """Batches of `batch_size` elements, put together by `collate`."""
        return Pipeline(
            batch(self._stage, batch_size, Function(collate, "batch"), drop_remainder=drop_remainder)
        )

    def __iter__(self) -> Iterator[Any]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        seed = seeds.root_seed() or 0
        return PipelineIterator(self._stage, words.fold(words.root(seed), "pipeline"), epoch, "")
