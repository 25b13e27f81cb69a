"""Makes one batch: every element and the collate have random generators of their own, set from the position."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import get_worker_info

from samebits.context import Words
from samebits.data.order import Task
from samebits.random import generators, words

_PR_SET_PDEATHSIG = 1


class BatchMaker:
    """The dataset that torch's machinery sees: item = `Task`, value = the finished batch.

    Before each `__getitem__` the process's torch, NumPy and Python generators are filled from
    (seed, epoch, ordinal in the epoch's stream), before `collate_fn` from (seed, epoch, batch); in the training
    process they are put back where they were.
    """

    def __init__(self, dataset: Any, collate: Callable[[Any], Any], *, single: bool) -> None:
        self.dataset = dataset
        self._collate = collate
        self._single = single

    def __getitem__(self, task: Task) -> Any:
        if get_worker_info() is not None:
            return self._make(task)
        threads = torch.get_num_threads()
        with generators.preserved():
            torch.set_num_threads(1)  # as in a worker: a large sum has other bits with more
            try:
                return self._make(task)
            finally:
                torch.set_num_threads(threads)

    def _make(self, task: Task) -> Any:
        data = self._single_element(task) if self._single else self._elements(task)
        _fill(words.fold(task.key, "collate", task.batch_index))
        return self._collate(data)

    def _single_element(self, task: Task) -> Any:
        _fill(words.fold(task.key, "element", task.first))
        return self.dataset[task.indices]

    def _elements(self, task: Task) -> Any:
        key = words.fold(task.key, "element")
        if getattr(
            self.dataset, "__getitems__", None
        ):  # torch's own protocol: the dataset reads a batch at once
            _fill(words.fold(key, task.first))
            return self.dataset.__getitems__(task.indices)
        elements = []
        for ordinal, index in enumerate(task.indices, task.first):
            _fill(words.fold(key, ordinal))
            elements.append(self.dataset[index])
        return elements


def _fill(key: Words) -> None:
    # torch.initial_seed() inside an element must not tell which worker runs it
    generators.fill(key, initial_seed=key[0] >> 1)


class WorkerInit:
    """Runs in each worker as it starts: it ends with its parent, sees the user's dataset, calls the user's function."""

    def __init__(self, parent: int, user_function: Callable[[int], None] | None) -> None:
        self._parent = parent
        self._user_function = user_function

    def __call__(self, worker: int) -> None:
        """Sets up worker number `worker`; runs in its process."""
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != self._parent:  # it died before the line above
                os._exit(1)
        _outlive_sigterm(self._parent)
        info = get_worker_info()
        assert info is not None
        object.__setattr__(info, "dataset", info.dataset.dataset)  # type: ignore[attr-defined] (slots, frozen)
        if self._user_function is not None:
            self._user_function(worker)


@contextmanager
def sigterm_blocked() -> Iterator[None]:
    """SIGTERM waits until the block is over; processes that are forked inside begin with it blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _outlive_sigterm(parent: int) -> None:
    """SIGTERM ends this worker only when the parent sends it: a whole group is sent it, and the run commits first."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def wait() -> None:
        while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
            pass
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


def finished(batch: Any) -> Any:
    """The collate function for torch's machinery: the batch is finished already."""
    return batch
