"""Calls in a process of their own, which is a copy of this one and leaves nothing behind in it."""

from __future__ import annotations

import multiprocessing
import os
import threading
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

from samebits.data._workers.launch_workers import may_start
from samebits.data._workers.parent_death import live_with, signals_blocked
from samebits.data._workers.worker_process import packed_error, unpacked_error
from samebits.errors import PipelineError


def apart(function: Callable[[], Any], warned: dict[str, type[Warning]]) -> Any:
    """What `function` returns, or raises: called in a forked process, so that it finds this one's caches as they are
    now and fills none of them. `warned` gets its warnings.

    In this process where there can be no other: CUDA is initialised, which a fork does not survive, or it is a worker.
    """
    if torch.cuda.is_initialized() or not may_start():
        return function()
    ours, theirs = multiprocessing.Pipe(duplex=False)
    by_thread = threading.current_thread() is not threading.main_thread()
    process = multiprocessing.get_context("fork").Process(
        target=_called, args=(function, ours, theirs, os.getpid(), by_thread)
    )
    with signals_blocked(), warnings.catch_warnings():
        # Python 3.12 warns of any fork beside threads
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    theirs.close()
    try:
        result, error, texts = ours.recv()
    except EOFError:
        process.join()
        raise PipelineError(
            f"a process that read the pipeline ended (exit code {process.exitcode})"
        ) from None
    finally:
        ours.close()
        process.join()
    warned.update(texts)
    if error is not None:
        raise unpacked_error(error)
    return result


def _called(
    function: Callable[[], Any], ours: Connection, theirs: Connection, parent: int, by_thread: bool
) -> None:
    ours.close()
    live_with(parent, by_thread=by_thread)
    torch.set_num_threads(1)  # before any op: OpenMP's threads did not survive the fork
    result, error = None, None
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            result = function()
        except BaseException as raised:
            error = packed_error(raised)
    theirs.send((result, error, {str(one.message): one.category for one in warned}))
