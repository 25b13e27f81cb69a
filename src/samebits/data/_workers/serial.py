"""Functions with lasting side effects: their search, and the reading of their stages as by a plain loop.

One element is computed at a time, in order. Workers may compute ahead the stages below such a function that
its changes cannot reach. The function itself, and the stages after it, run only when its element is needed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from typing_extensions import override

from samebits._objects import rng_states
from samebits._program import effects
from samebits.data._calls.process_generators import Draws
from samebits.data._calls.user_function import Function, Place
from samebits.data._rolling_digest import update_digest
from samebits.data._stages.batch import Batch
from samebits.data._stages.sources import FirstElements, Source
from samebits.data._stages.stage import (
    Addressed,
    Blocks,
    Following,
    Grouped,
    Numbered,
    Ordinals,
    SameLength,
    SameOrdinals,
    Stage,
    State,
    place,
)
from samebits.data._workers.worker_process import OneThread
from samebits.determinism._warn_once import warn_once
from samebits.errors import ConflictWarning

T = TypeVar("T")
_END = object()
Fetch = Callable[[Blocks, int, int], Any]
"""(stage, first ordinal, the one after the last) -> a function that returns elements or groups later."""


class Effects:
    """The functions of a pipeline that must run one at a time, in order, in this process."""

    def __init__(self, stage: Stage) -> None:
        everything = stage.all_functions()
        self.changing = [function for function in everything if function.effects]
        serial = {id(function) for function in self.changing}
        targets = set().union(*(_targets(function) for function in self.changing)) - {0}
        if targets:  # readers of what they change see it as in a plain loop only in this process
            serial |= {id(function) for function in everything if function.reading.reaches() & targets}
        self._serial = serial

    def affects(self, stage: Stage) -> bool:
        return bool(self._serial) and any(id(function) in self._serial for function in stage.all_functions())

    def warn(self) -> None:
        """Warns once of what is not computed in parallel, and why."""
        for function in self.changing:
            warn_about(function)


def warn_about(function: Function) -> None:
    """Warns once why a function is not called in parallel."""
    found = (function.noticed or function.effects)[0]
    what = "it was declared so"
    if found.line:
        what = f"it changes `{found.variable}` ({found.kind}; {found.file}, line {found.line})"
    elif function.noticed:
        what = f"it changes `{found.variable}` ({found.kind}; seen as it ran)"
    cure = (
        "Elements depend on it: compute them from the index; num_workers=0 says nothing."
        if function.stage == "DataLoader"
        else "Return what it counts or keeps as a part of the element, draw from a parameter `rng` or `key`; "
        "or say stateful=False where the effect does not matter (a memo of what was not drawn)."
    )
    warn_once(
        f"effects of {function.stage} {function.name} {found}",
        f"{function.where} has a side effect that lasts longer than the call: "
        f"{what}, which a worker would change in its own copy only. So it is called in this process, one "
        f"element at a time, in order, and nothing after it is computed ahead. {cure}",
        ConflictWarning,
    )


def _targets(function: Function) -> set[int]:
    found = {finding.target for finding in function.effects}
    return found | function.reading.reaches() if function.stateful or function.noticed else found


class EffectNoticedError(Exception):
    """A worker saw that a function changes a captured variable: (its number, the variable's name)."""


class CaptureWatch:
    """Compares captured values before and after the first task: for side effects that reading has missed."""

    def __init__(self, stage: Stage) -> None:
        self._functions = stage.all_functions()
        self._sources = [one for one in stage.chain() if isinstance(one, Source)]
        self.done = False

    def run(self, task: Callable[[], T]) -> T:
        """Returns the result of `task`; the first call notes its side effects."""
        if self.done:
            return task()
        self.done = True
        watched = [f for f in self._functions if f.stateful is None and not f.effects]
        before = [effects.snapshot(function.reading) for function in watched]
        sources = [source for source in self._sources if source.function in watched]
        for source in sources:
            source.handed = FirstElements()
        try:
            result = task()
        finally:
            handed = [source.handed for source in sources]
            for source in sources:
                source.handed = None
        for function, then in zip(watched, before, strict=True):
            for name in effects.changed(then, effects.snapshot(function.reading)):
                function.noticed.append(effects.Finding(name, "changed while it ran", 0))
        for source, elements in zip(sources, handed, strict=True):
            if elements is not None and not source.function.noticed and _persists(source, elements):
                name = (
                    f"an element of {type(source.data).__name__}, in place: map changes it there, not a copy"
                )
                source.function.noticed.append(effects.Finding(name, "changed while it ran", 0))
        return result

    def noticed(self) -> tuple[int, str] | None:
        """Returns the number of a function that was seen to change something, and the changed name."""
        for number, function in enumerate(self._functions):
            if function.noticed:
                return number, function.noticed[0].variable
        return None

    def note(self, number: int, name: str) -> None:
        """Notes a side effect that another process has seen."""
        self._functions[number].noticed.append(effects.Finding(name, "changed while it ran", 0))


def _persists(source: Source, handed: FirstElements) -> bool:
    """Returns True if an element changed in place stays changed for the next reader."""
    before = rng_states.of_process()
    try:
        return any(update_digest(0, source.read(index)) == now for index, now in handed.iter_changed())
    except Exception:  # it cannot be read twice
        return False
    finally:
        before.restore()


def watched(draws: Draws, stage: Stage) -> Callable[[Callable[[], T]], T]:
    """Returns `draws.run` for a worker, which raises EffectNoticedError if a task changes a capture."""
    watch = CaptureWatch(stage)
    known = watch.noticed() is not None

    def run(task: Callable[[], T]) -> T:
        result = watch.run(lambda: draws.run(task))
        if not known and (found := watch.noticed()) is not None:
            raise EffectNoticedError(*found)
        return result

    return run


class OneByOne(SameOrdinals, SameLength):
    """An input of a batch, read one by one: else each function would see all rows before the next does."""

    def __init__(self, stage: Addressed) -> None:
        super().__init__(stage)
        self.kind = stage.kind

    @override
    def fetch(self, ordinals: Ordinals) -> list[Any]:
        return [self.inputs[0].fetch(ordinals[at : at + 1])[0] for at in range(ordinals.size)]


class _Prefetched(Numbered):
    """A stage without side effects that others compute ahead; what was not requested is computed inline."""

    def __init__(self, stage: Any) -> None:
        super().__init__(*stage.inputs)
        self.kind, self.stage = stage.kind, stage
        self._coming: list[tuple[int, int, Callable[[], list[Any]]]] = []
        self._there: dict[int, Any] = {}

    def request(self, fetch: Fetch, ordinals: Ordinals) -> None:
        """Requests these elements: neighbours by one job."""
        for run in np.split(ordinals, np.flatnonzero(np.diff(ordinals) != 1) + 1):
            if run.size:
                first, last = int(run[0]), int(run[-1]) + 1
                self._coming.append((first, last, fetch(self.stage, first, last)))

    def take(self, ordinals: Ordinals) -> list[Any]:
        """Returns elements, or groups."""
        return [self._take(ordinal) for ordinal in ordinals.tolist()]

    def _take(self, ordinal: int) -> Any:
        if ordinal not in self._there:
            for number, (first, last, result) in enumerate(self._coming):
                if first <= ordinal < last:
                    self._there.update(zip(range(first, last), result(), strict=True))
                    del self._coming[number]
                    break
        if ordinal in self._there:
            return self._there.pop(ordinal)
        group = self.stage.block(np.array([ordinal], np.int64))[0]
        return group[0] if isinstance(self, Addressed) else group


class _PrefetchedElements(_Prefetched, Addressed):
    @property
    @override
    def length(self) -> int:
        return self.stage.length

    @override
    def fetch(self, ordinals: Ordinals) -> list[Any]:
        return self.take(ordinals)

    def places(self, place: Place, count: int) -> Sequence[Place]:
        """Returns, for a batch, the places of its rows in its input."""
        return self.stage.places(place, count)


class _PrefetchedGroups(_Prefetched, Grouped):
    @property
    @override
    def groups(self) -> int:
        return self.stage.groups

    @override
    def iterate(self, ordinal: int) -> Iterator[Any]:
        yield from self._take(ordinal)

    @override
    def block(self, ordinals: Ordinals) -> list[list[Any]]:
        return self.take(ordinals)


class Serial:
    """Reads a bound stage of ordinals with side effects."""

    def __init__(self, stage: Any, effects: Effects, draws: Draws) -> None:
        self._draws, self._effects = draws, effects
        self.free: list[_Prefetched] = []
        """The parts that others may compute ahead."""
        self._top = self._rewire(stage)
        self._stage = stage

    def read(
        self, repetition: int, state: State, fetch: Fetch | None = None, ahead: int = 0
    ) -> Iterator[tuple[Any, State]]:
        """Yields the elements from `state` on with the states after them; `ahead`: tasks to request ahead."""
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
        """Yields the elements of a group. Which one is the last is only known when the next is requested."""
        elements = self._top.iterate(absolute)
        if self._stage.single:
            if (element := self._next(elements)) is not _END:
                yield element, ordinal + 1
            return
        number = 0
        while (element := self._next(elements)) is not _END:
            number += 1
            if number > done:
                yield element, [ordinal, number]

    def _next(self, elements: Iterator[Any]) -> Any:
        # Not tried without generators first: a function with effects is called once.
        with OneThread(), self._draws.fill_each_call():
            return next(elements, _END)

    def _rewire(self, stage: Any) -> Any:
        if not self._effects.affects(stage):
            kind = _PrefetchedElements if isinstance(stage, Addressed) else _PrefetchedGroups
            self.free.append(kind(stage))
            return self.free[-1]
        wired = copy.copy(stage)
        wired.inputs = tuple(self._rewire(below) for below in stage.inputs)
        if isinstance(wired, Batch):
            wired.inputs = (OneByOne(wired.inputs[0]),)
        return wired

    def _prefetch(self, stage: Any, ordinals: Ordinals, fetch: Fetch) -> None:
        """Requests what these ordinals will need, where that is known without computing."""
        if isinstance(stage, _Prefetched):
            stage.request(fetch, ordinals)
        elif isinstance(stage, Following):
            self._prefetch(stage.inputs[0], stage.needed(ordinals), fetch)
