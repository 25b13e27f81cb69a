"""Stages that turn every element into one, none or several others: `map`, `filter`, `flat_map`, `unbatch`.

Each is an `Operation`, and one of three stages applies it: `AddressedOperation` keeps an addressed input addressed where there is
one result for each element, `GroupedOperation` works on groups, `StreamOperation` on a stream.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

from typing_extensions import override

from samebits._context import Words
from samebits.data._calls.user_function import Function, Place, Places, key_rows
from samebits.data._stages.stage import Addressed, Blocks, Grouped, Ordinals, Reader, Stage, State, Streamed
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
    def groups(self, stage: Stage, places: Places, elements: list[Any]) -> list[list[Any]]:
        """Returns the results of each element of a bound stage's input; the elements are at `places`."""

    def iterate(self, stage: Stage, place: Place, element: Any) -> Iterable[Any]:
        """Returns the results of one element, as an iterable that may compute them one at a time."""
        return self.groups(stage, [place], [element])[0]


class Map(Operation):
    """One result for each element."""

    kind = "map"

    def map_elements(self, stage: Stage, places: Places, elements: list[Any]) -> list[Any]:
        """Returns the result of every element."""
        results = self.function.call_each(stage.key, places, elements)
        if [result for result in results if result is None]:  # a third of the cost of `any`
            place = next(p for p, result in zip(places, results, strict=True) if result is None)
            raise PipelineError(
                f"Pipeline.map({self.function.name}): element {place} became None. Return the element; filter leaves "
                "elements out"
            )
        return results

    @override
    def groups(self, stage: Stage, places: Places, elements: list[Any]) -> list[list[Any]]:
        return [[result] for result in self.map_elements(stage, places, elements)]


class MapBatches(Map):
    """`map` over batches, for a function that augments all rows at once with one key per row.

    Row r of batch b gets the key that `map` before the batching would have given to that element, so the function
    returns the same bits as one by one.
    """

    kind = "map_batches"

    def __init__(self, function: Function) -> None:
        super().__init__(function)
        if function.draws == "rng":
            raise InvalidArgumentError(
                f"Pipeline.map_batches({function.name}): a parameter `rng` would be one generator for all rows; take `key`, "
                "which is one key for each row, of shape (rows, 2)"
            )

    @override
    def map_elements(self, stage: Stage, places: Places, elements: list[Any]) -> list[Any]:
        if self.function.draws != "key":
            return super().map_elements(stage, places, elements)
        batching = batching_below(stage.inputs[0])
        return [
            self.function.call_with_key(
                place, batch, key_rows(stage.key, batching.places(place, _row_count(batch)))
            )
            for place, batch in zip(places, elements, strict=True)
        ]


class Filter(Operation):
    """The element itself where the function returns true, else nothing."""

    kind = "filter"

    @override
    def groups(self, stage: Stage, places: Places, elements: list[Any]) -> list[list[Any]]:
        kept = self.function.call_each(stage.key, places, elements)
        return [[element] if keep else [] for element, keep in zip(elements, kept, strict=True)]


class FlatMap(Operation):
    """All elements of the iterable that the function returns for each element."""

    kind = "flat_map"
    single = False

    @override
    def groups(self, stage: Stage, places: Places, elements: list[Any]) -> list[list[Any]]:
        return [list(several) for several in self.function.call_each(stage.key, places, elements)]

    @override
    def iterate(self, stage: Stage, place: Place, element: Any) -> Iterable[Any]:
        return self.function.call_each(stage.key, [place], [element])[0]


class Unbatch(Operation):
    """The rows of every batch: of tensors and arrays along the first dimension, of dicts and tuples by field."""

    kind = "unbatch"
    single = False

    @override
    def groups(self, stage: Stage, places: Places, elements: list[Any]) -> list[list[Any]]:
        return [_rows(element) for element in elements]


def apply(operation: Operation, stage: Stage) -> Stage:
    """Returns the stage that applies an operation to the elements of `stage`."""
    if isinstance(operation, Map) and isinstance(stage, Addressed):
        return AddressedOperation(operation, stage)
    return (
        GroupedOperation(operation, stage) if isinstance(stage, Blocks) else StreamOperation(operation, stage)
    )


class _OperationStage(Stage):
    """A stage with an operation."""

    def __init__(self, operation: Operation, stage: Stage) -> None:
        super().__init__(stage)
        self.operation = operation
        self.kind = operation.kind

    @override
    def stage_key(self, key: Words) -> Words:
        if isinstance(self.operation, MapBatches):  # as a `map` before the batching would have
            return int_keys.fold(key, "map", self.depth() - 1)
        batches = isinstance(self.operation, Map) and batching_below(self.inputs[0]) is not None
        return int_keys.fold(key, "map of batches" if batches else self.kind, self.depth())

    @override
    def parameters(self) -> dict[str, Any]:
        return {"function": self.operation.function.name}

    @override
    def functions(self) -> list[Function]:
        return [self.operation.function]

    def needed(self, ordinals: Ordinals) -> Ordinals:
        """Returns the same ordinals."""
        return ordinals


class AddressedOperation(_OperationStage, Addressed):
    """`map` over an addressed stage."""

    operation: Any

    @override
    def fetch(self, ordinals: Ordinals) -> list[Any]:
        return self.operation.map_elements(self, ordinals, self.inputs[0].fetch(ordinals))


class GroupedOperation(_OperationStage, Grouped):
    """An operation over groups: the results of a group stay one group."""

    @property
    @override
    def groups(self) -> int:
        return self.inputs[0].groups

    @property
    def single(self) -> bool:  # type: ignore[override]
        """True if no group of the input has more than one element, and no element more than one result."""
        return self.operation.single and self.inputs[0].single

    @override
    def iterate(self, ordinal: int) -> Iterator[Any]:
        for number, element in enumerate(self.inputs[0].iterate(ordinal)):
            yield from self.operation.iterate(self, (ordinal, number), element)

    @override
    def block(self, ordinals: Ordinals) -> list[list[Any]]:
        inner = self.inputs[0].block(ordinals)
        numbers = [len(group) for group in inner]
        places = [
            (o, number)
            for o, several in zip(ordinals.tolist(), numbers, strict=True)
            for number in range(several)
        ]
        results = iter(self.operation.groups(self, places, [element for group in inner for element in group]))
        return [[one for _ in range(several) for one in next(results)] for several in numbers]


class StreamOperation(_OperationStage, Streamed):
    """An operation over a stream. State: [the input's, elements read, results delivered of the current element]."""

    @property
    @override
    def length(self) -> int | None:
        return self.inputs[0].length if isinstance(self.operation, Map) else None

    @override
    def stream(self, reader: Reader, repetition: int, state: State) -> Iterator[tuple[Any, State]]:
        before, number, done = state or (None, 0, 0)
        for element, after in reader.read(self.inputs[0], repetition, before):
            results = self.operation.groups(self, [(repetition, number)], [element])[0]
            for count, result in enumerate(results[done:], done + 1):
                over = count == len(results)
                yield result, [after, number + 1, 0] if over else [before, number, count]
            before, number, done = after, number + 1, 0


def batching_below(stage: Any) -> Any:
    """Returns the stage whose batches `stage` passes on, perhaps mapped; None if its elements are no batches."""
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
