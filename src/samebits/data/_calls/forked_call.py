"""Calls in a forked copy of this process, which leave nothing in this one."""

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
from samebits.data._workers.parent_death import block_signals, tie_to_parent
from samebits.data._workers.worker_process import pack_error, unpack_error
from samebits.errors import PipelineError


def call_in_fork(function: Callable[[], Any], warned: dict[str, type[Warning]]) -> Any:
    """Calls `function` in a forked process, and returns or raises as it does. It finds this process's caches as they are
    now and fills none of them. `warned` gets its warnings.

    It runs in this process where it cannot fork: CUDA is initialised, which a fork does not survive, or this is a worker.
    """
    if torch.cuda.is_initialized() or not may_start():
        return function()
    ours, theirs = multiprocessing.Pipe(duplex=False)
    by_thread = threading.current_thread() is not threading.main_thread()
    process = multiprocessing.get_context("fork").Process(
        target=_run_child, args=(function, ours, theirs, os.getpid(), by_thread)
    )
    with block_signals(), warnings.catch_warnings():
        # Python 3.12 warns of any fork while threads run
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
        raise unpack_error(error)
    return result


def _run_child(
    function: Callable[[], Any], ours: Connection, theirs: Connection, parent: int, by_thread: bool
) -> None:
    ours.close()
    tie_to_parent(parent, by_thread=by_thread)
    torch.set_num_threads(1)  # before any op: OpenMP's threads did not survive the fork
    result, error = None, None
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            result = function()
        except BaseException as raised:
            error = pack_error(raised)
    theirs.send((result, error, {str(one.message): one.category for one in warned}))
