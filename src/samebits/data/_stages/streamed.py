"""The stages of `shuffle_repeat` and `zip_mix` for inputs that can only be read in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from typing_extensions import override

from samebits.data._stages.stage import Reader, Stage, State, Streamed
from samebits.data._stages.zip_mix import pattern, quotas

_REPETITIONS = 1 << 20
"""Room for the repetitions of an input in one repetition of an endless `repeat`."""


class StreamSlice(Streamed):
    """The elements at the places of a range, or all with their numbers. State: [the input's, number of the next]."""

    def __init__(self, stage: Stage, kind: str, part: range | None, *, start: int = 0) -> None:
        """`part`: a range that may end beyond the input; None: (number + start, element) of all."""
        super().__init__(stage)
        self.kind, self.part, self.start = kind, part, start

    @property
    @override
    def length(self) -> int | None:
        return None

    @property
    @override
    def endless(self) -> bool:
        return super().endless and self.kind != "take"

    @override
    def parameters(self) -> dict[str, Any]:
        if self.part is None:
            return {"start": self.start}
        return {"places": f"{self.part.start}:{self.part.stop}:{self.part.step}"}

    @override
    def stream(self, reader: Reader, repetition: int, state: State) -> Iterator[tuple[Any, State]]:
        before, first = state or (None, 0)
        part = self.part
        if part is not None and first >= part.stop:
            return
        for number, (element, after) in enumerate(reader.read(self.inputs[0], repetition, before), first):
            if part is None:
                yield (self.start + number, element), [after, number + 1]
            elif number in part:
                yield element, [after, number + 1]
            if part is not None and number + 1 >= part.stop:
                return


class StreamRepeat(Streamed):
    """The repetitions of a stream. State: [repetition, the input's, True if this repetition has had an element]."""

    kind = "repeat"

    def __init__(self, stage: Stage, count: int | None) -> None:
        super().__init__(stage)
        self.count = count

    @property
    @override
    def length(self) -> int | None:
        return None

    @property
    @override
    def endless(self) -> bool:
        return self.count is None or super().endless

    @override
    def parameters(self) -> dict[str, Any]:
        return {"count": self.count}

    @override
    def stream(self, reader: Reader, repetition: int, state: State) -> Iterator[tuple[Any, State]]:
        first, before = state or (0, None)
        each = self.count or _REPETITIONS
        for number in range(first, each):
            empty = before is None
            for element, after in reader.read(self.inputs[0], repetition * each + number, before):
                empty = False
                yield element, [number, after]
            if empty and self.count is None:
                return  # an input without elements, repeated for ever, would never return
            before = None


class StreamZip(Streamed):
    """Tuples of one element of each input, as long as the shortest. State: one of each input."""

    kind = "zip"

    @property
    @override
    def length(self) -> int | None:
        return None

    @property
    @override
    def endless(self) -> bool:
        return all(stage.endless for stage in self.inputs)

    @override
    def stream(self, reader: Reader, repetition: int, state: State) -> Iterator[tuple[Any, State]]:
        befores = state or [None] * len(self.inputs)
        read = [
            reader.read(stage, repetition, before) for stage, before in zip(self.inputs, befores, strict=True)
        ]
        for pairs in zip(*read, strict=False):
            yield tuple(element for element, _ in pairs), [after for _, after in pairs]


class StreamConcatenate(Streamed):
    """All elements of one input after another. State: [number of the input, its state]."""

    kind = "concatenate"

    @property
    @override
    def length(self) -> int | None:
        return None

    @override
    def stream(self, reader: Reader, repetition: int, state: State) -> Iterator[tuple[Any, State]]:
        first, before = state or (0, None)
        for number in range(first, len(self.inputs)):
            for element, after in reader.read(self.inputs[number], repetition, before):
                yield element, [number, after]
            before = None


class StreamMix(Streamed):
    """Elements of the inputs in proportion to weights, until one has run out. State: [place, [one of each input]]."""

    kind = "mix"

    def __init__(self, stages: Sequence[Stage], weights: Sequence[float]) -> None:
        super().__init__(*stages)
        self.quotas = quotas(weights)
        self._pattern, _ = pattern(self.quotas)

    @property
    @override
    def length(self) -> int | None:
        return None

    @property
    @override
    def endless(self) -> bool:
        return all(stage.endless for stage in self.inputs)

    @override
    def parameters(self) -> dict[str, Any]:
        return {"weights": ":".join(map(str, self.quotas))}

    @override
    def stream(self, reader: Reader, repetition: int, state: State) -> Iterator[tuple[Any, State]]:
        place, befores = state or (0, [None] * len(self.inputs))
        befores = list(befores)
        read = [
            reader.read(stage, repetition, before) for stage, before in zip(self.inputs, befores, strict=True)
        ]
        chosen = self._pattern.tolist()
        while True:
            number = chosen[place % len(chosen)]
            try:
                element, befores[number] = next(read[number])
            except StopIteration:
                return
            place += 1
            yield element, [place, list(befores)]
