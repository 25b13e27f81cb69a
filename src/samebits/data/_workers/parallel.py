"""Reading by workers: the stages that can be computed in pieces, ahead of the reader; the rest in this process."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from samebits.data._calls.draw_scope import Draws
from samebits.data._stages.stage import Blocks, Stage, State, Streamed
from samebits.data._workers.inline import Inline
from samebits.data._workers.serial import Serial
from samebits.data._workers.side_effects import CaptureWatch, EffectNoticedError, Effects, WatchedDraws
from samebits.data._workers.tasks import Task, elements, one, tasks
from samebits.data._workers.thread_pool import Threads
from samebits.data._workers.worker_pool import Workers
from samebits.data._workers.worker_process import StageWork, WorkerJob


class Pool(Protocol):
    """What computes jobs, in processes or threads."""

    def submit(self, job: WorkerJob) -> int:
        """Hands in a job; its number."""
        ...

    def result(self, number: int) -> Any:
        """What job `number` gave."""
        ...

    def first(self, numbers: Sequence[int]) -> int:
        """The job of these that is done first."""
        ...

    def close(self) -> None:
        """Ends it."""
        ...


class Parallel:
    """Reads a bound pipeline with workers, which compute tasks ahead of where the reader is."""

    def __init__(
        self, stage: Stage, draws: Draws, *, num_workers: int, ahead: int, threads: bool = False,
        ordered: bool = True, timeout: float | None = None, start_method: str = "auto",
    ) -> None:  # fmt: skip
        """`ordered`: elements come in their order, not in that in which they are done."""
        self._ahead, self._ordered = ahead, ordered
        self._inline = Inline(draws)
        self._watch = CaptureWatch(stage)
        self._serial: dict[int, Serial] = {}
        self._known = list(self._for_workers(stage, draws))
        self._workers: Pool | None = None
        if self._known and threads:
            self._workers = Threads(self._known, count=num_workers, timeout=timeout)
        elif self._known:
            work = StageWork(self._known, WatchedDraws(draws, stage))
            self._workers = Workers(
                work, count=num_workers, ahead=ahead, timeout=timeout, start_method=start_method
            )

    def _for_workers(self, stage: Stage, draws: Draws) -> Iterator[Blocks]:
        """The stages that workers compute: all blocks, or of one with side effects what is free of them."""
        effects = Effects(stage)
        effects.warn()
        for top in _tops(stage):
            if effects.inside(top):
                self._serial[id(top)] = Serial(top, effects, draws)
                yield from (free.stage for free in self._serial[id(top)].free)
            else:
                yield top

    def read(self, stage: Stage, repetition: int, state: State) -> Iterator[tuple[Any, State]]:
        """The elements of a bound stage from `state` on, each with the state behind it."""
        if isinstance(stage, Streamed):
            return stage.stream(self, repetition, state)
        assert isinstance(stage, Blocks)
        if id(stage) in self._serial:
            return self._serial[id(stage)].read(repetition, state, self._fetch, self._ahead)
        if self._workers is None or stage not in self._known:  # made while reading, by `interleave`
            return self._inline.read(stage, repetition, state)
        return self._blocks(stage, repetition, state)

    def close(self) -> None:
        """Ends the workers."""
        if self._workers is not None:
            self._workers.close()

    def one(self, stage: Stage, repetition: int, state: State) -> Any:
        """The element that lies behind `state`, read again, in this process."""
        return one(self, stage, repetition, state)

    def _blocks(self, stage: Blocks, repetition: int, state: State) -> Iterator[tuple[Any, State]]:
        under_way: deque[tuple[Task, int]] = deque()
        behind = state
        coming = tasks(stage, state)
        try:
            while self._watch.noticed() is None:  # by threads, which change what they have captured here
                done = self._watch.run(lambda: self._step(stage, repetition, coming, under_way))
                if done is None:
                    return
                yield from elements(stage, *done, state)
                behind = done[0][1]
        except EffectNoticedError as found:  # by processes
            self._watch.note(*found.args)
        yield from self._without_workers(stage, repetition, behind)

    def _step(
        self, stage: Blocks, repetition: int, coming: Iterator[Task], under_way: deque[tuple[Task, int]]
    ) -> tuple[Task, Any] | None:
        """Hands in what fits, and waits for one task; None: there is none left."""
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
        task, number = under_way.popleft()
        return task, self._workers.result(number)

    def _without_workers(self, stage: Blocks, repetition: int, state: State) -> Iterator[tuple[Any, State]]:
        """Running it showed a side effect that reading the code had missed: it goes on in this process."""
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


def _tops(stage: Stage) -> Iterator[Blocks]:
    """The stages below a pipeline that are read as blocks: each on top of a part without streams."""
    if isinstance(stage, Blocks):
        yield stage
        return
    for below in stage.inputs:
        yield from _tops(below)
