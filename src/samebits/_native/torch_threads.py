"""Torch's OpenMP and MKL threads: kernels run on them, and blocks limit torch to one of them.

There is no pool of ours: its threads would share the cores with torch's, which spin after each op, and would
need care at fork and at exit. `GOMP_parallel` of torch's OpenMP runtime runs code on the threads that torch's
next op will use; the call costs 2 us, and 20 us where it calls back into Python.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_LIBRARIES = Path(torch.__file__).parent / "lib"


def _load(name: str, load: type[ctypes.CDLL] = ctypes.CDLL) -> ctypes.CDLL | None:
    """Loads a library that torch has loaded; returns None if this build of torch has none of that name."""
    try:
        return load(str(_LIBRARIES / name))
    except OSError:
        return None


def _parallel() -> Any:
    run = getattr(openmp, "GOMP_parallel", None)
    if run is not None:
        run.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
        run.restype = None
    return run


openmp = _load("libgomp.so.1")
"""Torch's OpenMP runtime."""
torch_cpu = _load("libtorch_cpu.so")
"""The library with MKL's functions, in builds of torch that have MKL."""
parallel = _parallel()
"""Calls a function on each thread: (function, its pointer, threads, 0). None: no such runtime."""
# `PyDLL` keeps the GIL, and takes 0.1 us.
_set_openmp_threads = getattr(_load("libgomp.so.1", ctypes.PyDLL), "omp_set_num_threads", None)
set_mkl_threads = getattr(_load("libtorch_cpu.so", ctypes.PyDLL), "MKL_Set_Num_Threads_Local", None)
"""Sets MKL's number of threads for this thread; returns the previous one. None: torch without MKL."""


def _set_threads(threads: int, mkl: int) -> int:
    """Sets the number of threads of OpenMP and of MKL for the current thread; returns MKL's previous one.

    Not `torch.set_num_threads`: that also changes the default of threads started meanwhile.
    """
    if _set_openmp_threads is None or set_mkl_threads is None:
        torch.set_num_threads(threads)
        return threads
    _set_openmp_threads(threads)
    return set_mkl_threads(mkl)


class single_thread:  # noqa: N801
    """A block in which torch's ops use one thread; other threads are not affected."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        # Reading the number also makes torch set up this thread; later, that would undo the setting.
        threads = torch.get_num_threads()
        self._before = threads, _set_threads(1, 1)

    def __exit__(self, *exception: object) -> None:
        _set_threads(*self._before)


def on_single_thread(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the kernel, run in a `single_thread` block."""

    def serial(*args: Any, **kwargs: Any) -> Any:
        with single_thread():
            return kernel(*args, **kwargs)

    return serial
