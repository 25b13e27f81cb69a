"""Stages that turn every element into one, none or several others: `map`, `filter`, `flat_map`, `unbatch`.

An `Operation` each, applied by one of three stages: `AddressedOperation` keeps an addressed input addressed
if each element has one result, `GroupedOperation` works on groups, `StreamOperation` on a stream.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from typing_extensions import override

from samebits.data._calls.user_function import Function, Places, key_words
from samebits.data._options import OwnBatches
from samebits.data._stages import stage as stages
from samebits.data._stages.batch import batching_of
from samebits.errors import InvalidArgumentError, PipelineError
from samebits.random import _int_keys as int_keys


class Operation(ABC):
    """A function of every element, with its number of results."""

    kind: str
    single = True
    """True if no element has more than one result."""

    def __init__(self, function: Function) -> None:
        self.function = function

    @abstractmethod
    def groups(self, stage: stages.Stage, places: Places, elements: list[Any]) -> Sequence[Iterable[Any]]:
        """Returns the results of each element of a bound stage's input; the elements are at `places`.

        The results of one element may be computed one at a time, as they are iterated.
        """


class OneToOne(Operation):
    """One result for each element."""

    @abstractmethod
    def map_elements(
        self, stage: stages.Stage, places: Places, elements: list[Any], shard: int | None = None
    ) -> list[Any]:
        """Returns the result of every element; each is the batch of this logical shard, if any."""

    def map_each(self, stage: stages.Stage, places: Places, elements: list[Any]) -> list[Any]:
        """Returns the result of every element; of a process's shards, those of each batch."""
        if not any(isinstance(element, OwnBatches) for element in elements):
            return self.map_elements(stage, places, elements)
        numbers = batching_of(stage).shards.numbers
        return [
            OwnBatches(
                self.map_elements(stage, places[row : row + 1], [batch], number)[0]
                for number, batch in zip(numbers, element, strict=True)
            )
            for row, element in enumerate(elements)
        ]

    @override
    def groups(self, stage: stages.Stage, places: Places, elements: list[Any]) -> list[list[Any]]:
        return [[result] for result in self.map_each(stage, places, elements)]

    def call_each(
        self, stage: stages.Stage, places: Places, elements: list[Any], shard: int | None = None
    ) -> list[Any]:
        """Returns the function's result for every element; None is an error."""
        key = stage.key if shard is None else int_keys.fold(stage.key, "shard", shard)
        results = self.function.call_each(key, places, elements)
        if [result for result in results if result is None]:  # a third of the cost of `any`
            place = next(p for p, result in zip(places, results, strict=True) if result is None)
            raise PipelineError(
                f"Pipeline.map({self.function.name}): element {place} became None. Return the element; "
                "filter leaves elements out"
            )
        return results


class Map(OneToOne):
    """The function's result for each element."""

    kind = "map"

    @override
    def map_elements(
        self, stage: stages.Stage, places: Places, elements: list[Any], shard: int | None = None
    ) -> list[Any]:
        return self.call_each(stage, places, elements, shard)


class MapBatches(OneToOne):
    """`map` over batches, for a function that augments all rows at once with one key per row.

    Row r of batch b gets the key that `map` before the batching would have given to that element, so the
    function returns the same bits as one by one.
    """

    kind = "map_batches"

    def __init__(self, function: Function) -> None:
        super().__init__(function)
        if function.draws == "rng":
            raise InvalidArgumentError(
                f"Pipeline.map_batches({function.name}): a parameter `rng` would be one generator for all "
                "rows; take `key`, which is one key for each row, of shape (rows, 2)"
            )

    @override
    def map_elements(
        self, stage: stages.Stage, places: Places, elements: list[Any], shard: int | None = None
    ) -> list[Any]:
        if self.function.draws != "key":
            return self.call_each(stage, places, elements, shard)
        batching = batching_below(stage.inputs[0])
        results = []
        for place, batch in zip(places, elements, strict=True):
            rows = key_words(stage.key, batching.places(place, _row_count(batch), shard))
            results.append(self.function.call_with_key(place, batch, torch.from_numpy(rows)))
        return results


class Filter(Operation):
    """The element itself where the function returns true, else nothing."""

    kind = "filter"

    @override
    def groups(self, stage: stages.Stage, places: Places, elements: list[Any]) -> list[list[Any]]:
        kept = self.function.call_each(stage.key, places, elements)
        return [[element] if keep else [] for element, keep in zip(elements, kept, strict=True)]


class FlatMap(Operation):
    """All elements of the iterable that the function returns for each element."""

    kind = "flat_map"
    single = False

    @override
    def groups(self, stage: stages.Stage, places: Places, elements: list[Any]) -> list[Iterable[Any]]:
        return self.function.call_each(stage.key, places, elements)


class Unbatch(Operation):
    """The rows of every batch: tensors and arrays by the first dimension, dicts and tuples by field."""

    kind = "unbatch"
    single = False

    @override
    def groups(self, stage: stages.Stage, places: Places, elements: list[Any]) -> list[list[Any]]:
        return [_rows(element) for element in elements]


def apply(operation: Operation, stage: stages.Stage) -> stages.Stage:
    if isinstance(operation, OneToOne) and isinstance(stage, stages.Addressed):
        return AddressedOperation(operation, stage)
    return (
        GroupedOperation(operation, stage)
        if isinstance(stage, stages.Numbered)
        else StreamOperation(operation, stage)
    )


class _OperationStage(stages.Stage):
    """A stage with an operation."""

    def __init__(self, operation: Operation, stage: stages.Stage) -> None:
        function = operation.function
        super().__init__(stage, parameters={"function": function.name}, functions=[function])
        self.operation = operation
        self.kind = operation.kind
        if isinstance(operation, MapBatches):  # as a `map` before the batching would have
            self.key_path = "map", self.depth - 1
        elif isinstance(operation, Map) and batching_below(stage) is not None:
            self.key_path = "map of batches", self.depth


class AddressedOperation(_OperationStage, stages.SameOrdinals, stages.SameLength):
    """`map` over an addressed stage."""

    operation: Any

    @override
    def fetch(self, ordinals: stages.Ordinals) -> list[Any]:
        return self.operation.map_each(self, ordinals, self.inputs[0].fetch(ordinals))


class GroupedOperation(_OperationStage, stages.SameOrdinals, stages.Grouped):
    """An operation over groups: the results of a group stay one group."""

    def __init__(self, operation: Operation, stage: stages.Numbered) -> None:
        super().__init__(operation, stage)
        self.single = operation.single and stage.single

    @property
    @override
    def groups(self) -> int:
        return self.inputs[0].groups

    @override
    def iterate(self, ordinal: int) -> Iterator[Any]:
        for number, element in enumerate(self.inputs[0].iterate(ordinal)):
            yield from self.operation.groups(self, [(ordinal, number)], [element])[0]

    @override
    def block(self, ordinals: stages.Ordinals) -> list[list[Any]]:
        inner = self.inputs[0].block(ordinals)
        numbers = [len(group) for group in inner]
        pairs = zip(ordinals.tolist(), numbers, strict=True)
        places = [(o, number) for o, several in pairs for number in range(several)]
        results = iter(self.operation.groups(self, places, [element for group in inner for element in group]))
        return [[one for _ in range(several) for one in next(results)] for several in numbers]


class StreamOperation(_OperationStage, stages.Streamed):
    """An operation over a stream. State: [the input's, elements read, results delivered of the current]."""

    @override
    def stream(
        self, reader: stages.Reader, repetition: int, state: stages.State
    ) -> Iterator[tuple[Any, stages.State]]:
        before, number, done = state or (None, 0, 0)
        for element, after in reader.read(self.inputs[0], repetition, before):
            results = list(self.operation.groups(self, [(repetition, number)], [element])[0])
            for count, result in enumerate(results[done:], done + 1):
                over = count == len(results)
                yield result, [after, number + 1, 0] if over else [before, number, count]
            before, number, done = after, number + 1, 0


def batching_below(stage: Any) -> Any:
    """Returns the stage whose batches `stage` passes on, perhaps mapped; None if there are no batches."""
    while stage.kind in ("map", "map_batches"):
        stage = stage.inputs[0]
    return stage if stage.kind in ("batch", "padded_batch") else None


def _row_count(batch: Any) -> int:
    """Returns the length of the first tensor or array in a batch."""
    if isinstance(batch, dict):
        batch = tuple(batch.values())
    return _row_count(batch[0]) if isinstance(batch, tuple | list) else len(batch)


def _rows(batch: Any) -> list[Any]:
    if isinstance(batch, dict):
        return [dict(zip(batch, row, strict=True)) for row in zip(*map(_rows, batch.values()), strict=True)]
    if isinstance(batch, tuple):
        return list(zip(*map(_rows, batch), strict=True))
    if not hasattr(batch, "__len__") or isinstance(batch, str | bytes):
        raise PipelineError(f"Pipeline.unbatch: takes batches, got an element of type {type(batch).__name__}")
    return list(batch)
