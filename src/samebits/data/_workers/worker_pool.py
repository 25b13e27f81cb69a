"""The parent's side: worker processes, their jobs, and the slots that hold the results."""

from __future__ import annotations

import os
import pickle
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from samebits._inspect import user_code
from samebits.data._calls import process_generators
from samebits.data._stages.stage import Blocks
from samebits.data._workers.launch_workers import ForkLauncher, ServerLauncher, StartedWorker, launcher
from samebits.data._workers.program_changes import ReachedValues
from samebits.data._workers.results import ResultMemory, decode
from samebits.data._workers.worker_process import (
    ANSWER,
    REQUEST,
    OneThread,
    StageWork,
    WorkerJob,
    unpack_error,
)
from samebits.errors import PipelineError, PipelineTimeoutError

LEASED = 3
"""Results that the user may hold uncopied. A fourth one's memory is copied: workers never wait for it."""
AT_ONCE = 2
"""Jobs that a worker has: the current one and the next, so that it never waits for this process."""
RESTARTS = 3
"""Deaths of workers in a row, without any result, after which an error is raised."""
GRACE = 1.0
"""Seconds that workers have to finish their job when they are no longer needed."""


@dataclass
class _Worker:
    number: int
    process: StartedWorker
    connection: socket.socket
    jobs: dict[int, int] = field(default_factory=dict)
    """The slot of each of its jobs, by number."""


class _Answer(NamedTuple):
    failed: bool
    used: int
    at: int
    size: int
    place: int | np.ndarray
    """The slot with the result, or a copy of its bytes."""


class Workers:
    """Processes that compute jobs; results are read by the job's number, in any order.

    A process forked off the owner's computes its jobs inline, and leaves the workers to their owner.
    """

    def __init__(
        self,
        work: StageWork,
        *,
        count: int,
        ahead: int,
        timeout: float | None = None,
        start_method: str = "auto",
        copied: ReachedValues | None = None,
        kept: bool = False,
    ) -> None:
        """`count`: processes; `ahead`: results that may wait to be read; `timeout`: seconds for one result.

        `start_method`: "fork", "server" (processes that share nothing with this one), or "auto": the server
        where CUDA is initialised, which a fork does not survive. `copied`: what the program could change, and
        they would not see. `kept`: they outlive their readers.
        """
        self._work, self._timeout = work, timeout
        self.copied, self._is_kept = copied, kept
        self.readers = 0
        """Iterations that read from them."""
        self._owner = os.getpid()
        self._slots = [ResultMemory() for _ in range(ahead + LEASED)]
        self._free = list(range(len(self._slots)))
        self._leased: set[int] = set()
        self._jobs: dict[int, Any] = {}
        self._queue: deque[int] = deque()
        self._arrived: dict[int, _Answer] = {}
        self._numbers = 0
        self._deaths = 0
        self._workers: dict[int, _Worker] = {}  # by the descriptor of the connection
        self._poll = select.poll()
        self._open = True
        self._launcher: ForkLauncher | ServerLauncher | None = None
        try:
            self._launcher = launcher(start_method, work, self._slots)
            for number in range(count):
                self._start(number)
        except BaseException:
            self.close()
            raise

    def submit(self, job: Any) -> int:
        number, self._numbers = self._numbers, self._numbers + 1
        self._jobs[number] = job
        self._queue.append(number)
        if os.getpid() == self._owner:
            self._dispatch()
        return number

    def result(self, number: int) -> Any:
        """Returns the result of job `number`.

        Raises:
            PipelineError: workers keep being killed over it.
            PipelineTimeoutError: there was no result in time.
            Exception: the error of the job.
        """
        if os.getpid() != self._owner:
            with OneThread():
                return self._work.compute(self._jobs.pop(number), None)
        self._await(number)
        answer = self._arrived.pop(number)
        del self._jobs[number]
        if answer.failed:
            raise self._unpack_error(answer)
        base = self._memory(answer)
        return decode(base[answer.at : answer.at + answer.size].data, base)

    def first(self, numbers: Sequence[int]) -> int:
        if os.getpid() != self._owner:
            return numbers[0]
        if not any(number in self._arrived for number in numbers):
            self._await(*numbers)
        return next(number for number in self._arrived if number in numbers)

    def discard(self, numbers: Sequence[int]) -> None:
        """Drops these jobs: their results will not be read."""
        for number in numbers:
            self._jobs.pop(number, None)
            if number in self._queue:
                self._queue.remove(number)
            answer = self._arrived.pop(number, None)
            if answer is not None and isinstance(answer.place, int):
                self._free.append(answer.place)

    def changed(self) -> str | None:
        """Returns the name of what the program has changed since they were started."""
        return None if self.copied is None else self.copied.changed()

    def release(self) -> None:
        """Notes that one of the readers has ended, and ends the workers if nobody needs them."""
        self.readers -= 1
        if not (self._is_kept or self.readers > 0):
            self.close()

    def end_keeping(self) -> None:
        """Ends the workers as soon as they have no reader."""
        self._is_kept = False
        if self.readers <= 0:
            self.close()

    def close(self) -> None:
        """Ends the workers; delivered results stay readable."""
        if not self._open:
            return
        self._open = False
        for worker in self._workers.values():
            worker.connection.close()
        if os.getpid() == self._owner:
            deadline = time.monotonic() + GRACE
            for worker in self._workers.values():
                worker.process.end(max(0.0, deadline - time.monotonic()))
        for slot in self._slots:
            slot.close()
        if self._launcher is not None:
            self._launcher.close()

    def _await(self, *numbers: int) -> None:
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        while not any(number in self._arrived for number in numbers):
            self._make_room(numbers[0])
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise PipelineTimeoutError(
                    f"{self._work.describe(self._jobs[numbers[0]])}: no worker had the result in "
                    f"{self._timeout} seconds. What does its function wait for? A larger timeout gives it "
                    "more time."
                )
            self._receive(left)

    def _start(self, number: int) -> None:
        assert self._launcher is not None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = self._launcher.start(theirs, ours, number)
        self._workers[ours.fileno()] = _Worker(number, process, ours)
        self._poll.register(ours, select.POLLIN)

    def _dispatch(self) -> None:
        while self._queue and self._free:
            worker = min(self._workers.values(), key=lambda one: len(one.jobs))
            if len(worker.jobs) >= AT_ONCE:
                return
            number, which = self._queue.popleft(), self._free.pop()
            worker.jobs[number] = which
            slot, pickled = self._slots[which], pickle.dumps(self._jobs[number], pickle.HIGHEST_PROTOCOL)
            slot.clear()
            slot.write(pickled)
            try:
                worker.connection.send(REQUEST.pack(number, which, len(pickled)))
            except ConnectionError:
                self._restart(worker)

    def _receive(self, timeout: float | None) -> None:
        for fd, _ in self._poll.poll(None if timeout is None else 1000 * timeout):
            worker = self._workers[fd]
            try:
                message = worker.connection.recv(ANSWER.size)
            except ConnectionError:
                message = b""
            if not message:
                self._restart(worker)
                continue
            self._deaths = 0
            number, *rest = ANSWER.unpack(message)
            slot = worker.jobs.pop(number)
            if number in self._jobs:
                self._arrived[number] = _Answer(*rest, place=slot)
            else:
                self._free.append(slot)
        self._dispatch()

    def _restart(self, dead: _Worker) -> None:
        """Starts another worker, which computes the dead one's jobs: the bits do not depend on the worker."""
        self._poll.unregister(dead.connection)
        del self._workers[dead.connection.fileno()]
        dead.connection.close()
        code = dead.process.end(GRACE)
        self._free += dead.jobs.values()
        wanted = [number for number in dead.jobs if number in self._jobs]
        self._queue.extendleft(reversed(wanted))
        self._deaths += 1
        cause = f"signal {-code}" if code < 0 else f"exit code {code}"
        if self._deaths > RESTARTS:
            self._start(dead.number)  # the next call finds workers
            over = f", over {self._work.describe(self._jobs[wanted[0]])}" if wanted else ""
            deaths, self._deaths = self._deaths, 0
            raise PipelineError(
                f"a worker of the pipeline died ({cause}) for the {deaths}th time in a row{over}. Signal 9 "
                "is often the system's answer to a lack of memory: use fewer workers or smaller batches."
            )
        if self._deaths == 1:
            user_code.warn(
                f"a worker of the pipeline died ({cause}); another one computes its batches again, with the "
                "same bits",
                RuntimeWarning,
            )
        self._start(dead.number)
        self._dispatch()

    def _make_room(self, number: int) -> None:
        """Frees a slot for a job whose result is needed, if need be that of a result not read yet."""
        if number not in self._queue:
            return
        for other, answer in self._arrived.items():
            if self._free:
                break
            if isinstance(answer.place, int):
                self._arrived[other] = answer._replace(place=self._copy_result(answer, answer.place))
        self._queue.remove(number)
        self._queue.appendleft(number)
        self._dispatch()

    def _memory(self, answer: _Answer) -> np.ndarray:
        place = answer.place
        if isinstance(place, np.ndarray):
            return place
        if len(self._leased) >= LEASED:
            return self._copy_result(answer, place)
        self._leased.add(place)
        return self._slots[place].lease(answer.used, lambda: self._release(place))

    def _copy_result(self, answer: _Answer, slot: int) -> np.ndarray:
        copy = np.array(self._slots[slot].lease(answer.used)[: answer.used])
        self._free.append(slot)
        return copy

    def _release(self, slot: int) -> None:
        self._leased.discard(slot)
        self._free.append(slot)

    def _unpack_error(self, answer: _Answer) -> BaseException:
        base = self._copy_result(answer, answer.place) if isinstance(answer.place, int) else answer.place
        return unpack_error(base[answer.at : answer.at + answer.size].data)


class Threads:
    """A pool of threads with the methods of `Workers`."""

    def __init__(self, stages: Sequence[Blocks], *, count: int, timeout: float | None) -> None:
        """`stages`: bound; `count`: threads; `timeout`: seconds for one result."""
        self._stages, self._timeout = list(stages), timeout
        self._jobs: dict[int, Future[Any]] = {}
        self._numbers = 0
        here = torch.get_num_threads()
        together = threading.Barrier(count)
        self._pool = ThreadPoolExecutor(count, "samebits", initializer=torch.set_num_threads, initargs=(1,))
        for started in [self._pool.submit(together.wait) for _ in range(count)]:
            started.result()
        torch.set_num_threads(here)  # OpenMP's number is per thread; torch keeps the last for new ones

    def submit(self, job: WorkerJob) -> int:
        number, self._numbers = self._numbers, self._numbers + 1
        stage = self._stages[job.stage]
        self._jobs[number] = self._pool.submit(
            process_generators.run_without_rng_setup, lambda: stage.compute(job.repetition, job.task)
        )
        return number

    def result(self, number: int) -> Any:
        """Returns the result of job `number`, or raises its error; PipelineTimeoutError without one."""
        self.first([number])
        return self._jobs.pop(number).result()

    def first(self, numbers: Sequence[int]) -> int:
        done = wait([self._jobs[number] for number in numbers], self._timeout, FIRST_COMPLETED).done
        if not done:
            raise PipelineTimeoutError(
                f"no thread had a batch in {self._timeout} seconds. What do its functions wait for? A larger "
                "timeout gives them more time."
            )
        return next(number for number in numbers if self._jobs[number] in done)

    def changed(self) -> None:
        """Returns None: threads have nothing of their own."""

    def discard(self, numbers: Sequence[int]) -> None:
        """Drops these jobs."""
        for number in numbers:
            self._jobs.pop(number, None)

    def release(self) -> None:
        """Ends the threads after their current jobs."""
        self._pool.shutdown(wait=True, cancel_futures=True)
