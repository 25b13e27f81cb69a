"""`Run.validate`: the batches of a validation inside the body of a step."""

from __future__ import annotations

import copy
import sys
from collections.abc import Generator, Iterable
from functools import partial
from types import FrameType
from typing import Any

from samebits._context import notify, process
from samebits._program import begins_for
from samebits.distributed._shards import fsdp_modules, in_order, reshard, sum_in_order
from samebits.errors import InvalidArgumentError
from samebits.random import _int_keys as int_keys
from samebits.train._loop.batch_source import BatchSource
from samebits.train._loop.run_parts import RunParts
from samebits.train._loop.steps import save_body
from samebits.train._resume import CarriedValues


class Validation(Iterable[Any]):
    """The batches of a validation; the draws of the step's body before and after it do not depend on it."""

    def __init__(self, parts: RunParts, loader: Iterable[Any], name: str) -> None:
        self._parts = parts
        self._loader = loader
        ranks, self._ended, self._own, self._more = parts.saving.ranks, False, 0, False
        self._every = None if parts.shards is None else (ranks.rank, ranks.world_size)
        at = process.position or parts.loops.position()
        self._first = at._replace(phase="validate", name=name, phase_batch=0)
        self._key = int_keys.fold(parts.key, at.loop, "validate", name, at.step)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def sum(self, values: Iterable[Any]) -> Any:
        """Returns the sum over all batches, added in their order: the same bits on all ranks.

        Under `run.steps(shards=)` each rank validates every W-th batch, and this is the same for any number
        of them. Every rank calls it, after the loop over the batches.

        Args:
            values: one for each batch that this rank read, in their order: numbers, tensors of one element,
                or dicts of them.

        Raises:
            RanksError: a rank has another number of values than batches, or other names.
            InvalidArgumentError: several ranks share batches out in another way than by shards.
        """
        ranks = self._parts.saving.ranks
        if self._every is not None and not self._ended:
            raise InvalidArgumentError(
                "run.validate(...).sum: the loop over the batches was left, and each number of processes "
                "leaves it at other batches. Read it to its end; for a part, give a loader of that part."
            )
        if self._every is None and ranks.world_size > 1:
            raise InvalidArgumentError(
                "run.validate(...).sum: without run.steps(shards=...) each rank reads what its loader gives. "
                "Add "
                'up with run.sum_over_ranks({"loss": ..., "n": ...}).'
            )
        return sum_in_order(self._real(values), None, ranks.group, "run.validate(...).sum")

    def gather(self, values: Iterable[Any]) -> list[dict[str, float]]:
        """Returns the values of all batches, in their order; the arguments are those of `sum`."""
        return in_order(self._real(values), None, self._parts.saving.ranks.group, "run.validate(...).gather")

    def _real(self, values: Iterable[Any]) -> list[Any]:
        """Returns the values of this rank's batches, without that of a body that FSDP2 alone needed."""
        own = list(values)
        return own[:-1] if self._more and len(own) == self._own + 1 else own

    def _others_go_on(self, *, has_next: bool, has_one: bool) -> bool:
        """Returns True if a rank has one more batch: all run a forward then, in which FSDP2 gathers weights.

        Raises `InvalidArgumentError` on all ranks where one never had a batch.
        """
        group = self._parts.saving.ranks.group
        assert group is not None
        goes_on, lacks = group.max_over_ranks([has_next, not has_one], "in run.validate")
        if goes_on and lacks:
            raise InvalidArgumentError(
                "run.validate: with fully_shard all ranks run a forward for each batch, and this loader has "
                f"fewer batches than the {group.world_size} ranks. Make batch_size smaller."
            )
        return bool(goes_on)

    def __iter__(self) -> Generator[Any, None, None]:
        under_way = self._parts.loops.validation
        if under_way is not None:
            raise InvalidArgumentError(
                f"run.validate(name={self._first.name!r}) inside the body of "
                f"run.validate(name={under_way.name!r}). Let the first one end (an iterator of it that was "
                "kept, and not read to its end, needs a close())."
            )
        return self._batches(direct=begins_for(sys._getframe(1)))

    def _batches(self, *, direct: bool) -> Generator[Any, None, None]:
        parts, loops = self._parts, self._parts.loops
        restore_body = save_body(parts.objects)
        source = BatchSource(self._loader, self._key, None, "Run.validate", self._first, every=self._every)
        sharded = fsdp_modules(parts.objects) if self._every is not None else []
        reshard(sharded)
        gathers = bool(sharded) and parts.saving.ranks.group is not None
        copied: list[Any] = []
        self._own, self._more = 0, False
        loops.validation = self._first
        notify("validation_begins", parts.run, self._first)
        try:
            process.position = None
            start, ends = parts.resuming.enter_validation(self._first), False
            is_direct = direct and parts.preemption.installed
            begun = CarriedValues.of_frame(sys._getframe(1), parts.objects, direct=is_direct)
            for number in source.numbers(start):
                position = self._first._replace(phase_batch=number)
                process.position = None
                find_unsaved = (
                    partial(_unsaved_changes, begun, sys._getframe(1), parts) if number > start else None
                )
                commit_or_leave = partial(parts.saving.on_validation_batch, position, find_unsaved)
                commit_or_leave()
                batch, ends = parts.preemption.fetch(partial(source.next, 0, number), commit_or_leave)
                find_unsaved = commit_or_leave = None  # they hold the frame that holds this generator
                if not source.is_own(number):
                    if ends:
                        break
                    continue
                if gathers:
                    self._others_go_on(has_next=True, has_one=True)
                    copied = copied or copy.deepcopy([batch])  # the body may change its own
                parts.begin_body(position, self._key, "batch", number)
                self._own += 1
                yield batch
                if ends:
                    break
            if gathers and self._others_go_on(has_next=False, has_one=bool(copied)):
                self._more = True
                parts.begin_body(position, self._key, "batch", "more")
                yield copied[0]
                self._others_go_on(has_next=False, has_one=bool(copied))
            self._ended = True
        finally:
            source.end_body()
            if loops.validation is self._first:  # otherwise its step ended long ago
                loops.validation = None
                restore_body()


def _unsaved_changes(begun: CarriedValues, frame: FrameType, parts: RunParts) -> list[str]:
    """Returns the names of the values that the loop carries besides those that the run saves."""
    return begun.changes(CarriedValues.of_frame(frame, parts.objects, direct=True))
