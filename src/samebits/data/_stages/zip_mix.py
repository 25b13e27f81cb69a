"""Addressed stages of several addressed inputs: `zip`, `concatenate`, `mix`."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import lcm
from typing import Any

import numpy as np
from typing_extensions import override

from samebits.data._stages.stage import INFINITE, Addressed, Ordinals, split_repetition

PATTERN = 4096
"""The most elements after which the weights hold exactly; finer weights are rounded."""


class Zip(Addressed):
    """Tuples of one element of each input; as long as the shortest."""

    kind = "zip"

    @property
    @override
    def length(self) -> int:
        return min(stage.length for stage in self.inputs)

    @property
    @override
    def endless(self) -> bool:
        return all(stage.endless for stage in self.inputs)

    @override
    def fetch(self, ordinals: Ordinals) -> list[tuple[Any, ...]]:
        columns = []
        for stage in self.inputs:
            index, start = split_repetition(ordinals, self.length, stage.length)
            columns.append(stage.fetch(start + index))
        return list(zip(*columns, strict=True))


class _ChoiceStage(Addressed):
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

    def choose(self, index: Ordinals) -> tuple[Ordinals, Ordinals]:
        """Returns (number of the input, index in it) of the elements at these places."""
        raise NotImplementedError


class Concatenate(_ChoiceStage):
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


class Mix(_ChoiceStage):
    """Elements of the inputs in proportion to weights, evenly spread, until one input has run out."""

    kind = "mix"

    def __init__(self, stages: Sequence[Addressed], weights: Sequence[float]) -> None:
        super().__init__(*stages)
        self.quotas = quotas(weights)
        self._pattern, self._rank = pattern(self.quotas)

    @property
    @override
    def length(self) -> int:
        return min(self._elements_before(number, stage.length) for number, stage in enumerate(self.inputs))

    @property
    @override
    def endless(self) -> bool:
        return all(stage.endless for stage in self.inputs)

    @override
    def parameters(self) -> dict[str, Any]:
        return {"weights": ":".join(map(str, self.quotas))}

    @override
    def choose(self, index: Ordinals) -> tuple[Ordinals, Ordinals]:
        rounds, place = np.divmod(index, self._pattern.size)
        which = self._pattern[place]
        return which, rounds * np.array(self.quotas)[which] + self._rank[place]

    def _elements_before(self, number: int, length: int) -> int:
        """Returns the number of elements of the mixture before it needs element `length` of this input."""
        rounds, rest = divmod(length, self.quotas[number])
        return min(rounds * self._pattern.size + int(np.flatnonzero(self._pattern == number)[rest]), INFINITE)


def quotas(weights: Sequence[float]) -> list[int]:
    """Returns integers in the proportion of the weights, with a sum of at most about `PATTERN`; each at least 1."""
    total = sum(Fraction(weight) for weight in weights)
    shares = [(Fraction(weight) / total).limit_denominator(PATTERN) for weight in weights]
    scale = min(lcm(*(share.denominator for share in shares)), PATTERN)
    return [max(1, round(share * scale)) for share in shares]


def pattern(numbers: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Returns (input, number of that input's places before it) for each place of one round, all inputs evenly spread."""
    places = [
        ((rank + 0.5) / quota, number, rank) for number, quota in enumerate(numbers) for rank in range(quota)
    ]
    _, which, rank = zip(*sorted(places), strict=True)
    return np.array(which), np.array(rank)
