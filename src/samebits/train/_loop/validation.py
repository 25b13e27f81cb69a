"""`Run.validate`: the batches of a validation inside the body of a step, a phase of its own."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any

from samebits._context import Position, notify, process
from samebits._inspect._program.bytecode import begins_for
from samebits.errors import InvalidArgumentError
from samebits.random import _int_keys as int_keys
from samebits.random._process import draw_counts
from samebits.train._loop.batch_source import InsideSource
from samebits.train._loop.nesting import leave_body
from samebits.train._loop.preemption import Interrupted
from samebits.train._loop.protocols import Owner
from samebits.train._state.validation_state import Carried, Look


class Validation(Iterable[Any]):
    """Yields the batches; what the body of the step draws before and behind it does not depend on it."""

    def __init__(self, run: Owner, loader: Iterable[Any], name: str) -> None:
        self._run = run
        self._loader = loader
        at = process.position or run._loops.position()
        self._first = replace(at, phase="validate", name=name, phase_batch=0)
        self._key = int_keys.fold(run.key, at.loop, "validate", name, at.step)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Generator[Any, None, None]:
        under_way = self._run._loops.validation
        if under_way is not None:
            raise InvalidArgumentError(
                f"run.validate(name={self._first.name!r}) inside the body of run.validate(name={under_way.name!r}). Let "
                "the first one end (an iterator of it that was kept, and not read to its end, needs a close())."
            )
        return self._batches(direct=begins_for(sys._getframe(1)))

    def _batches(self, *, direct: bool) -> Generator[Any, None, None]:
        run, loops = self._run, self._run._loops
        go_on = leave_body(run.objects)
        source = InsideSource(self._loader, self._key, None, "Run.validate", self._first)
        loops.validation = self._first
        notify("validation_begins", run, self._first)
        try:
            process.position = None
            start, ends = run._resuming.enter_validation(self._first), False
            begun = Carried.by(sys._getframe(1), run.objects, direct=direct and run.preemption.installed)
            for number in range(start, 2**62):
                position = replace(self._first, phase_batch=number)
                process.position = None
                look = partial(_changed, begun, sys._getframe(1), run) if number > start else None
                run._saving.validating(position, look)
                batch, ends = self._await(source, position, look)
                look = None  # it holds the frame that holds this generator
                draw_counts.begin(int_keys.fold(self._key, "batch", number, *process.rank_key))
                process.position = position
                yield batch
                if ends:
                    break
        finally:
            if loops.validation is self._first:  # else its step is over long since
                loops.validation = None
                go_on()

    def _await(self, source: InsideSource, position: Position, look: Look | None) -> tuple[Any, bool]:
        preemption = self._run.preemption
        try:
            try:
                preemption.wait()
                return source.next(0, position.phase_batch)
            finally:
                preemption.waited()  # where a signal may still interrupt
        except (Exception, Interrupted):
            if preemption.requested is None or not preemption.alone:
                raise
            self._run._saving.validating(position, look)  # which leaves
            raise


def _changed(begun: Carried, frame: FrameType, run: Owner) -> list[str]:
    """What the loop carries besides what the run saves."""
    return begun.changed(Carried.by(frame, run.objects, direct=True))
