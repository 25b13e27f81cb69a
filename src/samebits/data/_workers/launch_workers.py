"""The start of worker processes: forked off this process, or off a server that shares nothing with it.

The server is for when CUDA is initialised, which no fork survives. It is started at the first need, and ends
with this process. It imports this package and never `__main__`: the work is sent by value (cloudpickle), so
that functions and classes of a script need no guard.
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
import warnings
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import cloudpickle
import torch

from samebits._context import process
from samebits.data._workers import results
from samebits.data._workers.results import ResultMemory
from samebits.data._workers.worker_process import StageWork, block_signals, serve
from samebits.determinism import enable_op_determinism
from samebits.errors import PipelineError
from samebits.random._process import seeds

_FDS = 200
"""Descriptors in one message; the system allows 253."""
_MAIN = (
    "import sys; sys.path[:] = {path!r}; from samebits.data._workers.launch_workers import main; main({fd})"
)
_ends: weakref.WeakSet[socket.socket] = weakref.WeakSet()
"""The parent's ends of all workers' connections: a forked worker closes them, so that its siblings end."""


def may_start() -> bool:
    """Returns True if this process may have workers: a worker, ours or torch's, may not."""
    return not multiprocessing.current_process().daemon


def launcher(method: str, work: StageWork, slots: Sequence[ResultMemory]) -> ForkLauncher | ServerLauncher:
    """Returns the launcher for a start method: "fork", "server" or "auto"."""
    if method == "auto":
        method = "fork" if hasattr(os, "fork") and not torch.cuda.is_initialized() else "server"
    return ForkLauncher(work, slots) if method == "fork" else ServerLauncher(work, slots)


def fork(target: Callable[..., None], *arguments: Any, daemon: bool = True) -> Any:
    """Calls `target` in a process forked off this one, which begins with SIGTERM and SIGINT blocked."""
    child = multiprocessing.get_context("fork").Process(target=target, args=arguments, daemon=daemon)
    with block_signals(), warnings.catch_warnings():
        # Python 3.12 warns of any fork while threads run
        warnings.simplefilter("ignore", DeprecationWarning)
        child.start()
    return child


class StartedWorker(NamedTuple):
    """A worker that was started."""

    pid: int
    end: Callable[[float], int]
    """Returns the exit code (negative: the signal) of the ended worker, killed after these seconds."""


class ForkLauncher:
    """Starts workers forked off this process."""

    def __init__(self, work: StageWork, slots: Sequence[ResultMemory]) -> None:
        self._work, self._slots = work, slots

    def start(self, theirs: socket.socket, ours: socket.socket, number: int) -> StartedWorker:
        """Starts worker `number`, which keeps the end `theirs` of a connection and closes `ours`."""
        _ends.add(ours)
        by_thread = threading.current_thread() is not threading.main_thread()
        child = fork(_run_forked, theirs, os.getpid(), self._work, self._slots, number, by_thread)
        return StartedWorker(child.pid, partial(_end, child))

    def close(self) -> None:
        """Does nothing: there is nothing to close."""


def _run_forked(
    connection: socket.socket,
    parent: int,
    work: StageWork,
    slots: list[ResultMemory],
    number: int,
    by_thread: bool,
) -> None:
    for end in list(_ends):
        end.close()
    serve(connection, parent, lambda: work, slots, number, by_thread=by_thread)


class ServerLauncher:
    """Starts workers forked off the server."""

    def __init__(self, work: StageWork, slots: Sequence[ResultMemory]) -> None:
        self._slots = slots
        self._surroundings = WorkerSettings(work)

    def start(self, theirs: socket.socket, ours: socket.socket, number: int) -> StartedWorker:
        """Starts worker `number`, which is sent the end `theirs` of a connection."""
        server = Server.instance()
        fds = [theirs.fileno(), self._surroundings.fd, *(slot.fd for slot in self._slots)]
        pid = server.request(("start", number), fds)
        return StartedWorker(pid, partial(server.end, pid))

    def close(self) -> None:
        """Closes the file with the work: no more workers will be started."""
        self._surroundings.close()


class WorkerSettings:
    """The work of workers, and this process's settings that its bits depend on, in a file without a name."""

    def __init__(self, work: StageWork) -> None:
        """Stores the settings of this process. Raises PipelineError for what cannot be sent to another."""
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
                    f"({type(error).__name__}: {error}). Open files, locks and connections where they are "
                    "used, or read without worker processes: num_parallel_calls=0"
                ) from error

    @staticmethod
    def load(fd: int) -> StageWork:
        """Applies the settings to this process and returns its work; PipelineError for what is missing."""
        # Several workers read it, each at its own position.
        file: Any = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
        path, seed, settings, dtype = pickle.load(file)  # noqa: S301 (from our own parent)
        sys.path[:] = path
        if seed is not None:
            seeds.set_random_seed(seed)
        torch.set_default_dtype(dtype)
        if settings is not None:
            enable_op_determinism(across=settings.across, on_unimplemented=settings.on_unimplemented)
        try:
            return pickle.load(file)  # noqa: S301
        except Exception as error:
            raise PipelineError(
                f"the pipeline did not arrive in a worker process ({type(error).__name__}: {error}). Can "
                "what it is made of be imported there? Or read without worker processes: num_parallel_calls=0"
            ) from None

    def close(self) -> None:
        os.close(self.fd)


class Server:
    """The parent's side of the one server of this process."""

    _running: Server | None = None
    _lock = threading.Lock()

    @classmethod
    def instance(cls) -> Server:
        """Returns the server of this process; starts it if it does not run."""
        with cls._lock:
            if cls._running is None or not cls._running.is_running():
                cls._running = cls()
            return cls._running

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._speaking = threading.Lock()
        main = _MAIN.format(path=sys.path, fd=theirs.fileno())
        with theirs, block_signals():
            self._process = subprocess.Popen(
                [sys.executable, "-c", main], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )

    def is_running(self) -> bool:
        """Returns True if the server runs for this process; a process forked off it starts its own."""
        return self._owner == os.getpid() and self._process.poll() is None

    def request(self, request: tuple[Any, ...], fds: Sequence[int] = ()) -> int:
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
                f"the server of worker processes ended (exit code {self._process.wait()}); the lines above, "
                "if any, say why"
            )
        return pickle.loads(answer)  # noqa: S301

    def end(self, pid: int, grace: float) -> int:
        """Returns the exit code of one of its workers, as `StartedWorker.end`."""
        try:
            return self.request(("end", pid, grace))
        except PipelineError:  # the server has died, and its workers with it
            return -signal.SIGKILL


def main(fd: int) -> None:
    """Runs the server until the other end of the connection is closed."""
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
    child = fork(_run_worker, os.getpid(), control, number, fds)
    for fd in fds:
        os.close(fd)
    children[child.pid] = child
    return child.pid


def _end(child: Any, grace: float) -> int:
    child.join(grace)
    if child.is_alive():  # in the middle of a long call of a user's function
        child.kill()
        child.join()
    code = child.exitcode or 0  # None: other code has waited for it
    child.close()
    return code


def _run_worker(parent: int, control: socket.socket, number: int, fds: list[int]) -> None:
    control.close()
    torch.set_num_threads(1)
    results.send_by_value()
    connection, work, *slots = fds
    memory = [ResultMemory(fd) for fd in slots]
    serve(socket.socket(fileno=connection), parent, lambda: WorkerSettings.load(work), memory, number)
