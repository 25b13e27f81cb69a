"""`Run.validate`: the batches of a validation inside the body of a step."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable
from functools import partial
from types import FrameType
from typing import Any

from samebits._context import notify, process
from samebits._inspect._program.bytecode import begins_for
from samebits.errors import InvalidArgumentError
from samebits.random import _int_keys as int_keys
from samebits.random._process import draw_counts
from samebits.train._loop.batch_source import BatchSource
from samebits.train._loop.steps import RunView, save_body
from samebits.train._resume import CarriedValues


class Validation(Iterable[Any]):
    """The batches of a validation; the draws of the step's body before and after it do not depend on it."""

    def __init__(self, run: RunView, loader: Iterable[Any], name: str) -> None:
        self._run = run
        self._loader = loader
        at = process.position or run._loops.position()
        self._first = at._replace(phase="validate", name=name, phase_batch=0)
        self._key = int_keys.fold(run.key, at.loop, "validate", name, at.step)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Generator[Any, None, None]:
        under_way = self._run._loops.validation
        if under_way is not None:
            raise InvalidArgumentError(
                f"run.validate(name={self._first.name!r}) inside the body of "
                f"run.validate(name={under_way.name!r}). Let the first one end (an iterator of it that was "
                "kept, and not read to its end, needs a close())."
            )
        return self._batches(direct=begins_for(sys._getframe(1)))

    def _batches(self, *, direct: bool) -> Generator[Any, None, None]:
        run, loops = self._run, self._run._loops
        restore_body = save_body(run.objects)
        source = BatchSource(self._loader, self._key, None, "Run.validate", self._first)
        loops.validation = self._first
        notify("validation_begins", run, self._first)
        try:
            process.position = None
            start, ends = run._resuming.enter_validation(self._first), False
            begun = CarriedValues.of_frame(
                sys._getframe(1), run.objects, direct=direct and run.preemption.installed
            )
            for number in range(start, 2**62):
                position = self._first._replace(phase_batch=number)
                process.position = None
                find_unsaved = (
                    partial(_unsaved_changes, begun, sys._getframe(1), run) if number > start else None
                )
                run._saving.on_validation_batch(position, find_unsaved)
                batch, ends = run.preemption.fetch(
                    partial(source.next, 0, number),
                    partial(run._saving.on_validation_batch, position, find_unsaved),  # which leaves
                )
                find_unsaved = None  # it holds the frame that holds this generator
                draw_counts.begin(int_keys.fold(self._key, "batch", number, *process.rank_key))
                process.position = position
                yield batch
                if ends:
                    break
        finally:
            source.end_body()
            if loops.validation is self._first:  # otherwise its step ended long ago
                loops.validation = None
                restore_body()


def _unsaved_changes(begun: CarriedValues, frame: FrameType, run: RunView) -> list[str]:
    """Returns the names of the values that the loop carries besides those that the run saves."""
    return begun.changes(CarriedValues.of_frame(frame, run.objects, direct=True))
