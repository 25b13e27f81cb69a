"""Makes one batch: every element and the collate have random generators of their own, set from the position."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import get_worker_info

from samebits.context import Words
from samebits.data.engine.lifetime import live_with
from samebits.data.order import Task
from samebits.random import generators, words


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
        live_with(self._parent)
        info = get_worker_info()
        assert info is not None
        object.__setattr__(info, "dataset", info.dataset.dataset)  # type: ignore[attr-defined] (slots, frozen)
        if self._user_function is not None:
            self._user_function(worker)


def finished(batch: Any) -> Any:
    """The collate function for torch's machinery: the batch is finished already."""
    return batch
