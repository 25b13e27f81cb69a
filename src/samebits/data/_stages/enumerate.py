"""The stage `enumerate`, by index and by stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typing_extensions import override

from samebits.data._stages.stage import Ordinals, Reader, SameLength, SameOrdinals, Stage, State, Streamed


class _Enumerating(Stage):
    """(number within the repetition, element)."""

    kind = "enumerate"

    def __init__(self, stage: Stage, start: int) -> None:
        super().__init__(stage, parameters={"start": start})
        self.start = start


class Enumerate(_Enumerating, SameOrdinals, SameLength):
    """The elements of an addressed stage with their indices."""

    @override
    def fetch(self, ordinals: Ordinals) -> list[tuple[int, Any]]:
        numbers = self.start + ordinals % self.length
        return list(zip(numbers.tolist(), self.inputs[0].fetch(ordinals), strict=True))


class StreamEnumerate(_Enumerating, Streamed):
    """The elements of a stream, counted. State: [the input's, number of the next]."""

    @override
    def stream(self, reader: Reader, repetition: int, state: State) -> Iterator[tuple[Any, State]]:
        before, first = state or (None, 0)
        for number, (element, after) in enumerate(reader.read(self.inputs[0], repetition, before), first):
            yield (self.start + number, element), [after, number + 1]
