"""Threads that compute jobs beside the training thread: for functions that do not draw from the process's generators."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

import torch

from samebits.data._calls import process_generators
from samebits.data._stages.stage import Blocks
from samebits.data._workers.worker_process import WorkerJob
from samebits.errors import PipelineTimeoutError


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
        """Submits a job and returns its number."""
        number, self._numbers = self._numbers, self._numbers + 1
        stage = self._stages[job.stage]
        self._jobs[number] = self._pool.submit(
            process_generators.run_without_rng_setup, lambda: stage.compute(job.repetition, job.task)
        )
        return number

    def result(self, number: int) -> Any:
        """Returns the result of job `number`, or raises its error.

        Raises:
            PipelineTimeoutError: there was no result in time.
        """
        self.first([number])
        return self._jobs.pop(number).result()

    def first(self, numbers: Sequence[int]) -> int:
        """Returns the number of the first of these jobs that is done."""
        done = wait([self._jobs[number] for number in numbers], self._timeout, FIRST_COMPLETED).done
        if not done:
            raise PipelineTimeoutError(
                f"no thread had a batch in {self._timeout} seconds. What do its functions wait for? A larger timeout gives them "
                "more time."
            )
        return next(number for number in numbers if self._jobs[number] in done)

    def close(self) -> None:
        """Ends the threads after their current jobs."""
        self._pool.shutdown(wait=True, cancel_futures=True)
