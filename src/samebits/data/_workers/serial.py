"""Reading stages whose functions have lasting side effects: as a plain loop would, one element at a time, in order.

Workers may compute ahead the stages below such a function that its changes cannot reach. The function itself runs only
when its element is needed, and the stages after it run after it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from samebits.data._calls.process_generators import Draws
from samebits.data._calls.user_function import Place
from samebits.data._stages.batch_stages import Batch
from samebits.data._stages.map_filter import AddressedOperation, FlatMap, GroupedOperation, Unbatch
from samebits.data._stages.shuffle_repeat import Enumerate, Renumbered
from samebits.data._stages.stage import Addressed, Blocks, Grouped, Ordinals, State
from samebits.data._workers.serial_functions import Effects
from samebits.data._workers.tasks import place

_END = object()
Fetch = Callable[[Blocks, int, int], Any]
"""(stage, first ordinal, the one after the last) -> a function that returns the elements, or groups, later."""


class OneByOne(Addressed):
    """An input of a batch, read one element at a time: else each function would see all rows before the next does."""

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
    """A stage free of side effects that others compute ahead; elements that were not requested are computed inline."""

    def __init__(self, stage: Any) -> None:
        self.stage = stage
        self._coming: list[tuple[int, int, Callable[[], list[Any]]]] = []
        self._there: dict[int, Any] = {}

    def request(self, fetch: Fetch, ordinals: Ordinals) -> None:
        """Requests these elements: neighbours by one job."""
        for run in np.split(ordinals, np.flatnonzero(np.diff(ordinals) != 1) + 1):
            if run.size:
                first, last = int(run[0]), int(run[-1]) + 1
                self._coming.append((first, last, fetch(self.stage, first, last)))

    def take(self, ordinal: int) -> Any:
        """Returns one element, or group."""
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


class _PrefetchedElements(Addressed):
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
        """Returns, for a batch, the places of its rows in its input."""
        return self.ahead.stage.places(place, count)


class _PrefetchedGroups(Grouped):
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
    """Reads a bound stage of blocks with side effects."""

    def __init__(self, stage: Blocks, effects: Effects, draws: Draws) -> None:
        self._draws, self._effects = draws, effects
        self.free: list[PrefetchedStage] = []
        """The parts that others may compute ahead."""
        self._top = self._rewire(stage)
        self._stage, self._single = stage, _has_single_elements(stage)

    def read(
        self, repetition: int, state: State, fetch: Fetch | None = None, ahead: int = 0
    ) -> Iterator[tuple[Any, State]]:
        """Yields the elements from `state` on, each with the state after it; `ahead`: tasks to request ahead."""
        first, done = place(state)
        groups = self._stage.groups
        size = self._stage.task_size
        foreseen = first
        for ordinal in range(first, groups):
            while fetch is not None and foreseen < min(groups, ordinal + size * ahead):
                coming = np.arange(foreseen, min(foreseen + size, groups), dtype=np.int64)
                self._prefetch(self._top, coming + repetition * groups, fetch)
                foreseen += size
            yield from self._group(ordinal, repetition * groups + ordinal, done if ordinal == first else 0)

    def _group(self, ordinal: int, absolute: int, done: int) -> Iterator[tuple[Any, State]]:
        """Yields the elements of one group. None of several is known to be the last before the next is requested."""
        elements = _iterate_lazily(self._top, absolute)
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
            with self._draws.fill_each_call():  # never tried first: a function with effects is called once
                return next(elements, _END)
        finally:
            torch.set_num_threads(threads)

    def _rewire(self, stage: Any) -> Any:
        if not self._effects.affects(stage):
            self.free.append(PrefetchedStage(stage))
            return (_PrefetchedElements if isinstance(stage, Addressed) else _PrefetchedGroups)(self.free[-1])
        wired = copy.copy(stage)
        wired.inputs = tuple(self._rewire(below) for below in stage.inputs)
        if isinstance(wired, Batch):
            wired.inputs = (OneByOne(wired.inputs[0]),)
        return wired

    def _prefetch(self, stage: Any, ordinals: Ordinals, fetch: Fetch) -> None:
        """Requests what these ordinals will need, where that is known without computing."""
        if isinstance(stage, _PrefetchedElements | _PrefetchedGroups):
            stage.ahead.request(fetch, ordinals)
        elif isinstance(stage, AddressedOperation | Enumerate | GroupedOperation | OneByOne):
            self._prefetch(stage.inputs[0], ordinals, fetch)
        elif isinstance(stage, Renumbered):
            self._prefetch(stage.inputs[0], stage.renumber(ordinals), fetch)
        elif isinstance(stage, Batch):
            for ordinal in ordinals.tolist():
                self._prefetch(stage.inputs[0], stage.rows(ordinal), fetch)


def _has_single_elements(stage: Any) -> bool:
    """Returns True if no group has more than one element."""
    if isinstance(stage, GroupedOperation):
        return not isinstance(stage.operation, FlatMap | Unbatch) and _has_single_elements(stage.inputs[0])
    return isinstance(stage, Addressed)


def _iterate_lazily(stage: Any, ordinal: int) -> Iterator[Any]:
    """Yields the elements of one group, none computed before it is needed."""
    if isinstance(stage, Addressed):
        yield from stage.fetch(np.array([ordinal], np.int64))
    elif isinstance(stage, GroupedOperation):
        for number, element in enumerate(_iterate_lazily(stage.inputs[0], ordinal)):
            here = [(ordinal, number)]
            if isinstance(stage.operation, FlatMap):
                yield from stage.operation.function.call_each(stage.key, here, [element])[0]
            else:
                yield from stage.operation.groups(stage, here, [element])[0]
    else:
        yield from stage.block(np.array([ordinal], np.int64))[0]
