"""Reading in this process, one task when it is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from samebits.data._calls.process_generators import Draws
from samebits.data._stages.stage import Blocks, Stage, State, Streamed
from samebits.data._workers.serial import Serial
from samebits.data._workers.side_effects import CaptureWatch, Effects
from samebits.data._workers.tasks import Task, compute, elements, read_one, tasks


class Inline:
    """Reads a bound pipeline in the process and thread that iterates over it."""

    def __init__(self, draws: Draws, timed: Callable[[Task, Callable[[], Any]], Any] | None = None) -> None:
        """`timed`: runs a task's computation, and measures it."""
        self._draws = draws
        self._timed = timed or _call

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
        after = state
        for task in tasks(stage, state):
            if effects.affects(stage):
                yield from Serial(stage, effects, self._draws).read(repetition, after)
                return
            computed = self._timed(task, lambda task=task: self.compute_task(stage, repetition, task, watch))
            if watch.noticed() is not None:
                effects = Effects(stage)
            yield from elements(stage, task, computed, state)
            after = task[1]

    def compute_task(self, stage: Blocks, repetition: int, task: Task, watch: CaptureWatch) -> list[Any]:
        """Returns the results of a task."""
        return watch.run(
            lambda: self._draws.run(lambda: call_on_one_thread(compute, stage, repetition, task))
        )


def _call(task: Task, work: Callable[[], Any]) -> Any:
    return work()


def call_on_one_thread(function: Any, *arguments: Any) -> Any:
    """Calls a function with one thread, as in a worker: a large sum has different bits with more threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return function(*arguments)
    finally:
        torch.set_num_threads(threads)
