"""The choice between reading in this process, by threads or by worker processes. The elements are the same."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from samebits.data._calls.process_generators import Draws
from samebits.data._options import Options
from samebits.data._stages.stage import Blocks, Stage, State, Streamed, Task
from samebits.data._workers.inline import Inline
from samebits.data._workers.launch_workers import may_start
from samebits.data._workers.parallel import Parallel
from samebits.data._workers.serial_functions import functions, may_draw, own_generators
from samebits.data._workers.tasks import read_one
from samebits.determinism._warn_once import warn_once
from samebits.errors import ConflictWarning

TRIED = 6
"""Tasks that "auto" computes in this process before it chooses; the fastest counts, so that a cold start does not."""
WORTH = 1.5e-3
"""Seconds of a task from which workers are worth it: ten times the cost of passing one to a worker (0.15 ms)."""


def draws_of(stage: Stage) -> Draws:
    """Returns the draws of a pipeline's functions, as found by reading their code."""
    for function in functions(stage):
        function.begin_iteration()
    return Draws(may_draw=may_draw(stage) is not None)


def reader(stage: Stage, draws: Draws, options: Options) -> Inline | Parallel | Auto:
    """Returns the reader of a bound pipeline for these options."""
    ordered = options.is_ordered()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = options.workers(cores)
    if not count or not may_start() or (count == "auto" and cores == 1):
        return Inline(draws)
    if count == "auto":
        return Auto(draws, lambda: _parallel(stage, draws, options, cores, ordered=ordered))
    return _parallel(stage, draws, options, count, ordered=ordered)


def _parallel(stage: Stage, draws: Draws, options: Options, count: int, *, ordered: bool) -> Parallel:
    threads = options.executor == "thread"
    if threads and (drawing := may_draw(stage) or own_generators(stage)) is not None:
        threads = False
        warn_once(
            f"threads {drawing}",
            f'Pipeline: executor="thread", but {drawing} may draw from generators that all threads share: worker processes '
            "compute it instead. Let the function take a parameter `rng` or `key`.",
            ConflictWarning,
        )
    return Parallel(
        stage, draws, num_workers=count, ahead=options.prefetch or 2 * count, threads=threads, ordered=ordered,
        timeout=options.timeout, start_method=options.start_method or "auto", kept=options.kept_workers,
    )  # fmt: skip


class Auto:
    """Reads in this process, measures the time of a task, and continues with workers where that is faster."""

    def __init__(self, draws: Draws, parallel: Callable[[], Parallel]) -> None:
        self._start = parallel
        self._inline = Inline(draws, self._measure)
        self._times: list[float] = []
        self.parallel: Parallel | None = None

    def read(self, stage: Stage, repetition: int, state: State) -> Iterator[tuple[Any, State]]:
        """Yields the elements of a bound stage from `state` on, each with the state after it."""
        if isinstance(stage, Streamed):
            return stage.stream(self, repetition, state)
        assert isinstance(stage, Blocks)
        return self._blocks(stage, repetition, state)

    def read_one(self, stage: Stage, repetition: int, state: State) -> Any:
        """Returns the element after `state`, read again, in this process."""
        return read_one(self, stage, repetition, state)

    def close(self) -> None:
        """Ends the workers, if there are any."""
        if self.parallel is not None:
            self.parallel.close()

    def _blocks(self, stage: Blocks, repetition: int, state: State) -> Iterator[tuple[Any, State]]:
        if self.parallel is None:
            for element, after in self._inline.read(stage, repetition, state):
                yield element, after
                state = after
                if len(self._times) == TRIED and min(self._times) > WORTH:
                    self.parallel = self._start()
                    break
            else:
                return
        yield from self.parallel.read(stage, repetition, state)

    def _measure(self, task: Task, work: Callable[[], Any]) -> Any:
        if len(self._times) >= TRIED:
            return work()
        start = time.perf_counter()
        result = work()
        self._times.append(time.perf_counter() - start)
        return result
