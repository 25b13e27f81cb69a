"""Torch's own OpenMP threads, and MKL's: code runs on them, and blocks use one of them.

There is no pool of ours: its threads would share the cores with torch's, which spin after each op, and would have to
be thought of at fork and at exit. `GOMP_parallel` of the OpenMP runtime that torch itself uses runs code on the very
threads that torch's next op will use; the call costs 2 us, and 20 us where it calls back into Python.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_LIBRARIES = Path(torch.__file__).parent / "lib"


def _load(name: str, load: type[ctypes.CDLL] = ctypes.CDLL) -> ctypes.CDLL | None:
    """A library that torch has loaded; None if this build of torch has none of that name."""
    try:
        return load(str(_LIBRARIES / name))
    except OSError:
        return None


def _parallel() -> Any:
    run = getattr(_load("libgomp.so.1"), "GOMP_parallel", None)
    if run is not None:
        run.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
        run.restype = None
    return run


torch_cpu = _load("libtorch_cpu.so")
"""Where MKL's functions are, in builds of torch that have MKL."""
parallel = _parallel()
"""Calls a function with a pointer on each thread of the team: (function, pointer, threads, 0). None: no such runtime."""
# `PyDLL` keeps the GIL, and takes 0.1 us.
_set_openmp_threads = getattr(_load("libgomp.so.1", ctypes.PyDLL), "omp_set_num_threads", None)
set_mkl_threads = getattr(_load("libtorch_cpu.so", ctypes.PyDLL), "MKL_Set_Num_Threads_Local", None)
"""Sets MKL's number of threads for the current thread; returns the one of before. None: a torch without MKL."""


def _set_threads(threads: int, mkl: int) -> int:
    """Sets the number of threads of OpenMP and of MKL for the current thread; returns MKL's of before.

    Not `torch.set_num_threads`: that also changes the default that a thread started meanwhile would take over.
    """
    if _set_openmp_threads is None or set_mkl_threads is None:
        torch.set_num_threads(threads)
        return threads
    _set_openmp_threads(threads)
    return set_mkl_threads(mkl)


class single_thread:  # noqa: N801
    """A block in which torch's ops use one thread; no other thread notices."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        # Asking is also what has torch set up this thread; later, it would undo what is set here.
        threads = torch.get_num_threads()
        self._before = threads, _set_threads(1, 1)

    def __exit__(self, *exception: object) -> None:
        _set_threads(*self._before)


def on_single_thread(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel, run in a `single_thread` block."""

    def serial(*args: Any, **kwargs: Any) -> Any:
        with single_thread():
            return kernel(*args, **kwargs)

    return serial
