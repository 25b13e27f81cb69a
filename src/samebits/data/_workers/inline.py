"""Reading in this process, one task when it is needed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from samebits.data._calls.process_generators import Draws
from samebits.data._stages.stage import Blocks, Stage, State, Streamed, Task
from samebits.data._workers.serial import Serial
from samebits.data._workers.serial_functions import CaptureWatch, Effects
from samebits.data._workers.tasks import elements, place, read_one


class Inline:
    """Reads a bound pipeline in the process and thread that iterates over it."""

    def __init__(self, draws: Draws, timed: Callable[[Task, Callable[[], Any]], Any] | None = None) -> None:
        """`timed`: runs a task's computation, and measures it."""
        self._draws = draws
        self._timed = timed

    def read(self, stage: Stage, repetition: int, state: State) -> Iterator[tuple[Any, State]]:
        """Yields the elements of a bound stage from `state` on, each with the state after it."""
        if isinstance(stage, Streamed):
            return stage.stream(self, repetition, state)
        assert isinstance(stage, Blocks)
        return self.blocks(stage, repetition, state)

    def read_one(self, stage: Stage, repetition: int, state: State) -> Any:
        """Returns the element after `state`, read again, in this process."""
        return read_one(self, stage, repetition, state)

    def blocks(self, stage: Blocks, repetition: int, state: State) -> Iterator[tuple[Any, State]]:
        """Yields the elements of a bound stage of blocks."""
        watch, effects = CaptureWatch(stage), Effects(stage)
        after, start = state, place(state)
        for task in stage.tasks(repetition, start[0]):
            if effects.affects(stage):
                yield from Serial(stage, effects, self._draws).read(repetition, after)
                return
            work = partial(self._draws.run, partial(call_on_one_thread, stage.compute, repetition, task))
            if not watch.done:
                work = partial(watch.run, work)
            computed = work() if self._timed is None else self._timed(task, work)
            if watch.noticed() is not None:
                effects = Effects(stage)
            coming = elements(stage, task, deque(computed), start)
            del computed, work  # so that the memory of a batch that is over serves the next
            yield from coming
            after = task[1]


def call_on_one_thread(function: Any, *arguments: Any) -> Any:
    """Calls a function with one thread, as in a worker: a large sum has different bits with more threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return function(*arguments)
    finally:
        torch.set_num_threads(threads)
