"""`cache`: elements are computed once in each process; every epoch has the elements of the first."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from typing_extensions import override

from samebits._context import Words
from samebits.data._stages.stage import Addressed, Ordinals, Reader, Stage, State, Streamed


class Cache(Addressed):
    """An addressed stage's elements, kept in memory; every reader gets a copy, which it may change.

    Every repetition is the first one, so that draws below do not depend on which repetition came first.
    """

    kind = "cache"

    def __init__(self, stage: Addressed) -> None:
        super().__init__(stage)
        self._kept: dict[Words, dict[int, Any]] = {}

    @property
    @override
    def length(self) -> int:
        return self.inputs[0].length

    @override
    def fetch(self, ordinals: Ordinals) -> list[Any]:
        cached = self._kept.setdefault(self.key, {})
        indices = (ordinals % self.length).tolist()
        missing = [index for index in dict.fromkeys(indices) if index not in cached]
        if missing:
            elements = self.inputs[0].fetch(np.array(missing, np.int64))
            cached.update(zip(missing, elements, strict=True))
        return [copy.deepcopy(cached[index]) for index in indices]


@dataclass
class _CachedStream:
    """The elements read of a stream so far."""

    elements: list[Any] = field(default_factory=list)
    after: State = None
    complete: bool = False


class StreamCache(Streamed):
    """A stream's elements, kept in memory as they are read. State: elements delivered."""

    kind = "cache"

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._kept: dict[Words, _CachedStream] = {}

    @property
    @override
    def length(self) -> int | None:
        return None

    @override
    def stream(self, reader: Reader, repetition: int, state: State) -> Iterator[tuple[Any, State]]:
        cached = self._kept.setdefault(self.key, _CachedStream())
        number = state or 0
        while True:
            while number < len(cached.elements):
                number += 1
                yield copy.deepcopy(cached.elements[number - 1]), number
            if cached.complete:
                return
            self._read_until(cached, reader, number)

    def _read_until(self, cached: _CachedStream, reader: Reader, number: int) -> None:
        """Reads until element `number` is there, and some more: each call opens the stream anew."""
        for element, after in reader.read(self.inputs[0], 0, cached.after):
            cached.elements.append(element)
            cached.after = after
            if len(cached.elements) >= number + 64:
                return
        cached.complete = True
