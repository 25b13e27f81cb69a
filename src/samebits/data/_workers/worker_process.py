"""The worker's side: computes jobs until its parent closes the connection, and ends with its parent."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import socket
import struct
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import cloudpickle
import torch

from samebits._context import process
from samebits.data._collate import PadCollate, default_collate
from samebits.data._loader_batches import LoaderBatches
from samebits.data._stages.batch import Batch
from samebits.data._stages.stage import Blocks, Task
from samebits.data._workers.results import ResultMemory, encode, offer_memory
from samebits.errors import PipelineError

REQUEST = struct.Struct("qqq")
"""Number of the job, its slot, bytes of the pickled job at the slot's start."""
ANSWER = struct.Struct("q?qqq")
"""Number of the job, True if it failed, bytes used of its slot, offset and bytes of the result in it."""
_PR_SET_PDEATHSIG = 1
_CHECK_INTERVAL = 1.0
"""Seconds between two checks that the parent lives, where the kernel does not notify."""


@dataclass(frozen=True)
class WorkerJob:
    """One task of one of the stages that a pipeline's workers know."""

    stage: int
    repetition: int
    task: Task


class StageWork:
    """The work of workers, tasks of stages: passed to them at their start, and equal in all processes."""

    def __init__(self, stages: Sequence[Blocks], run: Callable[[Callable[[], Any]], Any]) -> None:
        """`run`: returns the result of a task with the generators set as needed, as `Draws.run`."""
        self._stages, self._run = list(stages), run
        self._in_slot = [_collates_in_slot(stage) for stage in stages]

    def begin(self, worker: int) -> None:
        for stage in self._stages:
            stage.begin_worker(worker)

    def compute(self, job: WorkerJob, slot: ResultMemory | None) -> Any:
        """Returns the elements or groups of a task; `slot`, if any, will hold them."""
        stage = self._stages[job.stage]
        in_slot = slot is not None and self._in_slot[job.stage]
        with offer_memory(stage, slot) if in_slot else nullcontext():
            return self._run(lambda: stage.compute(job.repetition, job.task))

    def describe(self, job: WorkerJob) -> str:
        first, end, *_ = job.task
        stage = self._stages[job.stage]
        elements = f"{stage.unit} {first}" if end == first + 1 else f"{stage.unit}s {first} to {end - 1}"
        return f"{elements} of {stage.describe()}"


def serve(
    connection: socket.socket,
    parent: int,
    load: Callable[[], StageWork],
    slots: Sequence[ResultMemory],
    worker: int,
    *,
    by_thread: bool = False,
) -> None:
    """Runs the worker, whose work `load` gives, until the other end of the connection is closed."""
    torch.set_num_threads(1)  # before any op: OpenMP's threads did not survive the fork
    _keep_freed_memory()
    tie_to_parent(parent, by_thread=by_thread)
    process.observers.clear()  # they belong to the parent
    broken: tuple[bool, bytes] | None = None
    try:
        work = load()
        work.begin(worker)
    except BaseException as error:  # every job gets it
        broken = True, pack_error(error)
    while request := _receive(connection):
        number, which, size = REQUEST.unpack(request)
        slot = slots[which]
        job = pickle.loads(slot.read(0, size))  # noqa: S301 (from our parent)
        _send(connection, number, slot, broken or _compute_answer(work, job, slot))


@contextmanager
def block_signals() -> Iterator[None]:
    """Delays SIGTERM and SIGINT until the block ends; processes forked inside begin with them blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def tie_to_parent(parent: int, *, by_thread: bool = False) -> None:
    """Ties this process to `parent`. `by_thread`: the thread that forked it may end before its process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to handle
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    # The kernel watches the thread that forked, not the process.
    if not by_thread:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)
    _ignore_group_sigterm(parent)


def _ignore_group_sigterm(parent: int) -> None:
    """Ends this worker on SIGTERM only if the parent sent it: a group gets it, and the run commits first."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def wait() -> None:
        while os.getppid() == parent:
            received = signal.sigtimedwait({signal.SIGTERM}, _CHECK_INTERVAL)
            if received is not None and received.si_pid == parent:
                os._exit(0)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


class OneThread:
    """Computes with one thread in the block, as a worker does: more threads give a large sum other bits."""

    def __enter__(self) -> None:
        self._threads = torch.get_num_threads()
        _set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        _set_num_threads(self._threads)


def _set_num_threads(count: int) -> None:
    if torch.get_num_threads() != count:  # reading takes 4 us, setting 15
        torch.set_num_threads(count)


def _keep_freed_memory() -> None:
    """Keeps freed memory: arrays of 0.1 to 32 MB come and go with every element; mapping them costs 6 to 8%.

    glibc's M_TRIM_THRESHOLD (-1) and M_MMAP_THRESHOLD (-3); other C libraries are left alone.
    """
    with suppress(OSError, AttributeError):
        allocator = ctypes.CDLL("libc.so.6")
        allocator.mallopt(-3, 32 << 20)
        allocator.mallopt(-1, 256 << 20)


def _receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(REQUEST.size)
    except ConnectionError:
        return b""


def _send(connection: socket.socket, number: int, slot: ResultMemory, answer: tuple[bool, bytes]) -> None:
    failed, pickled = answer
    if failed:
        slot.clear()
    at = slot.write(pickled)
    try:
        connection.send(ANSWER.pack(number, failed, slot.used, at, len(pickled)))
    except ConnectionError:
        os._exit(0)


def _compute_answer(work: StageWork, job: Any, slot: ResultMemory) -> tuple[bool, bytes]:
    slot.clear()
    try:
        result = work.compute(job, slot)
    except BaseException as error:  # a SystemExit too is the caller's, as it is without workers
        return True, pack_error(error)
    try:
        return False, encode(result, slot)
    except Exception as error:
        return True, pack_error(
            PipelineError(
                f"{work.describe(job)}: the result cannot be sent from a worker process "
                f"({type(error).__name__}: {error}). Return arrays, tensors, numbers, strings, and objects "
                "of classes that a module defines, or read without worker processes: num_parallel_calls=0"
            )
        )


def pack_error(error: BaseException) -> bytes:
    """Pickles (the exception, if possible with its cause, or None; it in one line; its traceback as text)."""
    text = "".join(traceback.format_exception(error))
    line = next(traceback.TracebackException.from_exception(error).format_exception_only()).strip()
    pickled = _try_pickle((error, error.__cause__)) or _try_pickle((error, None))
    return pickle.dumps((pickled, line, text))


def unpack_error(packed: Any) -> BaseException:
    """Returns the exception that `pack_error` packed, with the traceback as a note."""
    pickled, line, text = pickle.loads(packed)  # noqa: S301 (from our own child)
    if pickled is None:
        error: BaseException = PipelineError(line)
    else:
        error, error.__cause__ = pickle.loads(pickled)  # noqa: S301
    if pickled is None or error.__cause__ is not None or type(error) is not PipelineError:
        error.add_note(f"In a worker process:\n{text}")  # our own errors say all in one line
    return error


def _try_pickle(value: Any) -> bytes | None:
    try:
        pickled = cloudpickle.dumps(value)
        pickle.loads(pickled)  # noqa: S301 (written two lines above)
    except Exception:
        return None
    return pickled


def _collates_in_slot(stage: Blocks) -> bool:
    """Returns True if results are batches that our collate makes: a collate of the user could keep them."""
    if not isinstance(stage, Batch | LoaderBatches):
        return False
    collate = stage.collate.call
    return collate is default_collate or isinstance(collate, PadCollate)
