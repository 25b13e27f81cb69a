"""The batches of a `DataLoader`: the elements of each, and the stage that computes them.

The elements are a function of (key, epoch, batch), or of a replayed sampler. Generators follow the position.
Where the code of dataset and collate provably does not draw, nothing is set; see `process_generators`.
"""

from __future__ import annotations

import copy
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from operator import length_hint
from typing import Any, NamedTuple

import torch
import torch.utils.data as torch_data
import xxhash
from torch.utils.data import _utils as torch_utils
from typing_extensions import override

from samebits._context import Words
from samebits._objects import rng_states
from samebits._objects.parts import attributes_of
from samebits.data._calls.own_generators import OwnBlock, OwnGenerators, put_back
from samebits.data._calls.process_generators import fill_each, fill_if_needed, is_filling
from samebits.data._calls.user_function import Function, key_words
from samebits.data._options import OwnBatches
from samebits.data._rolling_digest import update_digest
from samebits.data._stages.stage import INFINITE, Blocks, Dividing, State, place
from samebits.data._workers.results import use_offered_memory
from samebits.errors import PipelineError, PipelineMismatchError, UnimplementedError
from samebits.random import _int_keys as int_keys
from samebits.random._draws import feistel
from samebits.random._process import generator_states

_AT_ONCE = 1024
"""Indices that are permuted by one call, which costs as much as 64 of them."""


class BatchTask(NamedTuple):
    """All that a worker needs to compute one batch, at any time and in any process.

    `key` belongs to (seed, epoch); `first` is the ordinal in the epoch's stream of the first index.
    """

    number: int
    after: int
    """The number of the next batch."""
    key: Words
    first: int
    indices: Any
    shard: int | None = None
    """The logical shard, of a task that is a shard's part of a batch."""
    stride: int = 1
    """The difference of the ordinals of two indices."""

    def of_shard(self, shard: int, rows: range) -> BatchTask:
        own = [self.indices[row] for row in rows]
        return self._replace(first=self.first + shard, indices=own, shard=shard, stride=rows.step)

    @property
    def collate_path(self) -> tuple[str | int, ...]:
        """The path folded into the key of the collate function's draws."""
        return ("collate", self.number, *(() if self.shard is None else ("shard", self.shard)))


@dataclass(frozen=True)
class IndexOrder:
    """Indices in order, or shuffled by a keyed permutation: O(1) memory, and O(1) to start anywhere."""

    length: int
    batch_size: int
    shuffle: bool
    drop_last: bool
    single: bool
    """One bare index per task (torch's `batch_size=None`)."""

    @property
    def batches(self) -> int:
        return len(self)

    def __len__(self) -> int:
        return self.length // self.batch_size if self.drop_last else -(-self.length // self.batch_size)

    def tasks(self, key: Words, epoch: int, start: int) -> Iterator[BatchTask]:
        """Yields the tasks of the epoch's batches from number `start` on; nothing before it is computed."""
        for batch, (first, indices) in zip(
            range(start, len(self)), self._batches_from(key, start), strict=False
        ):
            yield BatchTask(batch, batch + 1, key, first, indices[0] if self.single else indices)

    def _batches_from(self, key: Words, start: int) -> Iterator[tuple[int, list[int]]]:
        order_key = int_keys.fold(key, "order")
        step = max(1, _AT_ONCE // self.batch_size) * self.batch_size
        for begin in range(start * self.batch_size, self.length, step):
            end = min(begin + step, self.length)
            indices = list(range(begin, end))
            if self.shuffle:
                indices = feistel.permute_indices(order_key, begin, end, self.length).tolist()
            for first in range(begin, end, self.batch_size):
                yield first, indices[first - begin : first - begin + self.batch_size]


@dataclass(frozen=True)
class SamplerOrder:
    """A user's sampler or batch sampler; its draws depend on (seed, epoch) alone.

    It runs in the training process. Starting at batch k replays k of its steps, without touching the dataset,
    and compares their indices with those that were given.
    """

    sampler: Iterable[Any]
    single: bool
    replayed: Callable[[], None] | None = None
    """Called once it has been read up to the first batch that is wanted."""
    digests: dict[int, int] = field(default_factory=dict)
    """Of the indices of all batches before one, by its number."""
    batches = INFINITE

    def __getstate__(self) -> None:
        """Returns None: a worker gets tasks, and a sampler need not be one that can be pickled."""

    def __len__(self) -> int:
        try:
            return len(self.sampler)  # type: ignore[arg-type]
        except TypeError:
            raise UnimplementedError(
                f"len(DataLoader): the sampler {type(self.sampler).__name__} has no __len__. Give it one."
            ) from None

    def tasks(self, key: Words, epoch: int, start: int) -> Iterator[BatchTask]:
        """Yields the tasks from number `start` on; the sampler runs through those before it."""
        first, rolled, of_share = 0, 0, int_keys.fold(key, *self._rank_path())
        for batch, indices in enumerate(self._seeded_items(int_keys.fold(key, "sampler"), epoch)):
            indices = indices if self.single else list(indices)  # noqa: PLW2901 (a sampler may reuse its list)
            if batch == start and self.digests.setdefault(batch, rolled) != rolled:
                raise PipelineMismatchError(
                    f"samebits.data.DataLoader: {self._name} gives other indices for the first {batch} "
                    f"batches of epoch {epoch} than it gave when they were read, so that those after them "
                    "would differ. What it draws from (its weights, its list) has changed in the middle of "
                    "the epoch, or the script has. Change it where an epoch ends."
                )
            rolled = _indices_digest(rolled, indices)
            if batch >= start:
                self.digests[batch + 1] = rolled
                yield BatchTask(batch, batch + 1, of_share, first, indices)
            first += 1 if self.single else len(indices)
            if batch + 1 == start and self.replayed is not None:
                self.replayed()

    @property
    def _name(self) -> str:
        is_plain = type(self.sampler) is torch_data.BatchSampler
        return type(self.sampler.sampler if is_plain else self.sampler).__name__  # type: ignore[attr-defined]

    def _rank_path(self) -> tuple[str | int, ...]:
        """Returns the path folded into the elements' keys: each rank counts from 0, and draws its own."""
        for sampler in (self.sampler, getattr(self.sampler, "sampler", None)):
            if getattr(sampler, "num_replicas", 1) > 1:  # DistributedSampler, and others of that kind
                return "rank", getattr(sampler, "rank", 0)
        return ()

    def _seeded_items(self, key: Words, epoch: int) -> Iterator[Any]:
        """Yields the sampler's items; it draws from its own generators, whatever is drawn in between."""
        of_objects = OwnGenerators(self._roots)
        with OwnBlock(), generator_states.preserve_states():
            if of_objects.enter():
                of_objects.set(key)
            self._set_epoch(key, epoch)
            generator_states.fill(key)
            own, states = rng_states.of_process(), of_objects.save()
            items = iter(self.sampler)
        while True:
            with OwnBlock(), generator_states.preserve_states():
                of_objects.enter()
                own.restore()
                put_back(states)
                try:
                    item = next(items)
                except StopIteration:
                    return
                own, states = rng_states.of_process(), of_objects.save()
            yield item

    def _roots(self) -> list[list[tuple[str, Any]]]:
        """Returns what the sampler holds: the search passes over torch's samplers."""
        held = [
            (f"{type(one).__name__}.{name}", part)
            for one in (self.sampler, getattr(self.sampler, "sampler", None))
            for name, part in attributes_of(one).items()
        ]
        return [held, [("sampler", self.sampler)]]

    def _set_epoch(self, key: Words, epoch: int) -> None:
        for sampler in (self.sampler, getattr(self.sampler, "sampler", None)):
            set_epoch = getattr(sampler, "set_epoch", None)
            if callable(set_epoch):
                set_epoch(epoch)
            generator = getattr(sampler, "generator", None)
            if isinstance(generator, torch.Generator) and generator.device.type == "cpu":
                # a generator that continues over epochs would be state; a keyed one is none
                seed = generator.initial_seed()
                generator_states.fill(int_keys.fold(key, "generator", seed), initial_seed=seed)
                generator.set_state(torch.default_generator.get_state())


def _indices_digest(before: int, indices: Any) -> int:
    try:
        return xxhash.xxh3_64_intdigest(array("q", indices if type(indices) is list else [indices]), before)
    except (TypeError, OverflowError):  # other indices than integers
        return update_digest(before, indices)


class LoaderBatches(Dividing, Blocks):
    """The batches of a dataset in an order: the position of a batch is its number.

    Before each `__getitem__` the process's torch, NumPy and Python generators are set from
    (seed, epoch, ordinal in the epoch's stream), before `collate_fn` from (seed, epoch, batch).
    """

    kind = "DataLoader"
    unit = "batch"
    key_path = ()
    describes_in_parts = True
    has_digest = False  # it would be a pass over each batch, which takes up to half of the time to collate it

    def __init__(
        self,
        order: IndexOrder | SamplerOrder,
        dataset: Any,
        functions: tuple[Function, Function],
        parameters: dict[str, Any],
        *,
        single: bool,
        num_workers: int,
        worker_init: Callable[[int], None] | None,
    ) -> None:
        """`functions`: the dataset's, which is called through the dataset, and the collate function."""
        super().__init__(parameters=parameters, functions=functions)
        self.order, self.dataset, self._single = order, dataset, single
        self.read, self.collate = functions
        self._num_workers, self._worker_init = num_workers, worker_init

    @property
    @override
    def length(self) -> int:
        return self.order.batches

    @property
    @override
    def groups(self) -> int:
        return self.length

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
    def begin_at(self, state: State, digest: int) -> None:
        if isinstance(self.order, SamplerOrder):
            self.order.digests.clear()
            if digest:
                self.order.digests[place(state)[0]] = digest

    @override
    def next_digest(self, before: int, after: State) -> int:
        if not isinstance(self.order, SamplerOrder):
            return before
        number, digests = place(after)[0], self.order.digests
        digests.pop(number - 1, None)
        return digests[number]

    @override
    def tasks(self, repetition: int, first: int) -> Iterator[BatchTask]:
        key = int_keys.fold(self.key, "epoch", repetition) if self.counts_epochs else self.key
        tasks = self.order.tasks(key, repetition, first)
        return tasks if self.only is None else (task for task in tasks if task.number in self.only)

    @override
    def compute(self, repetition: int, task: Any) -> list[list[Any]]:
        if self.shards is None:
            return [[self._compute(task)]]
        rows = self.rows_of_shards(len(task.indices))
        numbers = self.shards.numbers
        return [[OwnBatches(self._compute(task.of_shard(*own)) for own in zip(numbers, rows, strict=True))]]

    @override
    def sizes(self) -> list[int]:
        if isinstance(self.order, SamplerOrder):
            return []
        size, rest = self.order.batch_size, self.order.length % self.order.batch_size
        return [size, rest] if rest and not self.order.drop_last else [size]

    def _compute(self, task: BatchTask) -> Any:
        data = self._read(task)
        fill_if_needed(self.collate.own, task.key, *task.collate_path)
        try:
            if self.collate.is_to_check():
                words = int_keys.fold(task.key, *task.collate_path)
                return self.collate.call_checked(data, task.number, words)
            with use_offered_memory(self):
                return self.collate.call(data)
        except Exception as error:
            self._annotate_error(error, task, f"collate_fn ({self.collate.name})")
            raise

    @property
    def _name(self) -> str:
        return type(self.dataset).__name__

    def _read(self, task: BatchTask) -> Any:
        indices = iter([task.indices] if self._single else task.indices)
        try:
            return self._each(indices, task, 1)[0] if self._single else self._elements(task, indices)
        except Exception as error:
            done = 0 if self._single else len(task.indices) - length_hint(indices)
            read = f"[{task.indices if self._single else task.indices[done - 1]!r}]"
            self._annotate_error(
                error, task, f"{self._name}{read if self._single or done else '.__getitems__'}"
            )
            raise

    def _annotate_error(self, error: Exception, task: BatchTask, source: str) -> None:
        """Notes where an error of the user's code was raised: only our frames are between it and the loop."""
        worker = torch_data.get_worker_info()
        where = "" if worker is None else f", in worker {worker.id}"
        place = f"raised by {source}, for batch {task.number} of the epoch{where}"
        if isinstance(error, StopIteration):  # taken for the end of the epoch
            raise PipelineError(
                f"samebits.data.DataLoader: StopIteration, {place}. It would end the epoch: give next() a "
                "default there, or raise another error."
            ) from error
        error.add_note(f"samebits.data.DataLoader: {place}")

    def _elements(self, task: BatchTask, indices: Iterator[Any]) -> Any:
        if getattr(self.dataset, "__getitems__", None):  # torch's protocol: the dataset reads a whole batch
            if self.read.is_to_check():  # all of it where a second call, of a part, would leave something
                whole = bool(self.read.reading.findings)
                checked = self._each(iter([task.indices if whole else task.indices[:1]]), task, 1)
                if whole:
                    return checked[0]
            fill_if_needed(self.read.own, task.key, "element", task.first)
            return self.dataset.__getitems__(task.indices)
        return self._each(indices, task, len(task.indices))

    def _each(self, indices: Iterator[Any], task: BatchTask, count: int) -> list[Any]:
        """Returns the elements; the first of a process that may draw are checked (`call_checked`)."""
        dataset = self.dataset
        if not (self.read.own.enter() or is_filling() or self.read.is_to_check()):
            return [dataset[index] for index in indices]
        places = range(task.first, task.first + count * task.stride, task.stride)
        keys = key_words(int_keys.fold(task.key, "element"), places)
        filled = fill_each(self.read.own if self.read.own.enter() else None, keys)
        elements: list[Any] = []
        for index, _ in zip(indices, filled, strict=False):
            if self.read.is_to_check():
                seed, offset = keys[len(elements)].tolist()
                place = places[len(elements)]
                elements.append(self.read.call_checked(index, place, (seed, offset)))
            else:
                elements.append(dataset[index])
        return elements
