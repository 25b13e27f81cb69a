"""The start of worker processes: forked off this process, or by a server that shares nothing with it."""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
import warnings
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from samebits.data._workers.fork_server import ServedProcess, Server, WorkerSettings
from samebits.data._workers.parent_death import block_signals
from samebits.data._workers.result_memory import ResultMemory
from samebits.data._workers.worker_process import WorkerProgram, serve
from samebits.errors import InvalidArgumentError

_ends: weakref.WeakSet[socket.socket] = weakref.WeakSet()
"""The parent's ends of all workers' connections: a forked worker closes them, else its siblings would never end."""


class WorkerHandle(Protocol):
    """A worker's process."""

    pid: int

    def end(self, grace: float) -> int:
        """Returns the exit code (negative: the signal) once the worker has ended; it is killed after `grace` seconds."""
        ...


class Launcher(Protocol):
    """Starts the workers of one team."""

    def start(self, theirs: socket.socket, ours: socket.socket, number: int) -> WorkerHandle:
        """Starts worker `number`, which keeps the end `theirs` of a connection and closes `ours`."""
        ...

    def close(self) -> None:
        """Ends the launcher: no more workers will be started."""
        ...


def may_start() -> bool:
    """Returns True if this process may have workers: one that is itself a worker, ours or torch's, may not."""
    return not multiprocessing.current_process().daemon


def launcher(method: str, work: WorkerProgram, slots: Sequence[ResultMemory]) -> Launcher:
    """Returns the launcher for a start method: "fork", "server" or "auto"."""
    if method == "auto":
        method = "fork" if hasattr(os, "fork") and not torch.cuda.is_initialized() else "server"
    if method not in ("fork", "server"):
        raise InvalidArgumentError(f'Pipeline: start_method={method!r}; give "fork", "server" or "auto"')
    return _ForkLauncher(work, slots) if method == "fork" else _ServerLauncher(work, slots)


class _ForkLauncher:
    def __init__(self, work: WorkerProgram, slots: Sequence[ResultMemory]) -> None:
        self._work, self._slots = work, slots

    def start(self, theirs: socket.socket, ours: socket.socket, number: int) -> WorkerHandle:
        _ends.add(ours)
        by_thread = threading.current_thread() is not threading.main_thread()
        process = multiprocessing.get_context("fork").Process(
            target=_run_forked,
            args=(theirs, os.getpid(), self._work, self._slots, number, by_thread),
            daemon=True,
        )
        with block_signals(), warnings.catch_warnings():
            # Python 3.12 warns of any fork while threads run
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        return _ForkedProcess(process)

    def close(self) -> None:
        """Does nothing: there is nothing to close."""


class _ForkedProcess:
    def __init__(self, process: Any) -> None:
        self._process = process
        self.pid: int = process.pid

    def end(self, grace: float) -> int:
        self._process.join(grace)
        if self._process.is_alive():  # in the middle of a long call of a user's function
            self._process.kill()
            self._process.join()
        code = self._process.exitcode or 0  # None: other code has waited for it
        self._process.close()
        return code


def _run_forked(
    connection: socket.socket,
    parent: int,
    work: WorkerProgram,
    slots: list[ResultMemory],
    number: int,
    by_thread: bool,
) -> None:
    for end in list(_ends):
        end.close()
    serve(connection, parent, work, slots, number, by_thread=by_thread)


class _ServerLauncher:
    def __init__(self, work: WorkerProgram, slots: Sequence[ResultMemory]) -> None:
        self._slots = slots
        self._surroundings = WorkerSettings(work)

    def start(self, theirs: socket.socket, ours: socket.socket, number: int) -> WorkerHandle:
        return ServedProcess(Server.instance(), theirs, self._surroundings.fd, self._slots, number)

    def close(self) -> None:
        self._surroundings.close()
