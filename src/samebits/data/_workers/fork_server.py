"""A process that forks workers and shares nothing with this one: for when CUDA is initialised, which no fork survives.

It is started once, at the first need, and ends with this process. It imports this package and never `__main__`: what
workers compute is sent by value (cloudpickle), so that functions and classes of a script need no guard.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

import cloudpickle
import torch

from samebits._context import process
from samebits.data._workers import result_encoding
from samebits.data._workers.parent_death import signals_blocked
from samebits.data._workers.result_memory import ResultMemory
from samebits.data._workers.worker_process import WorkerProgram, serve
from samebits.determinism import enable_op_determinism
from samebits.errors import PipelineError
from samebits.random._process import seeds

_FDS = 200
"""Descriptors in one message; the system allows 253."""
_MAIN = "import sys; sys.path[:] = {path!r}; from samebits.data._workers.fork_server import main; main({fd})"


class WorkerSettings:
    """What workers compute, and the settings of this process that its bits depend on: a file without a name."""

    def __init__(self, work: WorkerProgram) -> None:
        """Of this process.

        Raises:
            PipelineError: something in a stage cannot be sent to another process.
        """
        self.fd = os.memfd_create("samebits-work")
        with os.fdopen(os.dup(self.fd), "wb") as file:
            pickle.dump(
                (sys.path, seeds.root_seed(), process.op_determinism, torch.get_default_dtype()), file
            )
            try:
                cloudpickle.dump(work, file)
            except Exception as error:
                self.close()
                raise PipelineError(
                    "the pipeline cannot be sent to its worker processes, which share nothing with this one "
                    f"({type(error).__name__}: {error}). Open files, locks and connections where they are used, or read "
                    "without worker processes: num_parallel_calls=0"
                ) from error

    @staticmethod
    def take(fd: int) -> WorkerProgram:
        """Gives this process the settings; what it is to compute."""
        file: Any = mmap.mmap(
            fd, 0, prot=mmap.PROT_READ
        )  # several workers read it, each with a position of its own
        path, seed, settings, dtype = pickle.load(file)  # noqa: S301 (from our own parent)
        sys.path[:] = path
        if seed is not None:
            seeds.set_random_seed(seed)
        torch.set_default_dtype(dtype)
        if settings is not None:
            enable_op_determinism(
                thread_invariant=settings.thread_invariant, on_unimplemented=settings.on_unimplemented
            )
        return pickle.load(file)  # noqa: S301

    def close(self) -> None:
        """Lets go of the file."""
        os.close(self.fd)


class Server:
    """The parent's side of the one server of this process."""

    _running: Server | None = None
    _lock = threading.Lock()

    @classmethod
    def running(cls) -> Server:
        """The server of this process, started if it does not run."""
        with cls._lock:
            if cls._running is None or not cls._running.serves():
                cls._running = cls()
            return cls._running

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._speaking = threading.Lock()
        main = _MAIN.format(path=sys.path, fd=theirs.fileno())
        with theirs, signals_blocked():
            self._process = subprocess.Popen(
                [sys.executable, "-c", main], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )

    def serves(self) -> bool:
        """Whether it is there, for this process: one that was forked off it starts its own."""
        return self._owner == os.getpid() and self._process.poll() is None

    def ask(self, request: tuple[Any, ...], fds: Sequence[int] = ()) -> int:
        """Its answer; `fds` become its own."""
        with self._speaking:
            try:
                self._connection.send(pickle.dumps((*request, len(fds))))
                for first in range(0, len(fds), _FDS):
                    socket.send_fds(self._connection, [b"fds"], list(fds[first : first + _FDS]))
                answer = self._connection.recv(64)
            except ConnectionError:
                answer = b""
        if not answer:
            raise PipelineError(
                f"the server of worker processes ended (exit code {self._process.wait()}); the lines above, if any, say why"
            )
        return pickle.loads(answer)  # noqa: S301


class ServedProcess:
    """A worker that the server has forked."""

    def __init__(
        self, server: Server, connection: socket.socket, work: int, slots: Sequence[ResultMemory], number: int
    ) -> None:
        self._server = server
        fds = [connection.fileno(), work, *(slot.fd for slot in slots)]
        self.pid = server.ask(("start", number), fds)

    def end(self, grace: float) -> int:
        """Its exit code (negative: the signal), once it has ended; it is killed after `grace` seconds."""
        try:
            return self._server.ask(("end", self.pid, grace))
        except PipelineError:  # the server has died, and its workers with it
            return -signal.SIGKILL


def main(fd: int) -> None:
    """Runs in the server's process, until there is nobody at the other end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # SIGTERM stays blocked: the group may be sent it
    parent = os.getppid()
    children: dict[int, Any] = {}
    with socket.socket(fileno=fd) as connection:
        while os.getppid() == parent:
            if not select.select([connection], [], [], 1.0)[0]:
                continue
            message = connection.recv(1 << 16)
            if not message:
                break
            request, *arguments, count = pickle.loads(message)  # noqa: S301 (from our own parent)
            fds = _take_fds(connection, count)
            if request == "start":
                answer = _start(children, connection, arguments[0], fds)
            else:
                answer = _end(children.pop(arguments[0]), arguments[1])
            connection.send(pickle.dumps(answer))


def _take_fds(connection: socket.socket, count: int) -> list[int]:
    fds: list[int] = []
    while len(fds) < count:
        fds += socket.recv_fds(connection, 16, _FDS)[1]
    return fds


def _start(children: dict[int, Any], control: socket.socket, number: int, fds: list[int]) -> int:
    child = multiprocessing.get_context("fork").Process(
        target=_served, args=(os.getpid(), control, number, fds), daemon=True
    )
    with signals_blocked():
        child.start()
    for fd in fds:
        os.close(fd)
    assert child.pid is not None
    children[child.pid] = child
    return child.pid


def _end(child: Any, grace: float) -> int:
    child.join(grace)
    if child.is_alive():
        child.kill()
        child.join()
    code = child.exitcode
    child.close()
    return code


def _served(parent: int, control: socket.socket, number: int, fds: list[int]) -> None:
    control.close()
    torch.set_num_threads(1)
    result_encoding.send_by_value()
    connection, work, *slots = fds
    try:
        computed: WorkerProgram = WorkerSettings.take(work)
    except Exception as error:
        computed = _Broken(error)
    serve(
        socket.socket(fileno=connection),
        parent,
        computed,
        [ResultMemory(fd) for fd in slots],
        number,
        by_thread=False,
    )


class _Broken:
    """Work that did not arrive in one piece."""

    def __init__(self, error: Exception) -> None:
        self._error = PipelineError(
            f"the pipeline did not arrive in a worker process ({type(error).__name__}: {error}). Can what it is made of be "
            "imported there? Or read without worker processes: num_parallel_calls=0"
        )

    def begin(self, worker: int) -> None:
        """Tells what happened."""
        raise self._error

    def compute(self, job: Any, slot: ResultMemory | None) -> Any:
        """Is never reached."""
        raise self._error

    def describe(self, job: Any) -> str:
        """Nothing is known of it."""
        return str(job)
