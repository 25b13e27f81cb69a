"""The readers of a pipeline: inline or parallel, by threads or by processes. The elements are the same.

Workers compute the stages that come in pieces, ahead of the reader; this process does the rest.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from typing_extensions import override

from samebits.data._calls.process_generators import Draws
from samebits.data._options import Options
from samebits.data._stages.stage import Addressed, Blocks, Stage, State, Streamed, Task, place
from samebits.data._workers.launch_workers import may_start
from samebits.data._workers.program_changes import ReachedValues
from samebits.data._workers.serial import (
    CaptureWatch,
    EffectNoticedError,
    Effects,
    Serial,
    warn_about,
    watched,
)
from samebits.data._workers.worker_pool import Threads, Workers
from samebits.data._workers.worker_process import OneThread, StageWork, WorkerJob
from samebits.determinism._warn_once import warn_once
from samebits.errors import ConflictWarning, PipelineError, PipelineMismatchError

TRIED = 6
"""Tasks that "auto" computes here before it chooses; the fastest counts, so that a cold start does not."""
WORTH = 1.5e-3
"""Seconds of a task from which workers are worth it: ten times the cost of passing it on (0.15 ms)."""
RENEWALS = 3
"""Changes of the program's in one iteration after which workers are started anew; then it reads inline."""


def draws_of(stage: Stage) -> Draws:
    """Returns the draws of a pipeline's functions, as found by reading their code."""
    for function in stage.all_functions():
        function.begin_iteration()
    return Draws(may_draw=stage.may_draw() is not None)


def reader(stage: Stage, draws: Draws, options: Options) -> Inline | Parallel | Auto:
    """Returns the reader of a bound pipeline for these options."""
    ordered = options.is_ordered()
    cores = len(os.sched_getaffinity(0))
    count = options.workers(cores)
    if not count or not may_start() or (count == "auto" and cores == 1):
        return Inline(draws)
    depending = [
        function for function in stage.all_functions() if function.noticed and function.stateful is False
    ]
    for function in depending:  # of a loader, whose results depend on the calls before
        warn_about(function)
    if depending:
        return Inline(draws)
    if count == "auto":
        return Auto(draws, lambda: Parallel(stage, draws, options, cores, ordered=ordered))
    return Parallel(stage, draws, options, count, ordered=ordered)


class _BlockReader(ABC):
    """A reader of bound stages: streamed ones read their inputs by it, blocks are its own."""

    def read(self, stage: Stage, repetition: int, state: State) -> Iterator[tuple[Any, State]]:
        if isinstance(stage, Streamed):
            return stage.stream(self, repetition, state)
        assert isinstance(stage, Blocks)
        return self.blocks(stage, repetition, state)

    def read_one(self, stage: Stage, repetition: int, state: State) -> Any:
        """Returns the element after `state`, read again here; of blocks, only its group is computed."""
        if not isinstance(stage, Blocks):
            return next(iter(self.read(stage, repetition, state)))[0]
        start = place(state)
        for number in range(start[0], stage.groups):
            task = (number, number + 1)
            for element, _ in _elements(stage, task, deque(stage.compute(repetition, task)), start):
                return element
        raise PipelineMismatchError(
            f"Pipeline: {stage.describe()} has no element after {state}; has its source changed?"
        )

    @abstractmethod
    def blocks(self, stage: Blocks, repetition: int, state: State) -> Iterator[tuple[Any, State]]:
        """Yields the elements of a bound stage of blocks."""


def _elements(
    stage: Blocks, task: Task, computed: deque[Any], start: tuple[int, int]
) -> Iterator[tuple[Any, State]]:
    """Yields the elements of a computed task from the place `start` on, each with the state after it.

    It keeps none that it has given.
    """
    first, done = start
    if isinstance(stage, Addressed):
        for ordinal in range(task[0], task[0] + len(computed)):
            if ordinal >= first:
                yield computed.popleft(), ordinal + 1
            else:
                computed.popleft()
        return
    for ordinal in range(task[0], task[0] + len(computed)):
        group = deque(computed.popleft())
        for number in range(len(group)):
            if (ordinal, number) >= (first, done):
                yield group.popleft(), [ordinal, number + 1] if group else ordinal + 1
            else:
                group.popleft()


class Inline(_BlockReader):
    """Reads a bound pipeline in the process and thread that iterates over it."""

    def __init__(self, draws: Draws, timed: Callable[[Task, Callable[[], Any]], Any] | None = None) -> None:
        """`timed`: runs a task's computation, and measures it."""
        self._draws = draws
        self._timed = timed

    @override
    def blocks(self, stage: Blocks, repetition: int, state: State) -> Iterator[tuple[Any, State]]:
        watch, effects = CaptureWatch(stage), Effects(stage)
        after, start = state, place(state)
        for task in stage.tasks(repetition, start[0]):
            if effects.affects(stage):
                yield from Serial(stage, effects, self._draws).read(repetition, after)
                return
            work = partial(self._draws.run, partial(_compute, stage, repetition, task))
            if not watch.done:
                work = partial(watch.run, work)
            computed = work() if self._timed is None else self._timed(task, work)
            if watch.noticed() is not None:
                effects = Effects(stage)
            coming = _elements(stage, task, deque(computed), start)
            del computed, work  # so that the memory of a batch that is over serves the next
            yield from coming
            after = task[1]


def _compute(stage: Blocks, repetition: int, task: Task) -> list[Any]:
    with OneThread():
        return stage.compute(repetition, task)


class Parallel(_BlockReader):
    """Reads a bound pipeline with workers, which compute tasks ahead of the reader."""

    def __init__(
        self, stage: Stage, draws: Draws, options: Options, count: int, *, ordered: bool = True
    ) -> None:
        """`count`: workers; `ordered`: elements come in their order, not in order of completion."""
        ahead = options.prefetch
        self._ahead, self._ordered = 2 * count if not ahead or ahead == "auto" else ahead, ordered
        self._stage, self._options, self._count = stage, options, count
        self._watch = CaptureWatch(stage)
        self._workers: Workers | Threads | None = None
        self._renewals = 0
        self._begin(draws)

    def _begin(self, draws: Draws) -> None:
        self._inline = Inline(draws)
        self._serial: dict[int, Serial] = {}
        self._known = list(self._worker_stages(self._stage, draws))
        if self._known and _takes_threads(self._stage, self._options):
            self._workers = Threads(self._known, count=self._count, timeout=self._options.timeout)
        elif self._known:
            self._workers = self._processes(draws)
            self._workers.readers += 1

    def _processes(self, draws: Draws) -> Workers:
        """Returns workers that have what the functions reach as it is now; kept ones if these do."""
        kept, options = self._options.kept_workers, self._options
        functions = [function.call for function in self._stage.all_functions()]
        if kept and not kept[0].copied.may_differ(functions):
            return kept[0]
        workers = Workers(
            StageWork(self._known, watched(draws, self._stage)), count=self._count,
            ahead=self._ahead, timeout=options.timeout, start_method=options.start_method or "auto",
            copied=ReachedValues(functions, whole=kept is not None), kept=kept is not None
        )  # fmt: skip
        if kept is not None:
            for old in kept:
                old.end_keeping()
            kept[:] = [workers]
        return workers

    def _worker_stages(self, stage: Stage, draws: Draws) -> Iterator[Blocks]:
        """Yields the stages that workers compute: all blocks, or the parts of one without side effects."""
        effects = Effects(stage)
        effects.warn()
        for top in _block_roots(stage):
            if effects.affects(top):
                self._serial[id(top)] = Serial(top, effects, draws)
                yield from (free.stage for free in self._serial[id(top)].free)
            else:
                yield top

    @override
    def blocks(self, stage: Blocks, repetition: int, state: State) -> Iterator[tuple[Any, State]]:
        if id(stage) in self._serial:
            return self._serial[id(stage)].read(repetition, state, self._fetch, self._ahead)
        if self._workers is None or stage not in self._known:  # made while reading, by `interleave`
            return self._inline.blocks(stage, repetition, state)
        return self._read_ahead(stage, repetition, state)

    def close(self) -> None:
        """Ends the workers, unless they are kept."""
        workers, self._workers = self._workers, None
        if workers is not None:
            workers.release()

    def _renew(self, changed: str) -> None:
        """Starts workers that have what the program has changed; none where it does so again and again."""
        self.close()
        for function in self._stage.all_functions():
            function.forget_findings()
        self._renewals += 1
        if self._renewals <= RENEWALS:
            self._begin(draws_of(self._stage))
            return
        warn_once(
            f"renewals {changed}",
            f"{self._stage.kind}: the program changes `{changed}` between batches, again and again, and "
            "workers would have it as it was when they computed a batch ahead. So the batches of this epoch "
            "are computed in this process. Change it between two epochs, or compute it from the index; "
            "num_workers=0 gives the same batches without this warning.",
            ConflictWarning,
        )

    def _read_ahead(self, stage: Blocks, repetition: int, state: State) -> Iterator[tuple[Any, State]]:
        workers = self._workers
        assert workers is not None
        under_way: deque[tuple[Task, int]] = deque()
        after = state
        start = place(state)
        left = stage.tasks(repetition, start[0])
        try:
            while self._watch.noticed() is None:  # threads change captured values in this process
                if (changed := self._ordered and workers.changed()) or self._workers is not workers:
                    workers.discard([number for _, number in under_way])
                    if changed and self._workers is workers:
                        self._renew(changed)
                    yield from self.blocks(stage, repetition, after)
                    return
                done = self._watch.run(lambda: self._run_step(stage, repetition, left, under_way))
                if done is None:
                    return
                coming, after = _elements(stage, done[0], deque(done[1]), start), done[0][1]
                del done
                yield from coming
        except EffectNoticedError as found:  # by processes
            self._watch.note(*found.args)
            if after != state and self._stage.all_functions()[found.args[0]].stateful is False:
                raise PipelineError(
                    f"{self._stage.kind}: its elements depend on `{found.args[1]}`, which each call changes, "
                    "and workers have made some already. Compute it from the index, or read it with "
                    "num_workers=0"
                ) from None
        finally:
            workers.discard([number for _, number in under_way])
        yield from self._read_inline(stage, repetition, after)

    def _run_step(
        self, stage: Blocks, repetition: int, coming: Iterator[Task], under_way: deque[tuple[Task, int]]
    ) -> tuple[Task, Any] | None:
        """Submits the tasks that fit, and waits for one; returns None if none is left."""
        for task in coming:
            under_way.append((task, self._submit(stage, repetition, task)))
            if len(under_way) >= self._ahead:
                break
        return self._next(under_way) if under_way else None

    def _next(self, under_way: deque[tuple[Task, int]]) -> tuple[Task, Any]:
        assert self._workers is not None
        if not self._ordered:
            done = self._workers.first([number for _, number in under_way])
            under_way.rotate(-next(at for at, (_, number) in enumerate(under_way) if number == done))
        task, number = under_way[0]
        computed = self._workers.result(number)
        under_way.popleft()  # not before: after a timeout it is discarded
        return task, computed

    def _read_inline(self, stage: Blocks, repetition: int, state: State) -> Iterator[tuple[Any, State]]:
        """Reads in this process: running a task showed a side effect that reading the code had missed."""
        for function in stage.all_functions():
            if function.noticed:
                warn_about(function)
        self.close()
        self._workers = None
        return self._inline.blocks(stage, repetition, state)

    def _submit(self, stage: Blocks, repetition: int, task: Task) -> int:
        assert self._workers is not None
        return self._workers.submit(WorkerJob(self._known.index(stage), repetition, task))

    def _fetch(self, stage: Blocks, first: int, last: int) -> Any:
        pool, number = self._workers, self._submit(stage, 0, (first, last))
        assert pool is not None
        return lambda: pool.result(number)


def _takes_threads(stage: Stage, options: Options) -> bool:
    if options.executor != "thread":
        return False
    drawing = stage.may_draw() or stage.own_generators()
    if drawing is not None:
        warn_once(
            f"threads {drawing}",
            f'Pipeline: executor="thread", but {drawing} may draw from generators that all threads share: '
            "worker processes compute it instead. Let the function take a parameter `rng` or `key`.",
            ConflictWarning,
        )
    return drawing is None


def _block_roots(stage: Stage) -> Iterator[Blocks]:
    """Yields the stages that are read as blocks: each is the top of a part without streams."""
    if isinstance(stage, Blocks):
        yield stage
        return
    for below in stage.inputs:
        yield from _block_roots(below)


class Auto(_BlockReader):
    """Reads in this process, measures the time of a task, and continues with workers where that is faster."""

    def __init__(self, draws: Draws, parallel: Callable[[], Parallel]) -> None:
        self._start = parallel
        self._inline = Inline(draws, self._measure)
        self._times: list[float] = []
        self.parallel: Parallel | None = None

    def close(self) -> None:
        """Ends the workers, if there are any."""
        if self.parallel is not None:
            self.parallel.close()

    @override
    def blocks(self, stage: Blocks, repetition: int, state: State) -> Iterator[tuple[Any, State]]:
        if self.parallel is None:
            for element, after in self._inline.blocks(stage, repetition, state):
                yield element, after
                state = after
                if len(self._times) == TRIED and min(self._times) > WORTH:
                    self.parallel = self._start()
                    break
            else:
                return
        yield from self.parallel.blocks(stage, repetition, state)

    def _measure(self, task: Task, work: Callable[[], Any]) -> Any:
        if len(self._times) >= TRIED:
            return work()
        start = time.perf_counter()
        result = work()
        self._times.append(time.perf_counter() - start)
        return result
