"""`DataLoader`: torch's arguments; batch k depends on (dataset, seed, epoch, k) and on nothing else."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
import torch.utils.data as torch_data

from samebits._arguments import require, require_int
from samebits._context import process
from samebits._unseeded import no_seed
from samebits.data._calls.user_function import Function
from samebits.data._collate import default_collate
from samebits.data._loader_batches import IndexOrder, LoaderBatches, SamplerOrder
from samebits.data._options import Options, StartMethod
from samebits.data._pipeline import Pipeline
from samebits.data._resumable import Resumable
from samebits.data._workers.worker_pool import Workers
from samebits.errors import EmptyDatasetError, InvalidArgumentError, UnimplementedError
from samebits.random._process import generator_states, seeds

_TORCHS: Any = torch_data.DataLoader.multiprocessing_context
_ACCELERATE = "accelerate"


class NeverRebuilt:
    """Raises `UnimplementedError` where Accelerate reads the arguments of a loader to build its own.

    That one would shuffle and draw as torch's, and have none of our state. Each function of Accelerate's that
    builds one reads all arguments of the given loader: `multiprocessing_context` is a property in torch.
    """

    @property
    def multiprocessing_context(self) -> Any:
        """Returns the context that loader workers are started with, as torch's property."""
        if str(sys._getframe(1).f_globals.get("__name__")).partition(".")[0] == _ACCELERATE:
            raise UnimplementedError(
                "accelerator.prepare(...) was given a samebits.data.DataLoader, and would build a torch "
                "DataLoader of it, with other batches and without their state. Prepare a DataLoader of torch "
                "with the same arguments: run.steps reads it as this one, and each process its share:\n"
                "    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)\n"
                "    with samebits.Run(..., accelerator=accelerator) as run:\n"
                "        for step, batch in run.steps(loader, epochs=...):"
            )
        return _TORCHS.fget(self)

    @multiprocessing_context.setter
    def multiprocessing_context(self, context: Any) -> None:
        _TORCHS.fset(self, context)


T_co = TypeVar("T_co", covariant=True)


class DataLoader(NeverRebuilt, Resumable, torch_data.DataLoader[T_co]):
    """A `torch.utils.data.DataLoader` whose batches depend on (dataset, seed, epoch, batch number) alone.

    The arguments are torch's, for any map-style dataset (`__len__` and `__getitem__`). The differences:

    - Shuffling is a keyed permutation of the indices: O(1) memory. Resuming at any batch costs O(1).
    - Before each `__getitem__` the global generators of torch, NumPy and Python are set from (seed, epoch,
      ordinal in the epoch's stream), before `collate_fn` from (seed, epoch, batch). So are generators that
      belong to objects which dataset or collate_fn reach (albumentations, MONAI, a dataset's own). So
      unmodified random transforms give the same bits for any number of workers, and after a resume.
    - Creating or iterating it never moves the caller's generators.
    - `state_dict` / `load_state_dict` at any batch: small, JSON-able, free of worker numbers.

    The seed is `seed`, else the initial seed of `generator`, else that of `samebits.set_random_seed` (or
    `torch.manual_seed`). Two loaders over equally long datasets shuffle alike unless their seeds differ. Each
    `iter()` starts the next epoch. Inside the body of a `Run` loop, an iteration of another loader (for
    validation, say) is keyed by the run's position instead, so that it is the same after a resume.

    Raises:
        InvalidArgumentError: an argument is outside its range (as torch's `ValueError`).
        EmptyDatasetError: the dataset has length 0.
        UnimplementedError: an `IterableDataset`, or `in_order=False`.
        PipelineError: (at the first element) it draws from a generator that cannot be set.

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
    _replayed: Callable[[], None] | None = None
    """Called when a sampler of the program's has been read again up to where an epoch resumes."""

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
                dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, collate_fn, pin_memory,
                drop_last, timeout, worker_init_fn, multiprocessing_context, generator, **torch_arguments
            )  # fmt: skip
        except ValueError as error:
            raise InvalidArgumentError(f"samebits.data.DataLoader(...): {error}") from error
        self._given_seed = seed
        self._shuffle = bool(shuffle)
        self._own_sampler = sampler is not None or batch_sampler is not None
        self._called: tuple[Function, Function] | None = None
        self._kept_workers: list[Workers] | None = [] if self.persistent_workers else None
        if self._kept_workers is not None:
            weakref.finalize(self, _end_workers, self._kept_workers)

    def __len__(self) -> int:
        return len(self._order())

    def __iter__(self) -> Iterator[T_co]:  # type: ignore[override]
        # Compiles the kernels before workers are forked, and checks that it can.
        with generator_states.preserve_states():
            generator_states.fill((0, 0))
        return super().__iter__()

    @property
    def _stage(self) -> LoaderBatches:  # type: ignore[override]
        order = type(self._index_sampler).__name__ if self._own_sampler else f"shuffle={self._shuffle}"
        parameters = {
            "dataset": type(self.dataset).__name__, "length": len(self.dataset),  # type: ignore[arg-type]
            "batch_size": self.batch_size, "drop_last": self.drop_last, "order": order
        }  # fmt: skip
        return LoaderBatches(
            self._order(), self.dataset, self._functions(), parameters,
            single=not self._auto_collation, num_workers=self.num_workers, worker_init=self.worker_init_fn
        )  # fmt: skip

    def _functions(self) -> tuple[Function, Function]:
        """Returns the functions of dataset and collate, whose code is read once."""
        # A function of the user's could keep what it made, so it does not write where ours does.
        collate: Any = default_collate if self.collate_fn is torch_data.default_collate else self.collate_fn
        if self._called is None or self._called[1].call is not collate:
            read = getattr(self.dataset, "__getitems__", None) or self.dataset.__getitem__
            self._called = (
                Function(read, LoaderBatches.kind, stateful=False, of=self.dataset),
                Function(collate, LoaderBatches.kind, stateful=False, is_known=collate is default_collate),
            )
        return self._called

    @property
    def _options(self) -> Options:  # type: ignore[override]
        pins = self.pin_memory and torch.accelerator.is_available()
        return Options(
            num_parallel_calls=self.num_workers,
            prefetch=self.num_workers * (self.prefetch_factor or 2) + 1,  # one of them is the next
            timeout=self.timeout or None,
            start_method=_start_method(self.multiprocessing_context),
            moved_by=torch_data._utils.pin_memory.pin_memory if pins else None,
            rank=0,
            world_size=1,
            workers_are_counted=True,
            kept_workers=self._kept_workers,
        )

    def _order(self) -> IndexOrder | SamplerOrder:
        """Returns the order of the next epoch: the dataset may have another length in each."""
        single = not self._auto_collation
        if self._own_sampler:
            return SamplerOrder(self._index_sampler, single, self._replayed)
        length = len(self.dataset)  # type: ignore[arg-type]
        return IndexOrder(
            length, 1 if single else (self.batch_size or 1), self._shuffle, self.drop_last, single
        )

    def _seed(self) -> int:
        if self._given_seed is not None:
            return self._given_seed
        if self.generator is not None:
            return self.generator.initial_seed()
        seed = seeds.root_seed()
        if seed is not None:
            return seed
        if process.op_determinism:
            raise no_seed(
                "samebits.data.DataLoader needs a seed for its order and its elements", instead="pass seed="
            )
        return torch.initial_seed()


def _end_workers(kept: list[Workers]) -> None:
    for workers in kept:
        workers.close()


def _start_method(context: Any) -> StartMethod:
    """Returns the start method of our workers for a context of `multiprocessing`, or for its name."""
    name = context if context is None or isinstance(context, str) else context.get_start_method()
    return "auto" if name is None else "fork" if name == "fork" else "server"


def _check(
    dataset: Any, batch_size: Any, num_workers: Any, seed: Any, generator: Any, *, in_order: bool
) -> None:
    call = "samebits.data.DataLoader"
    if isinstance(dataset, torch_data.IterableDataset):
        raise UnimplementedError(
            f"{call}: an IterableDataset ({type(dataset).__name__}) has no element numbers that randomness "
            "could be keyed by. Give it __len__ and __getitem__ (a map-style dataset), or read it as a "
            "pipeline: samebits.data.Pipeline.from_iterable(dataset).batch(batch_size)."
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
    require_int(call, 0, num_workers=num_workers)
    if batch_size is not None:
        require_int(call, batch_size=batch_size)
    if seed is not None:
        require_int(call, 0, seed=seed)
    wanted = "takes a torch.Generator, whose initial_seed() is the loader's seed. Pass seed= instead"
    require(generator is None or isinstance(generator, torch.Generator), call, wanted, generator=generator)
    if not in_order:
        raise UnimplementedError(
            f"{call}(in_order=False): batches in order of completion differ from run to run."
        )
