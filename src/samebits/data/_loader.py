"""`DataLoader`: torch's arguments; batch k depends on (dataset, seed, epoch, k) and on nothing else."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

import torch
import torch.utils.data as torch_data

from samebits._context import Position, Words, process
from samebits.data._calls.process_generators import Draws
from samebits.data._loader_batches.batch import BatchWork, draws_of
from samebits.data._loader_batches.batch_order import BatchOrder, BatchTask, IndexOrder, SamplerOrder
from samebits.data._loader_batches.loader_batches import LoaderBatches
from samebits.data._options import Options
from samebits.data._pipeline import Pipeline
from samebits.data._read_position import ReadPosition
from samebits.data._resumable import Resumable
from samebits.data._workers.launch_workers import may_start
from samebits.data._workers.worker_pool import Workers
from samebits.errors import (
    EmptyDatasetError,
    InvalidArgumentError,
    UnimplementedError,
    UnseededError,
)
from samebits.random import _int_keys as int_keys
from samebits.random._process import generator_states, seeds

T_co = TypeVar("T_co", covariant=True)


class DataLoader(Resumable, torch_data.DataLoader[T_co]):
    """A `torch.utils.data.DataLoader` whose batches depend on (dataset, seed, epoch, batch number) alone.

    The arguments are torch's, for any map-style dataset (`__len__` and `__getitem__`). The differences:

    - Shuffling is a keyed permutation of the indices: O(1) memory. Resuming at any batch costs O(1).
    - Before each `__getitem__` the global generators of torch, NumPy and Python are set from
      (seed, epoch, ordinal in the epoch's stream), before `collate_fn` from (seed, epoch, batch). So unmodified
      random transforms give the same bits for any number of workers, and after a resume.
    - Creating or iterating it never moves the caller's generators.
    - `state_dict` / `load_state_dict` at any batch: small, JSON-able, free of worker numbers.

    The seed is `seed`, else the initial seed of `generator`, else that of `samebits.set_random_seed` (or
    `torch.manual_seed`). Two loaders over equally long datasets shuffle in the same order unless their seeds differ.
    Each `iter()` starts the next epoch. Inside the body of a `Run` loop, an iteration of another loader (for
    validation, say) is keyed by the run's position instead, so that it is the same after a resume.

    Raises:
        InvalidArgumentError: an argument is outside its range (as torch's `ValueError`).
        EmptyDatasetError: the dataset has length 0.
        UnimplementedError: an `IterableDataset`, or `in_order=False`.

    Example:
        >>> loader = samebits.data.DataLoader(range(6), batch_size=2, shuffle=True, seed=1)
        >>> batches = iter(loader)
        >>> first, state = next(batches), loader.state_dict()
        >>> list(batches)
        [tensor([3, 5]), tensor([0, 1])]
        >>> loader.load_state_dict(state)  # in another process, perhaps, with other workers
        >>> list(loader)
        [tensor([3, 5]), tensor([0, 1])]
    """

    _domain = "data"

    def __init__(
        self,
        dataset: torch_data.Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: torch_data.Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: torch_data.Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        seed: int | None = None,
        in_order: bool = True,
        **torch_arguments: Any,
    ) -> None:
        _check(dataset, batch_size, num_workers, seed, generator, in_order=in_order)
        try:
            super().__init__(
                dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, collate_fn, pin_memory, drop_last,
                timeout, worker_init_fn, multiprocessing_context, generator, **torch_arguments,
            )  # fmt: skip
        except ValueError as error:
            raise InvalidArgumentError(f"samebits.data.DataLoader(...): {error}") from error
        self._given_seed = seed
        self._shuffle = bool(shuffle)
        self._own_sampler = sampler is not None or batch_sampler is not None
        self._order = self._make_order()
        self._read: tuple[Any, Draws] | None = (
            None  # a collate_fn, and what is known of its draws and the dataset's
        )
        self._workers: Workers | None = None  # those that live from epoch to epoch

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[T_co]:  # type: ignore[override]
        # Compiles the kernel before workers are forked, and checks that it can.
        with generator_states.preserve_states():
            generator_states.fill((0, 0))
        if process.position is not None:
            return self._iter_at(process.position, 0)
        (epoch, state), self._next = self._next, (self._next[0] + 1, None)
        self._live = live = self._iterate(self._key(), epoch).position
        if state is not None:
            live.load_state_dict(state)
        key = int_keys.fold(self._key(), "epoch", live.epoch)
        return _count_batches(live, self._batches(key, live.epoch, live.delivered))

    def _iter_at(self, position: Position, start: int) -> Iterator[T_co]:  # type: ignore[override]
        key = int_keys.fold(self._key(), "inside", position.loop, position.step, *position.inside)
        return self._batches(key, 0, start)

    @property
    def _stage(self) -> LoaderBatches:  # type: ignore[override]
        order = type(self._index_sampler).__name__ if self._own_sampler else f"shuffle={self._shuffle}"
        return LoaderBatches(self._order, self.dataset, self.batch_size, self.drop_last, order)

    @property
    def _options(self) -> Options:  # type: ignore[override]
        return Options(rank=0, world_size=1)

    def _make_order(self) -> BatchOrder:
        single = not self._auto_collation
        if self._own_sampler:
            return SamplerOrder(self._index_sampler, single)
        length = len(self.dataset)  # type: ignore[arg-type]
        return IndexOrder(
            length, 1 if single else (self.batch_size or 1), self._shuffle, self.drop_last, single
        )

    def _batches(self, key: Words, epoch: int, start: int) -> Iterator[T_co]:
        tasks = self._order.tasks(key, epoch, start)
        inner: Iterator[Any]
        if self.num_workers == 0 or not may_start():
            inner = map(self._work().compute_inline, tasks)
        else:
            inner = _BatchPrefetcher(self, tasks)
        if self.pin_memory and torch.accelerator.is_available():
            inner = map(torch_data._utils.pin_memory.pin_memory, inner)
        return inner

    def _work(self) -> BatchWork:
        assert self.collate_fn is not None
        if self._read is None or self._read[0] is not self.collate_fn:
            self._read = self.collate_fn, draws_of(self.dataset, self.collate_fn)
        return BatchWork(
            self.dataset,
            self.collate_fn,
            draws=self._read[1],
            single=not self._auto_collation,
            num_workers=self.num_workers,
            worker_init=self.worker_init_fn,
        )

    def _team(self) -> Workers:
        """Returns the workers of the next iteration."""
        if self._workers is not None:
            self._workers.discard_pending()
            return self._workers
        workers = Workers(
            self._work(),
            count=self.num_workers,
            ahead=self._jobs_ahead,
            timeout=self.timeout or None,
            start_method=_start_method(self.multiprocessing_context),
        )
        if self.persistent_workers:
            self._workers = workers
            weakref.finalize(self, workers.close)
        return workers

    @property
    def _jobs_ahead(self) -> int:
        return self.num_workers * (self.prefetch_factor or 2)

    def _seed(self) -> int:
        if self._given_seed is not None:
            return self._given_seed
        if self.generator is not None:
            return self.generator.initial_seed()
        seed = seeds.root_seed()
        if seed is not None:
            return seed
        if process.op_determinism:
            raise UnseededError(
                "samebits.data.DataLoader needs a seed for its order and its elements, and none is set. "
                "Call samebits.set_random_seed(seed) first, or pass seed=."
            )
        return torch.initial_seed()


class _BatchPrefetcher(Iterator[Any]):
    """The batches of tasks that workers compute ahead of the reader."""

    def __init__(self, loader: DataLoader[Any], tasks: Iterator[BatchTask]) -> None:
        self._workers = loader._team()
        self._over = weakref.finalize(self, self._workers.close if not loader.persistent_workers else int)
        self._tasks = tasks
        self._under_way = deque(map(self._workers.submit, islice(tasks, loader._jobs_ahead)))

    def __next__(self) -> Any:
        if not self._under_way:
            self._over()
            raise StopIteration
        batch = self._workers.result(self._under_way.popleft())
        self._under_way.extend(map(self._workers.submit, islice(self._tasks, 1)))
        return batch


def _start_method(context: Any) -> str:
    """Returns the start method of our workers for a context of `multiprocessing`, or for its name."""
    name = context if context is None or isinstance(context, str) else context.get_start_method()
    return "auto" if name is None else "fork" if name == "fork" else "server"


def _count_batches(live: ReadPosition, inner: Iterator[Any]) -> Iterator[Any]:
    """Yields the batches and moves the position: a batch counts when it is delivered."""
    for live.delivered, batch in enumerate(inner, live.delivered + 1):  # noqa: B020
        live.state = live.delivered
        yield batch
    live.exhausted = True


def _check(
    dataset: Any, batch_size: Any, num_workers: Any, seed: Any, generator: Any, *, in_order: bool
) -> None:
    call = "samebits.data.DataLoader"
    if isinstance(dataset, torch_data.IterableDataset):
        raise UnimplementedError(
            f"{call}: an IterableDataset ({type(dataset).__name__}) has no element numbers that randomness could be "
            "keyed by. Give it __len__ and __getitem__ (a map-style dataset), or read it as a pipeline: "
            "samebits.data.Pipeline.from_iterable(dataset).batch(batch_size)."
        )
    if isinstance(dataset, Pipeline):
        raise InvalidArgumentError(
            f"{call}: the dataset is a Pipeline, which is a loader itself: iterate it, with "
            ".batch(batch_size).with_options(num_parallel_calls=num_workers)."
        )
    for method in ("__len__", "__getitem__"):
        if not hasattr(dataset, method):
            raise InvalidArgumentError(f"{call}: the dataset ({type(dataset).__name__}) has no {method}.")
    if len(dataset) == 0:
        raise EmptyDatasetError(
            f"{call}: the dataset ({type(dataset).__name__}) has length 0. Is its path right?"
        )
    for name, value, least in (
        ("batch_size", batch_size, 1),
        ("num_workers", num_workers, 0),
        ("seed", seed, 0),
    ):
        if value is None and name != "num_workers":
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InvalidArgumentError(f"{call}({name}={value!r}): must be an int of at least {least}.")
    if generator is not None and not isinstance(generator, torch.Generator):
        raise InvalidArgumentError(
            f"{call}(generator={type(generator).__name__}(...)): takes a torch.Generator, whose initial_seed() is the "
            "loader's seed. Pass seed= instead."
        )
    if not in_order:
        raise UnimplementedError(
            f"{call}(in_order=False): batches in order of completion differ from run to run."
        )
