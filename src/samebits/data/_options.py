"""The options of reading a pipeline: the seed, and how it is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from samebits._context import notify, process
from samebits.data._device_placement import Placement
from samebits.data._loader_batches.sharding import Remainder, Share, share
from samebits.determinism._warn_once import warn_once
from samebits.errors import ConflictError, ConflictWarning, InvalidArgumentError

Executor = Literal["auto", "process", "thread"]
StartMethod = Literal["auto", "fork", "server"]
OnConflict = Literal["warn", "raise"]


@dataclass(frozen=True)
class Options:
    """The options of a pipeline; None means not set."""

    seed: int | None = None
    deterministic: bool | None = None
    num_parallel_calls: int | Literal["auto"] | None = None
    executor: Executor | None = None
    on_conflict: OnConflict | None = None
    """Reaction to `deterministic=False` under the switch: "warn" (the default), or "raise"."""
    prefetch: int | None = None
    """Batches (or blocks of elements) that are computed ahead."""
    timeout: float | None = None
    """Seconds to wait for a batch of a worker."""
    start_method: StartMethod | None = None
    device: str | torch.device | None = None
    pin_memory: bool | None = None
    rank: int | None = None
    world_size: int | None = None
    remainder: Remainder | None = None
    kept_workers: list[Any] | None = None
    """The worker processes (`Workers`) that live from one iteration to the next; None: each iteration has its own."""

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
        notify("workers_wanted", (cores if count == "auto" else count) or 0)
        return count if process.overrides.num_workers is None else process.overrides.num_workers

    def share(self) -> Share:
        """Returns the rows of each batch that this process computes."""
        return share(self.rank, self.world_size, self.remainder or "pad")

    def placement(self) -> Callable[[Any], Any] | None:
        """Returns the object that moves elements to their device; None if none is needed."""
        if self.device is None and not self.pin_memory:
            return None
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
        text = "Pipeline: deterministic=False would give elements in order of completion, while op determinism is on"
        if self.on_conflict == "raise":
            raise ConflictError(
                f"{text}. Leave deterministic out, or call samebits.enable_op_determinism(False)"
            )
        warn_once("pipeline deterministic=False", f"{text}: it is ignored.", ConflictWarning)
        return True

    def _check(self) -> None:
        calls = self.num_parallel_calls
        if (
            calls is not None
            and calls != "auto"
            and (isinstance(calls, bool) or not isinstance(calls, int) or calls < 0)
        ):
            raise InvalidArgumentError(
                f'Pipeline: num_parallel_calls={calls!r}; give a number of workers (0: none), "auto", or None'
            )
        if self.executor not in (None, "auto", "process", "thread"):
            raise InvalidArgumentError(
                f'Pipeline: executor={self.executor!r}; give "auto", "process" or "thread"'
            )
        self.placement()
        if self.start_method not in (None, "auto", "fork", "server"):
            raise InvalidArgumentError(
                f'Pipeline: start_method={self.start_method!r}; give "auto", "fork" or "server"'
            )
        if self.on_conflict not in (None, "warn", "raise"):
            raise InvalidArgumentError(f'Pipeline: on_conflict={self.on_conflict!r}; give "warn" or "raise"')
        if self.remainder not in (None, "pad", "drop", "uneven"):
            raise InvalidArgumentError(
                f'Pipeline: remainder={self.remainder!r}; give "pad", "drop" or "uneven"'
            )
        if self.prefetch is not None and self.prefetch < 0:
            raise InvalidArgumentError(f"Pipeline.prefetch(buffer_size={self.prefetch}): at least 0")
        if self.timeout is not None and not self.timeout > 0:
            raise InvalidArgumentError(f"Pipeline: timeout={self.timeout}; give seconds above 0, or None")
