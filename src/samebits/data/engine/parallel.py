"""Reading by worker processes: the stages that can be computed in pieces, ahead of the reader; the rest inline."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from samebits.data.engine.blocks import Task, elements, one, tasks
from samebits.data.engine.inline import Inline
from samebits.data.engine.worker import Job, StageWork
from samebits.data.engine.workers import Workers
from samebits.data.scope import Draws
from samebits.data.stage import Blocks, Stage, State, Streamed


class Parallel:
    """Reads a bound pipeline with workers, which compute tasks ahead of where the reader is."""

    def __init__(
        self,
        stage: Stage,
        draws: Draws,
        *,
        num_workers: int,
        ahead: int,
        timeout: float | None,
        start_method: str,
    ) -> None:
        self._known = list(_tops(stage))
        self._ahead = ahead
        self._inline = Inline(draws)
        self._workers = Workers(
            StageWork(self._known, draws),
            count=num_workers,
            ahead=ahead,
            timeout=timeout,
            start_method=start_method,
        )

    def read(self, stage: Stage, repetition: int, state: State) -> Iterator[tuple[Any, State]]:
        """The elements of a bound stage from `state` on, each with the state behind it."""
        if isinstance(stage, Streamed):
            return stage.stream(self, repetition, state)
        assert isinstance(stage, Blocks)
        if stage not in self._known:  # made while reading, by `interleave`
            return self._inline.read(stage, repetition, state)
        return self._blocks(stage, repetition, state)

    def close(self) -> None:
        """Ends the workers."""
        self._workers.close()

    def one(self, stage: Stage, repetition: int, state: State) -> Any:
        """The element that lies behind `state`, read again, in this process."""
        return one(self, stage, repetition, state)

    def _blocks(self, stage: Blocks, repetition: int, state: State) -> Iterator[tuple[Any, State]]:
        number = self._known.index(stage)
        under_way: deque[tuple[Task, int]] = deque()
        for task in tasks(stage, state):
            under_way.append((task, self._workers.submit(Job(number, repetition, task))))
            if len(under_way) < self._ahead:
                continue
            yield from elements(stage, *self._next(under_way), state)
        while under_way:
            yield from elements(stage, *self._next(under_way), state)

    def _next(self, under_way: deque[tuple[Task, int]]) -> tuple[Task, Any]:
        task, number = under_way.popleft()
        return task, self._workers.result(number)


def _tops(stage: Stage) -> Iterator[Blocks]:
    """The stages below a pipeline that are read as blocks: each on top of a part without streams."""
    if isinstance(stage, Blocks):
        yield stage
        return
    for below in stage.inputs:
        yield from _tops(below)
