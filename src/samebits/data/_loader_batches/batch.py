"""The computation of one batch: each element and the collate draw from generators set from the position.

Where the code of dataset and collate provably does not draw, nothing is set; see `process_generators`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from operator import length_hint
from typing import Any

import torch.utils.data as torch_data
from torch.utils.data import _utils as torch_utils

from samebits._context import Words
from samebits.data._calls.process_generators import Draws, fill, fill_if_needed, is_filling
from samebits.data._collate.collate import default_collate
from samebits.data._loader_batches.batch_order import BatchTask
from samebits.data._purity import may_draw
from samebits.data._workers.inline import call_on_one_thread
from samebits.data._workers.result_memory import ResultMemory
from samebits.errors import PipelineError
from samebits.random import _int_keys as int_keys


def draws_of(dataset: Any, collate: Callable[[Any], Any]) -> Draws:
    """Returns the draws of dataset and collate, as found by reading their code."""
    read = getattr(dataset, "__getitems__", None) or dataset.__getitem__
    return Draws(may_draw=may_draw(read) or may_draw(collate))


class BatchWork:
    """The work of a `DataLoader` for each task, in its workers or in the training process.

    Before each `__getitem__` the process's torch, NumPy and Python generators are set from
    (seed, epoch, ordinal in the epoch's stream), before `collate_fn` from (seed, epoch, batch); in the training
    process they are restored afterwards.
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
        # A function of the user's could keep what it made.
        self._in_slot = collate is torch_data.default_collate
        self._collate = default_collate if self._in_slot else collate
        self._num_workers, self._worker_init = num_workers, worker_init
        self._draws = draws

    def begin(self, worker: int) -> None:
        """Sets `get_worker_info()` as in torch's workers, and runs the user's `worker_init_fn`."""
        torch_utils.worker._worker_info = torch_utils.worker.WorkerInfo(
            id=worker, num_workers=self._num_workers, seed=worker, dataset=self._dataset
        )
        if self._worker_init is not None:
            self._worker_init(worker)

    def compute(self, job: BatchTask, slot: ResultMemory | None) -> Any:
        """Returns the batch of a task."""
        return self._draws.run(lambda: self._compute(job, slot))

    def _compute(self, job: BatchTask, slot: ResultMemory | None) -> Any:
        data = self._read(job)
        fill_if_needed(job.key, "collate", job.batch_index)
        try:
            with slot.use_for_empty() if slot is not None and self._in_slot else nullcontext():
                return self._collate(data)
        except Exception as error:
            self._annotate_error(
                error, job, f"collate_fn ({getattr(self._collate, '__qualname__', self._collate)})"
            )
            raise

    def compute_inline(self, task: BatchTask) -> Any:
        """Returns the batch of a task, computed in the training process."""
        return call_on_one_thread(self.compute, task, None)

    def describe(self, job: BatchTask) -> str:
        """Returns the name of the batch in messages."""
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
            self._annotate_error(
                error, task, f"{self._name}{read if self._single or done else '.__getitems__'}"
            )
            raise

    def _annotate_error(self, error: Exception, task: BatchTask, source: str) -> None:
        """Adds to an error of the user's code where it was raised: only our frames are between it and the loop."""
        worker = torch_data.get_worker_info()
        where = "" if worker is None else f", in worker {worker.id}"
        place = f"raised by {source}, for batch {task.batch_index} of the epoch{where}"
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
        if getattr(self._dataset, "__getitems__", None):  # torch's protocol: the dataset reads a whole batch
            fill_if_needed(key, task.first)
            return self._dataset.__getitems__(task.indices)
        if not is_filling():
            return [self._dataset[index] for index in indices]
        elements = []
        for ordinal, index in enumerate(indices, task.first):
            fill(int_keys.fold(key, ordinal))
            elements.append(self._dataset[index])
        return elements
