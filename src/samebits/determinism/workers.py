"""Torch's own kernels, one thread each, side by side on torch's own OpenMP threads.

A kernel on one thread has the same bits wherever it runs; the tasks are cut by size, so a result is the same for
any number of threads. There is no pool of ours: its threads would share the cores with torch's, which spin after
each op, and would have to be thought of at fork and at exit. `GOMP_parallel` calls back into Python on the threads
that torch's next op will use (20 us); a task's torch op lets go of the GIL.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

_LIBRARIES = Path(torch.__file__).parent / "lib"


def _function(library: str, name: str, load: type[ctypes.CDLL] = ctypes.PyDLL) -> Any:
    """A function of a library that torch has loaded, None if there is none; `PyDLL` keeps the GIL, and takes 0.1 us."""
    try:
        return getattr(load(str(_LIBRARIES / library)), name, None)
    except OSError:
        return None


on_every_thread = _function("libgomp.so.1", "GOMP_parallel", ctypes.CDLL)
"""Calls a function with a pointer on each thread of the team: (function, pointer, threads, 0)."""
_openmp_threads = _function("libgomp.so.1", "omp_set_num_threads")
mkl_threads = _function("libtorch_cpu.so", "MKL_Set_Num_Threads_Local")
"""Sets MKL's number of threads for the current thread; returns the one of before."""
_BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_SMALLEST = float.fromhex("0x1p-1074")


def _set_threads(threads: int, mkl: int) -> int:
    """Sets the number of threads of OpenMP and of MKL for the current thread; returns MKL's of before.

    Not `torch.set_num_threads`: that also changes the default that a thread started meanwhile would take over.
    """
    if _openmp_threads is None or mkl_threads is None:
        torch.set_num_threads(threads)
        return threads
    _openmp_threads(threads)
    return mkl_threads(mkl)


class one_thread:  # noqa: N801
    """A block in which torch's ops use one thread; no other thread notices."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        # Asking is also what has torch set up this thread; later, it would undo what is set here.
        threads = torch.get_num_threads()
        self._before = threads, _set_threads(1, 1)

    def __exit__(self, *exception: object) -> None:
        _set_threads(*self._before)


def _flushes_denormals() -> bool:
    return _SMALLEST * 1.0 == 0.0


class _Tasks:
    """Tasks that any thread may take the next of, and what became of them."""

    def __init__(self, tasks: Sequence[Callable[[], Any]]) -> None:
        self.results: list[Any] = [None] * len(tasks)
        self.error: BaseException | None = None
        self._tasks = tasks
        self._next = iter(range(len(tasks)))
        self._inference = torch.is_inference_mode_enabled()
        self._flush = _flushes_denormals()

    def work(self, _: Any = None) -> None:
        """Takes tasks until none is left; an error ends the work of all threads. Runs on every thread of the team."""
        try:
            if _flushes_denormals() != self._flush:  # a setting of each thread, and a part of the result
                torch.set_flush_denormal(self._flush)
            with (
                one_thread(),
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
    if threads > 1 and on_every_thread is not None:
        on_every_thread(_BODY(shared.work), None, threads, 0)
    else:
        shared.work()
    if shared.error is not None:
        raise shared.error
    return shared.results
