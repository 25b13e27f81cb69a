"""The worker's side: computes tasks until its parent closes the connection."""

from __future__ import annotations

import os
import pickle
import signal
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch

from samebits.data.engine.blocks import Task, compute
from samebits.data.engine.codec import encode
from samebits.data.engine.lifetime import live_with
from samebits.data.engine.slots import Slot
from samebits.data.scope import Draws
from samebits.data.stage import Blocks


@dataclass(frozen=True)
class Job:
    """What a worker computes: one task of one of the stages that it knows."""

    stage: int
    repetition: int
    task: Task


@dataclass(frozen=True)
class Answer:
    """What it sends back; the bytes of arrays are the first `used` of the job's slot."""

    number: int
    result: bytes | None
    used: int
    error: tuple[bytes | None, str] | None = None
    """(the pickled exception if it can be pickled, its traceback as text)"""


def serve(
    connection: Connection,
    parent: int,
    stages: Sequence[Blocks],
    slots: Sequence[Slot],
    draws: Draws,
    *,
    by_thread: bool,
) -> None:
    """Runs in the worker's process, until there is nobody at the other end."""
    torch.set_num_threads(1)  # before any op: OpenMP's threads did not survive the fork
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    live_with(parent, by_thread=by_thread)
    while True:
        try:
            while not connection.poll(5):
                if os.getppid() != parent:
                    return
            number, job, slot = pickle.loads(connection.recv_bytes())  # noqa: S301 (from our parent)
            connection.send_bytes(pickle.dumps(_answer(number, job, stages[job.stage], slots[slot], draws)))
        except (EOFError, ConnectionError):
            return


def _answer(number: int, job: Job, stage: Blocks, slot: Slot, draws: Draws) -> Answer:
    slot.clear()
    try:
        computed = draws.run(lambda: compute(stage, job.repetition, job.task))
        return Answer(number, encode(computed, slot), slot.used)
    except Exception as error:
        return Answer(number, None, 0, (_pickled(error), traceback.format_exc()))


def _pickled(error: Exception) -> bytes | None:
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)  # noqa: S301 (what we have just written)
    except Exception:
        return None
    return pickled
