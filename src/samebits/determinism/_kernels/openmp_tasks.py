"""Torch's own kernels, one thread each, side by side on torch's own OpenMP threads.

A kernel on one thread has the same bits wherever it runs; the tasks are cut by size, so a result is the same for
any number of threads. A task's torch op lets go of the GIL.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch

from samebits._native.torch_threads import parallel, single_thread
from samebits.determinism._environment import flushes_denormals

_BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Tasks:
    """Tasks that any thread may take the next of, and what became of them."""

    def __init__(self, tasks: Sequence[Callable[[], Any]]) -> None:
        self.results: list[Any] = [None] * len(tasks)
        self.error: BaseException | None = None
        self._tasks = tasks
        self._next = iter(range(len(tasks)))
        self._inference = torch.is_inference_mode_enabled()
        self._flush = flushes_denormals()

    def work(self, _: Any = None) -> None:
        """Takes tasks until none is left; an error ends the work of all threads. Runs on every thread of the team."""
        try:
            if flushes_denormals() != self._flush:  # a setting of each thread, and a part of the result
                torch.set_flush_denormal(self._flush)
            with (
                single_thread(),
                torch._C._InferenceMode(self._inference),
                torch._C._AutoDispatchBelowAutograd(),
            ):
                for number in self._next:  # the GIL makes it safe to share
                    if self.error is None:
                        self.results[number] = self._tasks[number]()
        except BaseException as error:
            self.error = self.error or error


def run(tasks: Sequence[Callable[[], Any]]) -> list[Any]:
    """The results of the tasks, in their order, each run on one thread; as many at a time as torch may use threads.

    The tasks see no autograd. An exception of a task is raised here, after the tasks under way are done.
    """
    shared = _Tasks(tasks)
    threads = min(torch.get_num_threads(), len(tasks))
    if threads > 1 and parallel is not None:
        parallel(_BODY(shared.work), None, threads, 0)
    else:
        shared.work()
    if shared.error is not None:
        raise shared.error
    return shared.results
