"""Stages that make every element into one, none or several others: `map`, `filter`, `flat_map`, `unbatch`.

Each is an `Operation`, and one of three stages applies it: `Mapped` keeps an addressed input addressed where there is
one result for each element, `Expanded` works on groups, `Applied` on a stream.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from typing_extensions import override

from samebits.context import Words
from samebits.data.function import Function, Place
from samebits.data.stage import Addressed, Blocks, Grouped, Ordinals, Reader, Stage, State, Streamed
from samebits.errors import PipelineError


class Operation(ABC):
    """What is done to every element."""

    kind: str

    def __init__(self, function: Function) -> None:
        self.function = function

    @abstractmethod
    def groups(self, key: Words, places: Sequence[Place], elements: list[Any]) -> list[list[Any]]:
        """The results of each of the elements, which stand at these places."""


class Map(Operation):
    """One result for each element."""

    kind = "map"

    def each(self, key: Words, places: Sequence[Place], elements: list[Any]) -> list[Any]:
        """The result of every element."""
        results = self.function.over(key, places, elements)
        if any(result is None for result in results):
            place = next(p for p, result in zip(places, results, strict=True) if result is None)
            raise PipelineError(
                f"Pipeline.map({self.function.name}): element {place} became None. Return the element; filter leaves "
                "elements out"
            )
        return results

    @override
    def groups(self, key: Words, places: Sequence[Place], elements: list[Any]) -> list[list[Any]]:
        return [[result] for result in self.each(key, places, elements)]


class Filter(Operation):
    """The element itself where the function says true, else nothing."""

    kind = "filter"

    @override
    def groups(self, key: Words, places: Sequence[Place], elements: list[Any]) -> list[list[Any]]:
        kept = self.function.over(key, places, elements)
        return [[element] if keep else [] for element, keep in zip(elements, kept, strict=True)]


class FlatMap(Operation):
    """All elements of the iterable that the function makes of each element."""

    kind = "flat_map"

    @override
    def groups(self, key: Words, places: Sequence[Place], elements: list[Any]) -> list[list[Any]]:
        return [list(several) for several in self.function.over(key, places, elements)]


def apply(operation: Operation, stage: Stage) -> Stage:
    """The stage that applies an operation to the elements of `stage`."""
    if isinstance(operation, Map) and isinstance(stage, Addressed):
        return Mapped(operation, stage)
    return Expanded(operation, stage) if isinstance(stage, Blocks) else Applied(operation, stage)


class _OfOperation(Stage):
    """A stage with an operation."""

    def __init__(self, operation: Operation, stage: Stage) -> None:
        super().__init__(stage)
        self.operation = operation
        self.kind = operation.kind

    @override
    def parameters(self) -> dict[str, Any]:
        return {"function": self.operation.function.name}


class Mapped(_OfOperation, Addressed):
    """`map` over an addressed stage."""

    operation: Any

    @property
    @override
    def length(self) -> int:
        return self.inputs[0].length

    @override
    def fetch(self, ordinals: Ordinals) -> list[Any]:
        return self.operation.each(self.key, ordinals.tolist(), self.inputs[0].fetch(ordinals))


class Expanded(_OfOperation, Grouped):
    """An operation over groups: a group's results stay one group."""

    @property
    @override
    def groups(self) -> int:
        return self.inputs[0].groups

    @override
    def block(self, ordinals: Ordinals) -> list[list[Any]]:
        inner = self.inputs[0].block(ordinals)
        numbers = [len(group) for group in inner]
        places = [
            (o, number)
            for o, several in zip(ordinals.tolist(), numbers, strict=True)
            for number in range(several)
        ]
        results = iter(
            self.operation.groups(self.key, places, [element for group in inner for element in group])
        )
        return [[one for _ in range(several) for one in next(results)] for several in numbers]


class Applied(_OfOperation, Streamed):
    """An operation over a stream. State: [the input's, elements read, results handed out of the element under way]."""

    @property
    @override
    def length(self) -> int | None:
        return self.inputs[0].length if isinstance(self.operation, Map) else None

    @override
    def stream(self, reader: Reader, repetition: int, state: State) -> Iterator[tuple[Any, State]]:
        before, number, done = state or (None, 0, 0)
        for element, behind in reader.read(self.inputs[0], repetition, before):
            results = self.operation.groups(self.key, [(repetition, number)], [element])[0]
            for count, result in enumerate(results[done:], done + 1):
                over = count == len(results)
                yield result, [behind, number + 1, 0] if over else [before, number, count]
            before, number, done = behind, number + 1, 0
