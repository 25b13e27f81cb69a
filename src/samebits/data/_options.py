"""The options of reading a pipeline: the seed, a rank's rows of each batch, the device, the workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import torch
import torch.distributed as dist
from torch.utils import _pytree

from samebits._arguments import is_int, require
from samebits._context import notify, process
from samebits.determinism._warn_once import warn_once
from samebits.errors import ConflictError, ConflictWarning, InvalidArgumentError

Remainder = Literal["pad", "drop", "uneven"]
Executor = Literal["auto", "process", "thread"]
StartMethod = Literal["auto", "fork", "server"]
OnConflict = Literal["warn", "raise"]
_CHOICES: dict[str, tuple[str, ...]] = {
    "executor": get_args(Executor),
    "start_method": get_args(StartMethod),
    "on_conflict": get_args(OnConflict),
    "remainder": get_args(Remainder),
}


@dataclass(frozen=True)
class Share:
    """Rows `rank`, `rank + world_size`, ... of each batch.

    Where a batch cannot be shared evenly: "pad" repeats its first rows, so that all ranks get the same
    number; "drop" leaves out its last rows; "uneven" gives some ranks one row more (a batch of fewer rows
    than ranks still gives each rank one).
    """

    rank: int = 0
    world_size: int = 1
    remainder: Remainder = "pad"

    def rows(self, count: int) -> np.ndarray:
        if self.world_size == 1:
            return np.arange(count)
        own = np.arange(self.rank, count, self.world_size)
        if self.remainder == "drop":
            return own[: count // self.world_size]
        if self.remainder == "uneven" and own.size:
            return own
        padded = np.arange(self.rank, -(-count // self.world_size) * self.world_size, self.world_size)
        return padded % count

    def check(self, batch_size: int) -> None:
        """Raises `InvalidArgumentError` if full batches would not be shared evenly."""
        if batch_size % self.world_size and self.remainder != "uneven":
            raise InvalidArgumentError(
                f"Pipeline.batch(batch_size={batch_size}): this is the size of the global batch, and "
                f"{self.world_size} ranks cannot share it evenly; take a multiple of {self.world_size}, or "
                'with_options(remainder="uneven")'
            )


@dataclass(frozen=True)
class OwnShards:
    """The logical shards of a batch that this process computes: `rank`, `rank + world_size`, ... of `count`.

    Shard i is rows i, i + count, ... of each batch, for any number of processes.
    """

    count: int
    rank: int = 0
    world_size: int = 1

    @property
    def numbers(self) -> range:
        return range(self.rank, self.count, self.world_size)

    def rows(self, rows: int, what: str) -> list[range]:
        """Returns the rows of each own shard in a batch of `rows` rows.

        Raises `InvalidArgumentError` for a batch that cannot be shared out; `what` names it.
        """
        if rows % self.count or not rows:
            raise InvalidArgumentError(
                f"run.steps(shards={self.count}): {what} has {rows} rows, which {self.count} shards cannot "
                f"share evenly. Take a batch_size that is a multiple of {self.count}, and drop_last=True (of "
                "a pipeline: batch(..., drop_remainder=True)) where the last batch is smaller."
            )
        return [range(number, rows, self.count) for number in self.numbers]


class OwnBatches(list[Any]):
    """The batches of a process's own shards, in the order of their numbers: one element of a pipeline."""


@dataclass(frozen=True)
class Options:
    """The options of a pipeline; None means not set."""

    seed: int | None = None
    deterministic: bool | None = None
    num_parallel_calls: int | Literal["auto"] | None = None
    executor: Executor | None = None
    on_conflict: OnConflict | None = None
    """Reaction to `deterministic=False` under the switch: "warn" (the default), or "raise"."""
    prefetch: int | Literal["auto"] | None = None
    """Batches (or blocks of elements) that are computed ahead; "auto": two for each worker."""
    timeout: float | None = None
    """Seconds to wait for a batch of a worker."""
    start_method: StartMethod | None = None
    device: str | torch.device | None = None
    pin_memory: bool | None = None
    rank: int | None = None
    world_size: int | None = None
    remainder: Remainder | None = None
    moved_by: Callable[[Any], Any] | None = None
    """Moves elements, in the place of `device` and `pin_memory`."""
    workers_are_counted: bool = False
    """True for a loader: where it is made, an observer learns the number and `samebits verify` sets it."""
    kept_workers: list[Any] | None = None
    """The worker processes (`Workers`) that live on between iterations; None: each iteration has its own."""
    shards: OwnShards | None = None
    """Makes each element the list of the batches of this process's shards; None: an element is a batch."""
    every: tuple[int, int] | None = None
    """(first, step): the numbers of the elements that are computed, of a validation that ranks share."""

    def with_changes(self, **changed: object) -> Options:
        """Returns these options with those that are not None changed; checked."""
        new = replace(self, **{name: value for name, value in changed.items() if value is not None})  # type: ignore[arg-type]
        new._check()
        return new

    def merge(self, other: Options) -> Options:
        """Returns the options of a pipeline made of several: the first that is set wins."""
        mine = {name: value for name, value in vars(self).items() if value is not None}
        return replace(other, **mine)

    def workers(self, cores: int) -> int | Literal["auto"] | None:
        """Returns the number of workers, which an observer learns and `samebits verify` may replace."""
        count = self.num_parallel_calls
        if self.workers_are_counted:
            return count
        notify("workers_wanted", (cores if count == "auto" else count) or 0)
        return count if process.overrides.num_workers is None else process.overrides.num_workers

    def share(self) -> Share:
        """Returns the rows of each batch that this process computes.

        They are as given, else those of torch.distributed, else all.

        Raises:
            InvalidArgumentError: only one of rank and world_size is given, or not 0 <= rank < world_size.
        """
        rank, world_size, remainder = self.rank, self.world_size, self.remainder or "pad"
        if rank is None and world_size is None:
            together = dist.is_available() and dist.is_initialized()
            return Share(dist.get_rank(), dist.get_world_size(), remainder) if together else Share()
        if rank is None or world_size is None or not 0 <= rank < world_size:
            raise InvalidArgumentError(
                f"Pipeline.with_options(rank={rank}, world_size={world_size}): give both, with 0 <= rank < "
                "world_size"
            )
        return Share(rank, world_size, remainder)

    def placement(self) -> Callable[[Any], Any] | None:
        """Returns the object that moves elements to their device; None if none is needed."""
        if self.device is None and not self.pin_memory:
            return self.moved_by
        return Placement(self.device, pin_memory=bool(self.pin_memory))

    def is_ordered(self) -> bool:
        """Returns True if elements come in order: always under the switch, for any `deterministic`.

        Raises:
            ConflictError: `deterministic` is False under the switch, and `on_conflict` is "raise".
        """
        if self.deterministic is not False:
            return True
        if not process.op_determinism:
            return False
        text = (
            "Pipeline: deterministic=False would give elements in order of completion, while op determinism "
            "is on"
        )
        if self.on_conflict == "raise":
            raise ConflictError(
                f"{text}. Leave deterministic out, or call samebits.enable_op_determinism(False)"
            )
        warn_once("pipeline deterministic=False", f"{text}: it is ignored.", ConflictWarning)
        return True

    def _check(self) -> None:
        call, calls = "Pipeline.with_options", self.num_parallel_calls
        fits = calls is None or calls == "auto" or is_int(calls, 0)
        require(
            fits, call, 'must be a number of workers (0: none), "auto", or None', num_parallel_calls=calls
        )
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            *others, last = (f'"{choice}"' for choice in choices)
            fits = value is None or value in choices
            require(fits, call, f"must be {', '.join(others)} or {last}", **{name: value})
        self.placement()
        ahead = self.prefetch
        fits = ahead is None or ahead == "auto" or is_int(ahead, 0)
        require(fits, "Pipeline.prefetch", 'must be a number of batches, or "auto"', buffer_size=ahead)
        fits = self.timeout is None or self.timeout > 0
        require(fits, call, "must be seconds above 0, or None", timeout=self.timeout)


class Placement:
    """Moves the tensors of an element, also those in dicts, lists and tuples; all else stays as it is.

    To CUDA an element goes through pinned memory on a separate stream, so that the copy runs while the device
    still computes the previous step. Nothing is read ahead, so positions do not change.
    """

    def __init__(self, device: str | torch.device | None, *, pin_memory: bool) -> None:
        """Raises `InvalidArgumentError` if there is no such device, or no CUDA to pin memory for."""
        try:
            self._device = None if device is None else torch.device(device)
        except RuntimeError as error:
            raise InvalidArgumentError(
                f'Pipeline.prefetch(device={device!r}): {error}; give "cpu", "cuda" or "cuda:0"'
            ) from None
        self._pin = pin_memory
        self._cuda = self._device is not None and self._device.type == "cuda"
        if (self._cuda or pin_memory) and not torch.cuda.is_available():
            asked = f"prefetch(device={str(device)!r})" if self._cuda else "with_options(pin_memory=True)"
            raise InvalidArgumentError(
                f"Pipeline.{asked}: torch finds no CUDA device here. Leave it out, or check "
                "torch.cuda.is_available() first"
            )

    def __call__(self, element: Any) -> Any:
        """Returns the element on the device, ready for the next work of the current stream."""
        if not self._cuda:
            return self._map(element)
        here = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._copy_stream):
            moved = self._map(element)
        here.wait_stream(self._copy_stream)
        for tensor in _pytree.tree_leaves(moved):
            if isinstance(tensor, torch.Tensor):
                tensor.record_stream(here)  # its memory is not reused before `here` is done with it
        return moved

    @cached_property
    def _copy_stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream(self._device)

    def _map(self, element: Any) -> Any:
        return _pytree.tree_map_only(torch.Tensor, self._to_device, element)

    def _to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        if (self._pin or self._cuda) and tensor.is_cpu:  # what a stage has put on a device stays there
            tensor = tensor.pin_memory()
        return tensor if self._device is None else tensor.to(self._device, non_blocking=self._cuda)
