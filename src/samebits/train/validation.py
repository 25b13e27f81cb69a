"""`Run.validate`: the batches of a validation inside the body of a step, a phase of its own."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import replace
from typing import Any, Protocol

from samebits.context import Position, Words, notify, process
from samebits.errors import InvalidArgumentError
from samebits.random import accounting, words
from samebits.train.inside import leave_body
from samebits.train.loops import Loops
from samebits.train.preemption import Interrupted, Preemption
from samebits.train.source import InsideSource
from samebits.train.state import Stateful


class Owner(Protocol):
    """What a validation needs of its run."""

    key: Words
    objects: dict[str, Stateful]
    preemption: Preemption
    _loops: Loops

    def validating(self, position: Position) -> None:
        """Between two batches of a validation."""
        ...


class Validation(Iterable[Any]):
    """Yields the batches; what the body of the step draws before and behind it does not depend on it."""

    def __init__(self, run: Owner, loader: Iterable[Any], name: str) -> None:
        self._run = run
        self._loader = loader
        at = process.position or run._loops.position()
        self._first = replace(at, phase="validate", name=name, phase_batch=0)
        self._key = words.fold(run.key, at.loop, "validate", name, at.step)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Generator[Any, None, None]:
        under_way = self._run._loops.validation
        if under_way is not None:
            raise InvalidArgumentError(
                f"run.validate(name={self._first.name!r}) inside the body of run.validate(name={under_way.name!r}). Let "
                "the first one end (an iterator of it that was kept, and not read to its end, needs a close())."
            )
        return self._batches()

    def _batches(self) -> Generator[Any, None, None]:
        run, loops, position = self._run, self._run._loops, self._first
        go_on = leave_body(run.objects)
        source = InsideSource(self._loader, self._key, None, "Run.validate", self._first)
        loops.validation = self._first
        notify("validation_begins", run, position)
        try:
            for number in range(2**62):
                position = replace(self._first, phase_batch=number)
                process.position = None
                run.validating(position)
                run.preemption.wait()
                try:
                    batch, ends = source.next(0, number)
                except (Exception, Interrupted):
                    if run.preemption.requested is None or not run.preemption.alone:
                        raise
                    run.preemption.leave()
                finally:
                    run.preemption.waited()
                accounting.begin(words.fold(self._key, "batch", number, *process.rank_key))
                process.position = position
                yield batch
                if ends:
                    break
        finally:
            if loops.validation is self._first:  # else its step is over long since
                loops.validation = None
                go_on()
