"""Stages that only renumber: `shuffle`, `repeat`, `take`, `skip`, `enumerate`. Over an addressed stage they cost nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
from typing_extensions import override

from samebits.data.stage import INFINITE, Addressed, Ordinals, wrapped
from samebits.errors import InvalidArgumentError
from samebits.random import permutation, words


class Shuffle(Addressed):
    """A keyed permutation of each repetition: O(1) memory."""

    kind = "shuffle"

    def __init__(self, stage: Addressed, *, reshuffle_each_epoch: bool) -> None:
        super().__init__(stage)
        if stage.length >= INFINITE // 2:
            raise InvalidArgumentError(
                f"Pipeline.shuffle(): {stage.describe()} does not end, so that there is no order of all its elements; "
                "shuffle before repeat, or give shuffle a buffer_size"
            )
        self.reshuffle = reshuffle_each_epoch

    @property
    @override
    def length(self) -> int:
        return self.inputs[0].length

    @override
    def parameters(self) -> dict[str, Any]:
        return {"reshuffle_each_epoch": self.reshuffle}

    @override
    def fetch(self, ordinals: Ordinals) -> list[Any]:
        return self.inputs[0].fetch(self.permuted(ordinals))

    def permuted(self, ordinals: Ordinals) -> Ordinals:
        """The input's ordinals that stand at these places."""
        length = self.length
        repetition, index = np.divmod(ordinals, length)
        result = np.empty_like(ordinals)
        for one in np.unique(repetition).tolist():
            where = repetition == one
            key = words.fold(self.key, one if self.reshuffle else 0)
            result[where] = one * length + np.array(
                [permutation.permute_index(key, i, length) for i in index[where].tolist()]
            )
        return result


class Repeat(Addressed):
    """The repetitions of the input, one after the other."""

    kind = "repeat"

    def __init__(self, stage: Addressed, count: int | None) -> None:
        super().__init__(stage)
        if count is not None and count < 1:
            raise InvalidArgumentError(
                f"Pipeline.repeat(count={count}): count is at least 1, or None for no end"
            )
        self.count = count

    @property
    @override
    def length(self) -> int:
        inner = self.inputs[0].length
        if self.count is None or inner * self.count > INFINITE:
            return INFINITE // inner * inner  # a multiple, so that ordinals pass unchanged
        return inner * self.count

    @override
    def parameters(self) -> dict[str, Any]:
        return {"count": self.count}

    @override
    def fetch(self, ordinals: Ordinals) -> list[Any]:
        return self.inputs[0].fetch(ordinals)


class Part(Addressed):
    """Every `stride`-th element from `start` to `stop`: `take`, `skip`, `shard`."""

    kind = "take"

    def __init__(self, stage: Addressed, part: range) -> None:
        super().__init__(stage)
        if not part:
            raise InvalidArgumentError(
                f"Pipeline: elements {part.start}, {part.start + part.step}, ... below {part.stop} of {stage.describe()}, "
                f"which has {stage.length}, are none"
            )
        self.part = part

    @property
    @override
    def length(self) -> int:
        return len(self.part)

    @override
    def parameters(self) -> dict[str, Any]:
        return {"part": str(self.part)}

    @override
    def fetch(self, ordinals: Ordinals) -> list[Any]:
        index, start = wrapped(ordinals, len(self.part), self.inputs[0].length)
        return self.inputs[0].fetch(start + self.part.start + index * self.part.step)
