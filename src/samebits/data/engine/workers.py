"""The parent's side: worker processes, the jobs that they have, and the slots that hold their results."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np

from samebits.data.engine.codec import decode
from samebits.data.engine.lifetime import sigterm_blocked
from samebits.data.engine.slots import Slot
from samebits.data.engine.worker import Answer, Job, serve
from samebits.data.scope import Draws
from samebits.data.stage import Blocks
from samebits.errors import PipelineError

LEASED = 2
"""Results that the user may hold without a copy. The memory of a third is copied, so that workers never wait for it."""
AT_ONCE = 2
"""Jobs that a worker has: one under way, and the next, so that it never waits for this process."""
RESTARTS = 3
"""Deaths of workers without any result in between, after which it is an error."""

_ends: weakref.WeakSet[Connection] = weakref.WeakSet()
"""The parent's ends of all workers' connections: a forked worker closes them, or it would keep its siblings waiting."""


@dataclass
class _Worker:
    process: Any
    connection: Connection
    jobs: dict[int, int] = field(default_factory=dict)
    """Slot of every job that it has, by number."""


class Workers:
    """Processes that compute jobs; results are asked for by the job's number, in any order."""

    def __init__(self, stages: Sequence[Blocks], draws: Draws, *, count: int, ahead: int) -> None:
        """`stages`: bound; `count`: processes; `ahead`: results that may be waiting to be asked for."""
        self._stages, self._draws, self._count = list(stages), draws, count
        self._slots = [Slot() for _ in range(ahead + LEASED)]
        self._free = list(range(len(self._slots)))
        self._leased = 0
        self._jobs: dict[int, Job] = {}
        self._queue: deque[int] = deque()
        self._arrived: dict[int, tuple[Answer, int | np.ndarray]] = {}
        self._numbers = 0
        self._deaths = 0
        self._workers: list[_Worker] = []
        self._open = True
        for _ in range(count):
            self._start()

    def submit(self, job: Job) -> int:
        """Hands in a job; its number."""
        number, self._numbers = self._numbers, self._numbers + 1
        self._jobs[number] = job
        self._queue.append(number)
        self._dispatch()
        return number

    def result(self, number: int, timeout: float | None = None) -> Any:
        """What job `number` gave.

        Raises:
            PipelineError: its stage failed, or workers keep being killed over it.
            TimeoutError: nothing came for `timeout` seconds.
        """
        while number not in self._arrived:
            self._make_room(number)
            self._receive(timeout)
        answer, place = self._arrived.pop(number)
        del self._jobs[number]
        if answer.error is not None:
            self._release(place)
            raise _raised(*answer.error)
        assert answer.result is not None
        return decode(answer.result, self._memory(answer, place))

    def close(self) -> None:
        """Ends the workers; what was handed out stays readable."""
        if not self._open:
            return
        self._open = False
        for worker in self._workers:
            worker.connection.close()
        for worker in self._workers:
            worker.process.join(1)
            if worker.process.is_alive():  # in the middle of a long call of a user's function
                worker.process.kill()
                worker.process.join()
        for slot in self._slots:
            slot.close()

    def _start(self) -> None:
        ours, theirs = multiprocessing.Pipe()
        _ends.add(ours)
        by_thread = threading.current_thread() is not threading.main_thread()
        with sigterm_blocked(), warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", DeprecationWarning
            )  # Python 3.12 warns of any fork beside threads
            process = multiprocessing.get_context("fork").Process(
                target=_forked,
                args=(theirs, os.getpid(), self._stages, self._slots, self._draws, by_thread),
                daemon=True,
            )
            process.start()
        theirs.close()
        self._workers.append(_Worker(process, ours))

    def _dispatch(self) -> None:
        while self._queue and self._free:
            worker = min(self._workers, key=lambda one: len(one.jobs))
            if len(worker.jobs) >= AT_ONCE:
                return
            number, slot = self._queue.popleft(), self._free.pop()
            worker.jobs[number] = slot
            try:
                worker.connection.send_bytes(pickle.dumps((number, self._jobs[number], slot)))
            except (BrokenPipeError, ConnectionError):
                self._restart(worker)

    def _receive(self, timeout: float | None) -> None:
        ready = wait([worker.connection for worker in self._workers], timeout)
        if not ready:
            raise TimeoutError(f"no worker gave a batch for {timeout} seconds")
        for worker in [worker for worker in self._workers if worker.connection in ready]:
            try:
                answer = pickle.loads(worker.connection.recv_bytes())  # noqa: S301 (from our own worker)
            except (EOFError, ConnectionError):
                self._restart(worker)
                continue
            self._deaths = 0
            self._arrived[answer.number] = (answer, worker.jobs.pop(answer.number))
        self._dispatch()

    def _restart(self, dead: _Worker) -> None:
        """Another worker computes the dead one's jobs: they depend on no worker, so the bits are the same."""
        dead.connection.close()
        dead.process.join()
        self._workers.remove(dead)
        self._free += dead.jobs.values()
        self._queue.extendleft(reversed(dead.jobs))
        self._deaths += 1
        cause = (
            f"signal {-dead.process.exitcode}"
            if dead.process.exitcode < 0
            else f"exit code {dead.process.exitcode}"
        )
        if self._deaths > RESTARTS:
            first = self._jobs[min(dead.jobs)] if dead.jobs else None
            raise PipelineError(
                f"a worker of the pipeline died ({cause}) for the {self._deaths}th time in a row"
                + (
                    f", over elements {first.task[0]} to {first.task[1] - 1} of {self._stages[first.stage].describe()}"
                    if first
                    else ""
                )
                + ". Signal 9 is often the system's answer to a lack of memory: use fewer workers or smaller batches."
            )
        warnings.warn(
            f"a worker of the pipeline died ({cause}); another one computes its batches again, with the same bits",
            RuntimeWarning,
            stacklevel=2,
        )
        self._start()
        self._dispatch()

    def _make_room(self, number: int) -> None:
        """A job that is asked for gets a slot, if need be that of a result that nobody has asked for yet."""
        if number not in self._queue or self._free:
            return
        for other, (answer, place) in self._arrived.items():
            if isinstance(place, int):
                self._arrived[other] = (answer, self._copied(answer, place))
                break
        self._queue.remove(number)
        self._queue.appendleft(number)
        self._dispatch()

    def _memory(self, answer: Answer, place: int | np.ndarray) -> np.ndarray:
        if isinstance(place, np.ndarray):
            return place
        if self._leased >= LEASED:
            return self._copied(answer, place)
        self._leased += 1
        return self._slots[place].lease(answer.used, lambda: self._returned(place))

    def _copied(self, answer: Answer, slot: int) -> np.ndarray:
        copy = np.array(self._slots[slot].lease(answer.used, lambda: None)[: answer.used])
        self._release(slot)
        return copy

    def _returned(self, slot: int) -> None:
        self._leased -= 1
        self._release(slot)

    def _release(self, place: int | np.ndarray) -> None:
        if isinstance(place, int):
            self._free.append(place)


def _forked(
    connection: Connection,
    parent: int,
    stages: list[Blocks],
    slots: list[Slot],
    draws: Draws,
    by_thread: bool,
) -> None:
    for end in list(_ends):
        end.close()
    serve(connection, parent, stages, slots, draws, by_thread=by_thread)


def _raised(pickled: bytes | None, text: str) -> Exception:
    error = PipelineError(text.strip().splitlines()[-1]) if pickled is None else pickle.loads(pickled)  # noqa: S301
    error.add_note(f"In a worker process:\n{text}")
    return error
