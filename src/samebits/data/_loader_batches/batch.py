"""Makes one batch: every element and the collate have random generators of their own, set from the position.

Where reading the code of dataset and collate proves that they do not draw, nothing is set: see `scope`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from operator import length_hint
from typing import Any

import torch.utils.data as torch_data
from torch.utils.data import _utils as torch_utils

from samebits._context import Words
from samebits.data._calls.draw_scope import Draws, fill, fill_if_needed, filling
from samebits.data._collate.collate import default_collate
from samebits.data._loader_batches.batch_order import BatchTask
from samebits.data._purity import may_draw
from samebits.data._workers.inline import one_thread
from samebits.data._workers.result_memory import ResultMemory
from samebits.errors import PipelineError
from samebits.random import _int_keys as int_keys


def draws_of(dataset: Any, collate: Callable[[Any], Any]) -> Draws:
    """What reading the code of both tells of their draws."""
    read = getattr(dataset, "__getitems__", None) or dataset.__getitem__
    return Draws(may_draw=may_draw(read) or may_draw(collate))


class BatchWork:
    """What a `DataLoader` does for each task, in its workers or in the training process.

    Before each `__getitem__` the process's torch, NumPy and Python generators are filled from
    (seed, epoch, ordinal in the epoch's stream), before `collate_fn` from (seed, epoch, batch); in the training
    process they are put back where they were.
    """

    def __init__(
        self,
        dataset: Any,
        collate: Callable[[Any], Any],
        *,
        single: bool,
        num_workers: int,
        worker_init: Callable[[int], None] | None,
        draws: Draws,
    ) -> None:
        self._dataset, self._single = dataset, single
        self._in_slot = (
            collate is torch_data.default_collate
        )  # a function of the user's could keep what it made
        self._collate = default_collate if self._in_slot else collate
        self._num_workers, self._worker_init = num_workers, worker_init
        self._draws = draws

    def begin(self, worker: int) -> None:
        """`get_worker_info()` tells what torch's workers tell, and the user's `worker_init_fn` runs."""
        torch_utils.worker._worker_info = torch_utils.worker.WorkerInfo(
            id=worker, num_workers=self._num_workers, seed=worker, dataset=self._dataset
        )
        if self._worker_init is not None:
            self._worker_init(worker)

    def compute(self, job: BatchTask, slot: ResultMemory | None) -> Any:
        """The batch of a task."""
        return self._draws.run(lambda: self._computed(job, slot))

    def _computed(self, job: BatchTask, slot: ResultMemory | None) -> Any:
        data = self._read(job)
        fill_if_needed(job.key, "collate", job.batch_index)
        try:
            with slot.filled() if slot is not None and self._in_slot else nullcontext():
                return self._collate(data)
        except Exception as error:
            self._tell(error, job, f"collate_fn ({getattr(self._collate, '__qualname__', self._collate)})")
            raise

    def here(self, task: BatchTask) -> Any:
        """The batch of a task, in the training process."""
        return one_thread(self.compute, task, None)

    def describe(self, job: BatchTask) -> str:
        """The batch in messages."""
        return f"batch {job.batch_index} of samebits.data.DataLoader({self._name})"

    @property
    def _name(self) -> str:
        return type(self._dataset).__name__

    def _read(self, task: BatchTask) -> Any:
        indices = iter(() if self._single else task.indices)
        try:
            return self._single_element(task) if self._single else self._elements(task, indices)
        except Exception as error:
            done = 0 if self._single else len(task.indices) - length_hint(indices)
            read = f"[{task.indices if self._single else task.indices[done - 1]!r}]"
            self._tell(error, task, f"{self._name}{read if self._single or done else '.__getitems__'}")
            raise

    def _tell(self, error: Exception, task: BatchTask, what: str) -> None:
        """Notes in an error of the user's code where it comes from. Between it and the loop lie our frames."""
        worker = torch_data.get_worker_info()
        where = "" if worker is None else f", in worker {worker.id}"
        place = f"raised by {what}, for batch {task.batch_index} of the epoch{where}"
        if isinstance(error, StopIteration):  # taken for the end of the epoch
            raise PipelineError(
                f"samebits.data.DataLoader: StopIteration, {place}. It would end the epoch: give next() a "
                "default there, or raise another error."
            ) from error
        error.add_note(f"samebits.data.DataLoader: {place}")

    def _single_element(self, task: BatchTask) -> Any:
        fill_if_needed(task.key, "element", task.first)
        return self._dataset[task.indices]

    def _elements(self, task: BatchTask, indices: Iterator[Any]) -> Any:
        key: Words = int_keys.fold(task.key, "element")
        if getattr(
            self._dataset, "__getitems__", None
        ):  # torch's own protocol: the dataset reads a batch at once
            fill_if_needed(key, task.first)
            return self._dataset.__getitems__(task.indices)
        if not filling():
            return [self._dataset[index] for index in indices]
        elements = []
        for ordinal, index in enumerate(indices, task.first):
            fill(int_keys.fold(key, ordinal))
            elements.append(self._dataset[index])
        return elements
