"""Stages of several streams: `zip`, `concatenate` and `mix`, by index and by stream; and `interleave`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from math import lcm
from typing import Any

import numpy as np
from typing_extensions import override

from samebits.data._calls.user_function import Function
from samebits.data._stages.stage import (
    INFINITE,
    Addressed,
    Ordinals,
    Reader,
    Stage,
    State,
    Streamed,
    split_repetition,
)
from samebits.random import _int_keys as int_keys

PATTERN = 4096
"""The most elements after which the weights of `mix` hold exactly; finer weights are rounded."""


class _Joint(Stage):
    """A stage that ends where the first of its inputs does."""

    def __init__(self, *inputs: Stage, **described: Any) -> None:
        super().__init__(*inputs, **described)
        self.endless = all(stage.endless for stage in inputs)


class Zip(_Joint, Addressed):
    """Tuples of one element of each input; as long as the shortest."""

    kind = "zip"

    @property
    @override
    def length(self) -> int:
        return min(stage.length for stage in self.inputs)

    @override
    def fetch(self, ordinals: Ordinals) -> list[tuple[Any, ...]]:
        columns = []
        for stage in self.inputs:
            index, start = split_repetition(ordinals, self.length, stage.length)
            columns.append(stage.fetch(start + index))
        return list(zip(*columns, strict=True))


class StreamZip(_Joint, Streamed):
    """`Zip` of streams. State: one of each input."""

    kind = "zip"

    @override
    def stream(self, reader: Reader, repetition: int, state: State) -> Iterator[tuple[Any, State]]:
        befores = state or [None] * len(self.inputs)
        for pairs in zip(*_read_all(self.inputs, reader, repetition, befores), strict=False):
            yield tuple(element for element, _ in pairs), [after for _, after in pairs]


class _Choosing(Addressed):
    """Element o is one element of one of the inputs."""

    @override
    def fetch(self, ordinals: Ordinals) -> list[Any]:
        repetition, index = np.divmod(ordinals, self.length)
        which, inner = self.choose(index)
        result: list[Any] = [None] * ordinals.size
        for number, stage in enumerate(self.inputs):
            where = np.flatnonzero(which == number)
            if where.size:
                elements = stage.fetch(repetition[where] * stage.length + inner[where])
                for place, element in zip(where.tolist(), elements, strict=True):
                    result[place] = element
        return result

    @abstractmethod
    def choose(self, index: Ordinals) -> tuple[Ordinals, Ordinals]:
        """Returns (number of the input, index in it) of the elements at these places."""


class Concatenate(_Choosing):
    """All elements of the first input, then all of the second, and so on."""

    kind = "concatenate"

    @property
    @override
    def length(self) -> int:
        return min(sum(stage.length for stage in self.inputs), INFINITE)

    @override
    def choose(self, index: Ordinals) -> tuple[Ordinals, Ordinals]:
        ends = np.cumsum([stage.length for stage in self.inputs])
        which = np.searchsorted(ends, index, side="right")
        return which, index - np.concatenate([[0], ends])[which]


class StreamConcatenate(Streamed):
    """`Concatenate` of streams. State: [number of the input, its state]."""

    kind = "concatenate"

    @override
    def stream(self, reader: Reader, repetition: int, state: State) -> Iterator[tuple[Any, State]]:
        first, before = state or (0, None)
        for number in range(first, len(self.inputs)):
            for element, after in reader.read(self.inputs[number], repetition, before):
                yield element, [number, after]
            before = None


class _Mixing(_Joint):
    """Elements of the inputs in proportion to weights, evenly spread, until one input has run out."""

    kind = "mix"

    def __init__(self, stages: Sequence[Stage], weights: Sequence[float]) -> None:
        self.quotas = quotas(weights)
        super().__init__(*stages, parameters={"weights": ":".join(map(str, self.quotas))})
        self.pattern, self.rank = pattern(self.quotas)


class Mix(_Mixing, _Choosing):
    """The mixture of addressed stages."""

    @property
    @override
    def length(self) -> int:
        return min(self._elements_before(number, stage.length) for number, stage in enumerate(self.inputs))

    @override
    def choose(self, index: Ordinals) -> tuple[Ordinals, Ordinals]:
        rounds, place = np.divmod(index, self.pattern.size)
        which = self.pattern[place]
        return which, rounds * np.array(self.quotas)[which] + self.rank[place]

    def _elements_before(self, number: int, length: int) -> int:
        """Returns the number of elements of the mixture before it needs element `length` of this input."""
        rounds, rest = divmod(length, self.quotas[number])
        return min(rounds * self.pattern.size + int(np.flatnonzero(self.pattern == number)[rest]), INFINITE)


class StreamMix(_Mixing, Streamed):
    """The mixture of streams. State: [place, [one of each input]]."""

    @override
    def stream(self, reader: Reader, repetition: int, state: State) -> Iterator[tuple[Any, State]]:
        place, befores = state or (0, [None] * len(self.inputs))
        befores = list(befores)
        read = _read_all(self.inputs, reader, repetition, befores)
        chosen = self.pattern.tolist()
        while True:
            number = chosen[place % len(chosen)]
            try:
                element, befores[number] = next(read[number])
            except StopIteration:
                return
            place += 1
            yield element, [place, list(befores)]


def _read_all(
    stages: Sequence[Stage], reader: Reader, repetition: int, befores: Sequence[State]
) -> list[Iterator[tuple[Any, State]]]:
    return [reader.read(stage, repetition, before) for stage, before in zip(stages, befores, strict=True)]


def quotas(weights: Sequence[float]) -> list[int]:
    """Returns integers in the proportion of the weights, each at least 1; their sum is about `PATTERN`."""
    total = sum(Fraction(weight) for weight in weights)
    shares = [(Fraction(weight) / total).limit_denominator(PATTERN) for weight in weights]
    scale = min(lcm(*(share.denominator for share in shares)), PATTERN)
    return [max(1, round(share * scale)) for share in shares]


def pattern(numbers: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Returns (input, its places before this one) for each place of one round, all inputs evenly spread."""
    places = [
        ((rank + 0.5) / quota, number, rank) for number, quota in enumerate(numbers) for rank in range(quota)
    ]
    _, which, rank = zip(*sorted(places), strict=True)
    return np.array(which), np.array(rank)


Branch = tuple[Iterator[tuple[Any, State]], State, int, State]
"""The iterator, the input's state before its element, that element's number, and the state of the branch."""


class Interleave(Streamed):
    """`block_length` elements of each of `cycle_length` inner streams in turn, as tf.data's.

    State: [the input's, elements opened, turn in the cycle, elements of the block, [reference, number, state]
    of each open branch, or None where the input had no more].
    """

    kind = "interleave"
    unread = "its inner streams are known only when they are opened"

    def __init__(
        self,
        stage: Stage,
        function: Function,
        cycle_length: int,
        block_length: int,
        as_stage: Callable[[Any], Stage],
    ) -> None:
        parameters = {
            "function": function.name, "cycle_length": cycle_length, "block_length": block_length
        }  # fmt: skip
        super().__init__(stage, parameters=parameters, functions=[function])
        self.function, self.cycle_length, self.block_length = function, cycle_length, block_length
        self._as_stage = as_stage

    @override
    def stream(self, reader: Reader, repetition: int, state: State) -> Iterator[tuple[Any, State]]:
        before, opened, turn, done, saved = state or (None, 0, 0, 0, [])
        branches: list[Branch | None] = []
        for one in saved:
            element = one and reader.read_one(self.inputs[0], repetition, one[0])
            branches.append(one and self._open(reader, repetition, element, *one))
        arriving = reader.read(self.inputs[0], repetition, before)
        while True:
            if len(branches) <= turn < self.cycle_length or (turn < len(branches) and branches[turn] is None):
                found = next(arriving, None)
                if found is not None:
                    branch = self._open(reader, repetition, found[0], before, opened, None)
                    branches[turn : turn + 1] = [branch]
                    before, opened = found[1], opened + 1
            if not any(branches):
                return
            branch = branches[turn] if turn < len(branches) else None
            advanced = next(branch[0], None) if branch is not None else None
            if branch is not None and advanced is not None:
                branches[turn] = (*branch[:3], advanced[1])
                done += 1
                if done == self.block_length:
                    turn, done = (turn + 1) % self.cycle_length, 0
                yield (advanced[0], [before, opened, turn, done, [one and list(one[1:]) for one in branches]])
            elif branch is not None:
                branches[turn] = None  # it has ended: the input's next element replaces it, in this turn
                done = 0
            else:
                turn, done = (turn + 1) % self.cycle_length, 0

    def _open(
        self, reader: Reader, repetition: int, element: Any, before: State, number: int, state: State
    ) -> Branch:
        inner = self.function.call_each(self.key, [(repetition, number)], [element])[0]
        stage = self._as_stage(inner).bind(int_keys.fold(self.key, "branch", repetition, number))
        return reader.read(stage, 0, state), before, number, state
