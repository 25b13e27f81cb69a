"""Reading by workers: they compute the stages that come in pieces, ahead of the reader; this process does the rest."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from samebits.data._calls.process_generators import Draws
from samebits.data._stages.stage import Blocks, Stage, State, Streamed, Task
from samebits.data._workers.inline import Inline
from samebits.data._workers.serial import Serial
from samebits.data._workers.serial_functions import CaptureWatch, EffectNoticedError, Effects, WatchedDraws
from samebits.data._workers.tasks import elements, place, read_one
from samebits.data._workers.thread_pool import Threads
from samebits.data._workers.worker_pool import Workers
from samebits.data._workers.worker_process import StageWork, WorkerJob


class Pool(Protocol):
    """Computes jobs, in processes or threads."""

    def submit(self, job: WorkerJob) -> int:
        """Submits a job and returns its number."""
        ...

    def result(self, number: int) -> Any:
        """Returns the result of job `number`."""
        ...

    def first(self, numbers: Sequence[int]) -> int:
        """Returns the number of the first of these jobs that is done."""
        ...

    def close(self) -> None:
        """Ends it."""
        ...


class Parallel:
    """Reads a bound pipeline with workers, which compute tasks ahead of the reader."""

    def __init__(
        self, stage: Stage, draws: Draws, *, num_workers: int, ahead: int, threads: bool = False,
        ordered: bool = True, timeout: float | None = None, start_method: str = "auto",
        kept: list[Any] | None = None,
    ) -> None:  # fmt: skip
        """`ordered`: elements come in their order, not in order of completion; `kept`: the workers of all iterations."""
        self._ahead, self._ordered = ahead, ordered
        self._inline = Inline(draws)
        self._watch = CaptureWatch(stage)
        self._serial: dict[int, Serial] = {}
        self._known = list(self._worker_stages(stage, draws))
        self._workers: Pool | None = None
        self._kept: Workers | None = None
        if self._known and threads:
            self._workers = Threads(self._known, count=num_workers, timeout=timeout)
        elif kept:
            self._workers = self._kept = kept[0]
        elif self._known:
            work = StageWork(self._known, WatchedDraws(draws, stage))
            self._workers = Workers(
                work, count=num_workers, ahead=ahead, timeout=timeout, start_method=start_method
            )
            if kept is not None:
                self._kept = self._workers
                kept.append(self._kept)

    def _worker_stages(self, stage: Stage, draws: Draws) -> Iterator[Blocks]:
        """Yields the stages that workers compute: all blocks, or the parts of one with side effects that are free of them."""
        effects = Effects(stage)
        effects.warn()
        for top in _block_roots(stage):
            if effects.affects(top):
                self._serial[id(top)] = Serial(top, effects, draws)
                yield from (free.stage for free in self._serial[id(top)].free)
            else:
                yield top

    def read(self, stage: Stage, repetition: int, state: State) -> Iterator[tuple[Any, State]]:
        """Yields the elements of a bound stage from `state` on, each with the state after it."""
        if isinstance(stage, Streamed):
            return stage.stream(self, repetition, state)
        assert isinstance(stage, Blocks)
        if id(stage) in self._serial:
            return self._serial[id(stage)].read(repetition, state, self._fetch, self._ahead)
        if self._workers is None or stage not in self._known:  # made while reading, by `interleave`
            return self._inline.read(stage, repetition, state)
        return self._blocks(stage, repetition, state)

    def close(self) -> None:
        """Ends the workers, unless they are kept."""
        if self._workers is not None and self._kept is None:
            self._workers.close()

    def read_one(self, stage: Stage, repetition: int, state: State) -> Any:
        """Returns the element after `state`, read again, in this process."""
        return read_one(self, stage, repetition, state)

    def _blocks(self, stage: Blocks, repetition: int, state: State) -> Iterator[tuple[Any, State]]:
        under_way: deque[tuple[Task, int]] = deque()
        after = state
        start = place(state)
        left = stage.tasks(repetition, start[0])
        try:
            while self._watch.noticed() is None:  # threads change captured values in this process
                done = self._watch.run(lambda: self._run_step(stage, repetition, left, under_way))
                if done is None:
                    return
                coming, after = elements(stage, done[0], deque(done[1]), start), done[0][1]
                del done
                yield from coming
        except EffectNoticedError as found:  # by processes
            self._watch.note(*found.args)
        finally:
            if self._kept is not None:
                self._kept.discard([number for _, number in under_way])
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
        Effects(stage).warn()
        self.close()
        self._workers = None
        return self._inline.read(stage, repetition, state)

    def _submit(self, stage: Blocks, repetition: int, task: Task) -> int:
        assert self._workers is not None
        return self._workers.submit(WorkerJob(self._known.index(stage), repetition, task))

    def _fetch(self, stage: Blocks, first: int, last: int) -> Any:
        pool, number = self._workers, self._submit(stage, 0, (first, last))
        assert pool is not None
        return lambda: pool.result(number)


def _block_roots(stage: Stage) -> Iterator[Blocks]:
    """Yields the stages below a pipeline that are read as blocks: each is the top of a part without streams."""
    if isinstance(stage, Blocks):
        yield stage
        return
    for below in stage.inputs:
        yield from _block_roots(below)
