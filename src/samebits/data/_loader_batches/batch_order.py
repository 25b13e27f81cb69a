"""The elements of each batch of an epoch: a function of (key, epoch, batch), or a sampler of the user replayed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch.utils.data import DistributedSampler

from samebits._context import Words
from samebits._inspect import rng_states
from samebits._inspect.object_parts import attributes_of
from samebits.data._calls.own_generators import OwnBlock, OwnGenerators, put_back
from samebits.data._stages.stage import INFINITE
from samebits.errors import UnimplementedError
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


class BatchOrder(Protocol):
    """The tasks of one epoch, from any batch on."""

    @property
    def batches(self) -> int:
        """Batches of an epoch, or `INFINITE` where only reading tells."""
        ...

    def tasks(self, key: Words, epoch: int, start: int) -> Iterator[BatchTask]:
        """Yields the tasks of the epoch's batches from number `start` on."""
        ...

    def __len__(self) -> int:
        """Returns the number of batches in an epoch."""
        ...


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
        """Batches of an epoch."""
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
        """Yields the ordinal of the first element and the indices of each batch."""
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

    It runs in the training process. Starting at batch k replays k of its steps, without touching the dataset.
    """

    sampler: Iterable[Any]
    single: bool
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
        first, of_share = 0, int_keys.fold(key, *self._rank_path())
        for batch, indices in enumerate(self._seeded_items(int_keys.fold(key, "sampler"), epoch)):
            indices = indices if self.single else list(indices)  # noqa: PLW2901 (a sampler may reuse its list)
            if batch >= start:
                yield BatchTask(batch, batch + 1, of_share, first, indices)
            first += 1 if self.single else len(indices)

    def _rank_path(self) -> tuple[str | int, ...]:
        """Returns what the elements' keys are folded with: each rank counts from 0, and ranks must not draw alike."""
        for sampler in (self.sampler, getattr(self.sampler, "sampler", None)):
            if isinstance(sampler, DistributedSampler) and sampler.num_replicas > 1:
                return "rank", sampler.rank
        return ()

    def _seeded_items(self, key: Words, epoch: int) -> Iterator[Any]:
        """Yields the sampler's items; its draws come from its own generators, unaffected by other draws in between."""
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
