"""Reading stages whose functions leave something changed: as a plain loop would, one element at a time, in order.

What lies below such a function, and cannot be reached by what it changes, may be made ahead by workers; the function
itself sees no element before it is asked for, and what comes behind it has nothing to do in the meantime.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from samebits.data._calls.draw_scope import Draws
from samebits.data._calls.user_function import Place
from samebits.data._stages.batch_stages import Batch
from samebits.data._stages.map_filter import Expanded, FlatMap, Mapped, Unbatch
from samebits.data._stages.shuffle_repeat import Enumerate, Renumbered
from samebits.data._stages.stage import Addressed, Blocks, Grouped, Ordinals, State
from samebits.data._workers.side_effects import Effects
from samebits.data._workers.tasks import place, task_size

_END = object()
Fetch = Callable[[Blocks, int, int], Any]
"""(stage, first ordinal, the one behind the last) -> a function that gives the elements, or groups, later."""


class OneByOne(Addressed):
    """An input of a batch, asked for one element at a time: else each function would see all rows before the next does."""

    def __init__(self, stage: Addressed) -> None:
        super().__init__(stage)
        self.kind = stage.kind

    @property
    @override
    def length(self) -> int:
        return self.inputs[0].length

    @override
    def fetch(self, ordinals: Ordinals) -> list[Any]:
        return [self.inputs[0].fetch(ordinals[at : at + 1])[0] for at in range(ordinals.size)]


class PrefetchedStage:
    """What is made by others of a stage that is free of side effects; what was not foreseen is made here."""

    def __init__(self, stage: Any) -> None:
        self.stage = stage
        self._coming: list[tuple[int, int, Callable[[], list[Any]]]] = []
        self._there: dict[int, Any] = {}

    def ask(self, fetch: Fetch, ordinals: Ordinals) -> None:
        """Has these made: neighbours by one job."""
        for run in np.split(ordinals, np.flatnonzero(np.diff(ordinals) != 1) + 1):
            if run.size:
                first, last = int(run[0]), int(run[-1]) + 1
                self._coming.append((first, last, fetch(self.stage, first, last)))

    def take(self, ordinal: int) -> Any:
        """One element, or group."""
        for number, (first, last, result) in enumerate(self._coming):
            if ordinal in self._there:
                break
            if first <= ordinal < last:
                self._there.update(zip(range(first, last), result(), strict=True))
                del self._coming[number]
                break
        if ordinal in self._there:
            return self._there.pop(ordinal)
        single = np.array([ordinal], np.int64)
        return (self.stage.fetch if isinstance(self.stage, Addressed) else self.stage.block)(single)[0]


class _GivenElements(Addressed):
    def __init__(self, ahead: PrefetchedStage) -> None:
        super().__init__(*ahead.stage.inputs)
        self.kind, self.ahead = ahead.stage.kind, ahead

    @property
    @override
    def length(self) -> int:
        return self.ahead.stage.length

    @override
    def fetch(self, ordinals: Ordinals) -> list[Any]:
        return [self.ahead.take(ordinal) for ordinal in ordinals.tolist()]

    def places(self, place: Place, count: int) -> Sequence[Place]:
        """Of a batch: where its rows are in its input."""
        return self.ahead.stage.places(place, count)


class _GivenGroups(Grouped):
    def __init__(self, ahead: PrefetchedStage) -> None:
        super().__init__(*ahead.stage.inputs)
        self.kind, self.ahead = ahead.stage.kind, ahead

    @property
    @override
    def groups(self) -> int:
        return self.ahead.stage.groups

    @override
    def block(self, ordinals: Ordinals) -> list[list[Any]]:
        return [self.ahead.take(ordinal) for ordinal in ordinals.tolist()]


class Serial:
    """A bound stage of blocks with side effects, to be read."""

    def __init__(self, stage: Blocks, effects: Effects, draws: Draws) -> None:
        self._draws, self._effects = draws, effects
        self.free: list[PrefetchedStage] = []
        """The parts that others may make ahead."""
        self._top = self._rewired(stage)
        self._stage, self._single = stage, _at_most_one(stage)

    def read(
        self, repetition: int, state: State, fetch: Fetch | None = None, ahead: int = 0
    ) -> Iterator[tuple[Any, State]]:
        """The elements from `state` on, each with the state behind it; `ahead`: tasks that are foreseen."""
        first, done = place(state)
        groups = self._stage.groups
        size = task_size(self._stage)
        foreseen = first
        for ordinal in range(first, groups):
            while fetch is not None and foreseen < min(groups, ordinal + size * ahead):
                coming = np.arange(foreseen, min(foreseen + size, groups), dtype=np.int64)
                self._foresee(self._top, coming + repetition * groups, fetch)
                foreseen += size
            yield from self._group(ordinal, repetition * groups + ordinal, done if ordinal == first else 0)

    def _group(self, ordinal: int, absolute: int, done: int) -> Iterator[tuple[Any, State]]:
        """The elements of one group. Of several, none is known to be the last before the next one is asked for."""
        elements = _lazily(self._top, absolute)
        if self._single:
            if (element := self._next(elements)) is not _END:
                yield element, ordinal + 1
            return
        number = 0
        while (element := self._next(elements)) is not _END:
            number += 1
            if number > done:
                yield element, [ordinal, number]

    def _next(self, elements: Iterator[Any]) -> Any:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as in a worker
        try:
            with self._draws.guarded():  # never tried out first: what has an effect is called once
                return next(elements, _END)
        finally:
            torch.set_num_threads(threads)

    def _rewired(self, stage: Any) -> Any:
        if not self._effects.inside(stage):
            self.free.append(PrefetchedStage(stage))
            return (_GivenElements if isinstance(stage, Addressed) else _GivenGroups)(self.free[-1])
        wired = copy.copy(stage)
        wired.inputs = tuple(self._rewired(below) for below in stage.inputs)
        if isinstance(wired, Batch):
            wired.inputs = (OneByOne(wired.inputs[0]),)
        return wired

    def _foresee(self, stage: Any, ordinals: Ordinals, fetch: Fetch) -> None:
        """Asks for what these ordinals will need, where that can be told without computing."""
        if isinstance(stage, _GivenElements | _GivenGroups):
            stage.ahead.ask(fetch, ordinals)
        elif isinstance(stage, Mapped | Enumerate | Expanded | OneByOne):
            self._foresee(stage.inputs[0], ordinals, fetch)
        elif isinstance(stage, Renumbered):
            self._foresee(stage.inputs[0], stage.renumber(ordinals), fetch)
        elif isinstance(stage, Batch):
            for ordinal in ordinals.tolist():
                self._foresee(stage.inputs[0], stage.rows(ordinal), fetch)


def _at_most_one(stage: Any) -> bool:
    """Whether no group has more than one element."""
    if isinstance(stage, Expanded):
        return not isinstance(stage.operation, FlatMap | Unbatch) and _at_most_one(stage.inputs[0])
    return isinstance(stage, Addressed)


def _lazily(stage: Any, ordinal: int) -> Iterator[Any]:
    """The elements of one group, none made before it is asked for."""
    if isinstance(stage, Addressed):
        yield from stage.fetch(np.array([ordinal], np.int64))
    elif isinstance(stage, Expanded):
        for number, element in enumerate(_lazily(stage.inputs[0], ordinal)):
            here = [(ordinal, number)]
            if isinstance(stage.operation, FlatMap):
                yield from stage.operation.function.over(stage.key, here, [element])[0]
            else:
                yield from stage.operation.groups(stage, here, [element])[0]
    else:
        yield from stage.block(np.array([ordinal], np.int64))[0]
