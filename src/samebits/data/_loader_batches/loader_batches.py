"""The batches of a `DataLoader` as a stage: each element and the collate draw from generators set from the position.

Where the code of dataset and collate provably does not draw, nothing is set; see `process_generators`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from operator import length_hint
from typing import Any

import torch.utils.data as torch_data
from torch.utils.data import _utils as torch_utils
from typing_extensions import override

from samebits._context import Words
from samebits.data._calls.process_generators import fill_each, fill_if_needed, is_filling
from samebits.data._calls.user_function import Function, key_words
from samebits.data._loader_batches.batch_order import BatchOrder, BatchTask
from samebits.data._stages.stage import Blocks
from samebits.data._workers.results import use_offered_memory
from samebits.errors import PipelineError
from samebits.random import _int_keys as int_keys


class LoaderBatches(Blocks):
    """The batches of a dataset in an order: the position of a batch is its number.

    Before each `__getitem__` the process's torch, NumPy and Python generators are set from
    (seed, epoch, ordinal in the epoch's stream), before `collate_fn` from (seed, epoch, batch).
    """

    kind = "DataLoader"
    unit = "batch"
    makes_batches = True
    has_digest = False  # it would be a pass over each batch, which takes up to half of the time to collate it

    def __init__(
        self,
        order: BatchOrder,
        dataset: Any,
        functions: tuple[Function, Function],
        parameters: dict[str, Any],
        *,
        single: bool,
        num_workers: int,
        worker_init: Callable[[int], None] | None,
    ) -> None:
        """`functions`: the dataset's, which is called through the dataset, and the collate function."""
        super().__init__()
        self.order, self.dataset, self._single = order, dataset, single
        self.read, self.collate = functions
        self._parameters = parameters
        self._num_workers, self._worker_init = num_workers, worker_init
        self._counts_epochs = True

    @property
    @override
    def length(self) -> int:
        return self.order.batches

    @property
    @override
    def groups(self) -> int:
        return self.length

    @override
    def parameters(self) -> dict[str, Any]:
        return self._parameters

    @override
    def parts(self) -> list[str]:
        return [f"{self.kind}({name}={value})" for name, value in self._parameters.items()]

    @override
    def stage_key(self, key: Words) -> Words:
        return key

    @override
    def keyed_by_position(self) -> LoaderBatches:
        other = copy.copy(self)
        other._counts_epochs = False
        return other

    def with_workers(self, count: int) -> LoaderBatches:
        """Returns the same batches for another number of workers."""
        other = copy.copy(self)
        other._num_workers = count
        return other

    def steps(self, task: Any) -> list[tuple[str, Callable[[], Any]]]:
        """Returns the name and a call of the dataset, and of dataset and collate function, for one batch."""
        collate = f"collate_fn ({self.collate.name})"
        return [(self._name, lambda: self._read(task)), (collate, lambda: self.compute(0, task))]

    @override
    def begin_worker(self, worker: int) -> None:
        torch_utils.worker._worker_info = torch_utils.worker.WorkerInfo(
            id=worker, num_workers=self._num_workers, seed=worker, dataset=self.dataset
        )
        if self._worker_init is not None:
            self._worker_init(worker)

    @override
    def tasks(self, repetition: int, first: int) -> Iterator[BatchTask]:
        key = int_keys.fold(self.key, "epoch", repetition) if self._counts_epochs else self.key
        return self.order.tasks(key, repetition, first)

    @override
    def compute(self, repetition: int, task: Any) -> list[list[Any]]:
        data = self._read(task)
        fill_if_needed(self.collate.own, task.key, "collate", task.number)
        try:
            with use_offered_memory(self):
                return [[self.collate.call(data)]]
        except Exception as error:
            self._annotate_error(error, task, f"collate_fn ({self.collate.name})")
            raise

    @property
    def _name(self) -> str:
        return type(self.dataset).__name__

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
        place = f"raised by {source}, for batch {task.number} of the epoch{where}"
        if isinstance(error, StopIteration):  # taken for the end of the epoch
            raise PipelineError(
                f"samebits.data.DataLoader: StopIteration, {place}. It would end the epoch: give next() a "
                "default there, or raise another error."
            ) from error
        error.add_note(f"samebits.data.DataLoader: {place}")

    def _single_element(self, task: BatchTask) -> Any:
        (element,) = self._each(iter([task.indices]), task, 1)
        return element

    def _elements(self, task: BatchTask, indices: Iterator[Any]) -> Any:
        if getattr(self.dataset, "__getitems__", None):  # torch's protocol: the dataset reads a whole batch
            if not self.read.compared and self._is_filling():
                self._each(iter([task.indices[:1]]), task, 1)
            fill_if_needed(self.read.own, task.key, "element", task.first)
            return self.dataset.__getitems__(task.indices)
        return self._each(indices, task, len(task.indices))

    def _each(self, indices: Iterator[Any], task: BatchTask, count: int) -> list[Any]:
        """Returns the elements; the first ones of a process that may draw are checked (`Function.call_checked`)."""
        dataset = self.dataset
        if not self._is_filling():
            return [dataset[index] for index in indices]
        keys = key_words(int_keys.fold(task.key, "element"), range(task.first, task.first + count))
        filled = fill_each(self.read.own if self.read.own.enter() else None, keys)
        if self.read.compared:
            return [dataset[index] for index, _ in zip(indices, filled, strict=False)]
        elements: list[Any] = []
        for index, _ in zip(indices, filled, strict=False):
            place = len(elements)
            seed, offset = keys[place].tolist()
            elements.append(
                dataset[index]
                if self.read.compared
                else self.read.call_checked(index, task.first + place, (seed, offset))
            )
        return elements

    def _is_filling(self) -> bool:
        return self.read.own.enter() or is_filling()
