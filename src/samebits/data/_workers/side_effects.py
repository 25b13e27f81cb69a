"""Which functions of a pipeline leave something changed, and which others that can reach."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch

from samebits._inspect import rng_states
from samebits.data import _purity as purity
from samebits.data._calls.user_function import Function
from samebits.data._rolling_digest import rolled
from samebits.data._stages.interleave import Interleave
from samebits.data._stages.sources import FirstElements, Iterated, Source
from samebits.data._stages.stage import Stage
from samebits.determinism._warn_once import warn_once
from samebits.errors import ConflictWarning

T = TypeVar("T")
_PLAIN_ITERABLES = (list, tuple, range, str, dict, np.ndarray, torch.Tensor)


def own(stage: Stage) -> list[Function]:
    """The user's functions of one stage."""
    kept: Any = vars(stage)
    if "_functions" not in kept:
        kept["_functions"] = list(_own(stage))
    return kept["_functions"]


def _own(stage: Stage) -> Iterator[Function]:
    if isinstance(stage, Source):
        yield stage.function
        return
    if isinstance(stage, Iterated) and callable(stage.iterable):
        yield Function(stage.iterable, stage.kind)
    for part in vars(stage).values():
        if isinstance(part, Function):
            yield part
    operation = getattr(stage, "operation", None)
    if operation is not None:
        yield operation.function


def functions(stage: Stage) -> list[Function]:
    """The user's functions of a stage and all below it, from the sources on."""
    return [*(one for below in stage.inputs for one in functions(below)), *own(stage)]


def may_draw(stage: Stage) -> str | None:
    """The function that may draw from the process's generators, and where; None if none does."""
    for below in stage.inputs:
        if (found := may_draw(below)) is not None:
            return found
    if isinstance(stage, Interleave):
        return f"{stage.describe()}: what its inner streams do is known only when they are made"
    if (
        isinstance(stage, Iterated)
        and not callable(stage.iterable)
        and not isinstance(stage.iterable, _PLAIN_ITERABLES)
    ):
        return f"{stage.describe()}: an iterator of a class that is not read"
    for function in own(stage):
        if function.reading.may_draw is not None:
            return f"{stage.kind}({function.name}): {function.reading.may_draw}"
    return None


class Effects:
    """The functions of a pipeline that have to run one at a time, in order, in this process."""

    def __init__(self, stage: Stage) -> None:
        everything = functions(stage)
        self.changing = [function for function in everything if function.effects]
        serial = {id(function) for function in self.changing}
        targets = set().union(*(_targets(function) for function in self.changing)) - {0}
        if targets:  # what looks at what they change sees it as a plain loop would only in this process
            serial |= {id(function) for function in everything if function.reading.reaches() & targets}
        self._serial = serial

    def inside(self, stage: Stage) -> bool:
        """Whether one of them is in this stage, or below it."""
        return bool(self._serial) and any(id(function) in self._serial for function in functions(stage))

    def warn(self) -> None:
        """Says once what is not computed in parallel, and why."""
        for function in self.changing:
            warn_of(function)


def warn_of(function: Function) -> None:
    """Says once why a function is not called in parallel."""
    found = function.effects[0]
    where = (
        f"{found.file}, line {found.line}"
        if found.line
        else "seen as it ran"
        if function.noticed
        else "as declared"
    )
    what = (
        f"it changes `{found.variable}` ({found.kind}; {where})"
        if found.line or function.noticed
        else "it was declared so"
    )
    warn_once(
        f"effects of {function.stage} {function.name} {found}",
        f"Pipeline.{function.stage}({function.name}) has a side effect that lasts longer than the call: {what}, which a "
        "worker would change in its own copy only. So it is called in this process, one element at a time, in order, and "
        "nothing is made ahead behind it. Return what it counts or keeps as a part of the element, draw from a parameter "
        "`rng` or `key`; or say stateful=False where the effect does not matter (a memo of what was not drawn).",
        ConflictWarning,
    )


def _targets(function: Function) -> set[int]:
    found = {finding.target for finding in function.effects}
    return found | function.reading.reaches() if function.stateful or function.noticed else found


class EffectNoticedError(Exception):
    """A worker saw that a function changes what it has captured: (its number, the variable's name)."""


class CaptureWatch:
    """Looks at what functions have captured, before and after the first task: for what reading them has missed."""

    def __init__(self, stage: Stage) -> None:
        self._functions = functions(stage)
        self._sources = list(_sources(stage))
        self.done = False

    def run(self, task: Callable[[], T]) -> T:
        """The result of `task`; notes the side effects that it has had, at the first call."""
        if self.done:
            return task()
        self.done = True
        watched = [f for f in self._functions if f.stateful is None and not f.effects]
        before = [purity.snapshot(function.reading) for function in watched]
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
            for name in purity.changed(then, purity.snapshot(function.reading)):
                function.noticed.append(purity.Finding(name, "changed while it ran", 0))
        for source, elements in zip(sources, handed, strict=True):
            if elements is not None and not source.function.noticed and _holds(source, elements):
                name = (
                    f"an element of {type(source.data).__name__}, in place: map changes it there, not a copy"
                )
                source.function.noticed.append(purity.Finding(name, "changed while it ran", 0))
        return result

    def noticed(self) -> tuple[int, str] | None:
        """The number of a function that was seen to change something, and the name of that."""
        for number, function in enumerate(self._functions):
            if function.noticed:
                return number, function.noticed[0].variable
        return None

    def note(self, number: int, name: str) -> None:
        """What another process has seen."""
        self._functions[number].noticed.append(purity.Finding(name, "changed while it ran", 0))


def _sources(stage: Stage) -> Iterator[Source]:
    if isinstance(stage, Source):
        yield stage
    for below in stage.inputs:
        yield from _sources(below)


def _holds(source: Source, handed: FirstElements) -> bool:
    """Whether an element that was changed in place is so for the next reader, too."""
    before = rng_states.of_process()
    try:
        return any(rolled(0, source.read(index)) == now for index, now in handed.changed())
    except Exception:  # it cannot be read twice
        return False
    finally:
        before.restore()


class WatchedDraws:
    """`scope.Draws` in a worker, whose first task is watched."""

    def __init__(self, draws: Any, stage: Stage) -> None:
        self._draws, self._watch = draws, CaptureWatch(stage)
        self._known = self._watch.noticed() is not None

    def run(self, task: Callable[[], T]) -> T:
        """The result of `task`.

        Raises:
            EffectNoticedError: the first one has changed what a function has captured.
        """
        result = self._watch.run(lambda: self._draws.run(task))
        if not self._known and (found := self._watch.noticed()) is not None:
            raise EffectNoticedError(*found)
        return result
