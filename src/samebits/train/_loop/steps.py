"""The iterator of a user's `for` statement."""

from __future__ import annotations

import sys
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

import torch

from samebits._context import Position, Words, notify, process
from samebits.data._options import OwnShards
from samebits.determinism._guards import conflicting_settings
from samebits.distributed._shards import ShardedLoop, Shards
from samebits.nn._layer_keys import preserve_call_counts
from samebits.random import _int_keys as int_keys
from samebits.random._global_generator import preserve_rng_state
from samebits.train._boundary_commits import TakeNote
from samebits.train._completeness.completeness import Look
from samebits.train._completeness.wrapped_loops import check_wrappers
from samebits.train._loop.batch_source import BatchSource
from samebits.train._loop.loop_positions import FixedLengthEpochs, Loop, with_epoch_length
from samebits.train._loop.run_parts import RunParts


def save_body(objects: Mapping[str, Any]) -> Callable[[], None]:
    """Notes position and draws of the body around an inner loop; returns a function that restores them."""
    position, generators = process.position, preserve_rng_state()
    layers = preserve_call_counts(thing for thing in objects.values() if isinstance(thing, torch.nn.Module))

    def restore_body() -> None:
        process.position = position
        generators()
        layers()

    return restore_body


@dataclass(frozen=True)
class Step:
    """The position of the loop's body.

    Example:
        >>> samebits.set_random_seed(1)
        >>> with samebits.Run(None) as run:
        ...     for step, batch in run.steps(["x", "y"], epochs=2):
        ...         print(batch, step.number, step.epoch, step.batch_index, step.ends_epoch)
        x 0 0 0 False
        y 1 0 1 True
        x 2 1 0 False
        y 3 1 1 True
    """

    number: int
    """The number of batches before this one in the whole run."""
    epoch: int
    """The number of the epoch, from 0."""
    batch_index: int
    """The number of the batch in its epoch, from 0."""
    ends_epoch: bool
    """True for the epoch's last batch: the place for validation."""
    loop: str
    """The name of the loop, as given to `run.steps(name=)`."""
    shards: int | None = None
    """The number of logical shards of the batch, as given to `run.steps(shards=)`."""


class Steps(Iterator[tuple[Step, Any]]):
    """An iterator of `(step, batch)`; between two, in the outermost loop, the run may be committed."""

    _number = "step.number"

    def __init__(
        self,
        parts: RunParts,
        loader: Iterable[Any],
        epochs: int,
        name: str,
        steps_per_epoch: int | None = None,
        shards: int | None = None,
    ) -> None:
        self._parts = parts
        self._shards = shards
        self._sharded: ShardedLoop | None = None
        self._loader = loader
        self._epochs = epochs
        self._loop = Loop(name)
        self._source: BatchSource | FixedLengthEpochs | None = None
        self._key: Words = (0, 0)
        self._step_key: Words = (0, 0)
        self._steps_per_epoch = steps_per_epoch
        self._over = False

    def __iter__(self) -> Steps:
        return self

    def __next__(self) -> tuple[Step, Any]:
        if self._over:
            raise StopIteration
        parts = self._parts
        parts.check_open("Run.steps")
        parts.preemption.idle = False
        first, frame = self._source is None, sys._getframe(1)
        look = Look(parts.completeness, frame, self._loader, parts.objects, parts.state)
        if first:
            check_wrappers(self, self._number, look)
        if self._source is not None:
            self._source.end_body()
        if self._sharded is not None:
            self._sharded.check_over()
            process.rank_key = ()
        self._advance()
        conflicting_settings.check()
        process.position = None
        loop, loops = self._loop, parts.loops
        position = loop.position(loops.step)
        if self._over:
            self._leave()
            if first:
                parts.notes.begin(look, position, over=True)
            raise StopIteration
        note = partial(parts.notes.take, look)
        outermost, ends = loop is loops.current, self._ended()
        self._note_place(frame)
        source = self._source
        assert source is not None
        if first:
            self._fetch(source.replay, position, note, outermost=outermost)
        notify("boundary", parts.run, position, frame)
        if outermost:
            # of several ranks, one that waits to raise would miss the exchange of the others
            now = ends or parts.preemption.requested is not None or not parts.preemption.single_process
            parts.completeness.boundary(position, look, ends=now)
            if first:
                parts.notes.begin(look, position)
        if ends:
            self._over = True
            if self._sharded is not None:
                parts.close_shards()
            if outermost:
                parts.finish_outermost(loop, position, look)
            else:
                self._finish_inside()
            raise StopIteration
        if not parts.completeness.pending:
            parts.saving.on_boundary(position, over=False, outermost=outermost, note=note)
        batch, loop.ends_epoch = self._fetch(source.next, position, note, outermost=outermost)
        loop.body = loops.step
        if self._sharded is not None:
            self._begin_part(())
            self._sharded.begin_step()
        else:
            parts.begin_body(position, self._step_key, loops.step)
        notify("step_begins", parts.run, position, batch, ends_epoch=loop.ends_epoch)
        step = Step(loops.step, loop.epoch, loop.batch_index, loop.ends_epoch, loop.name, self._shards)
        return step, batch if self._sharded is None else Shards(self._sharded, batch)

    def _begin_part(self, path: tuple[str | int, ...]) -> Words:
        """Sets the keys of a part of the body (before, in, after the shards), and returns its own."""
        process.rank_key = path
        position = self._loop.position(self._parts.loops.step)  # a new object: layers count their calls anew
        self._parts.begin_body(position, self._step_key, position.step)
        return int_keys.fold(self._step_key, position.step, *path)

    def _fetch(
        self, read: Callable[[int, int], Any], position: Position, note: TakeNote, *, outermost: bool
    ) -> Any:
        """Returns what this method of the source reads, which waits for the loader."""
        source, parts = self._source, self._parts
        assert source is not None
        source.set_position(position)
        if outermost and parts.preemption.installed:
            self._loop.waiting = source.state()
        fetched = parts.preemption.fetch(
            partial(read, position.epoch, position.batch_index),
            partial(parts.saving.on_interrupt, position, outermost=outermost, note=note),
        )
        self._loop.waiting = None
        return fetched

    def _finish_inside(self) -> None:
        """Ends a loop in the body of another one, which continues."""
        loops, loop = self._parts.loops, self._loop
        loops.under_way.remove(loop)
        loops.step -= 1
        self._parts.stop_requested = False
        assert loop.restore_body is not None
        loop.restore_body()

    def _set_key(self, key: Words) -> None:
        self._key, self._step_key = key, int_keys.fold(key, "step")

    @abstractmethod
    def _advance(self) -> None:
        """Advances past the batch whose body has just run; the first call finds the place to start from."""

    @abstractmethod
    def _leave(self) -> None:
        """Ends a loop in which `_advance` found no further step."""

    @abstractmethod
    def _note_place(self, frame: FrameType) -> None:
        """Notes the `for` statement that fetches the step."""

    @abstractmethod
    def _ended(self) -> bool:
        """Returns True if the loop ends at this boundary, where its last commit is made."""


class LoopSteps(Steps):
    """The steps of `run.steps`: all epochs of one loop."""

    def _advance(self) -> None:
        loop, loops = self._loop, self._parts.loops
        if self._source is None:
            self._begin()
            return
        loops.next_step(loop)
        loops.step += 1
        loop.advance()

    def _begin(self) -> None:
        parts, loop, loops = self._parts, self._loop, self._parts.loops
        around = loops.innermost
        loop.driver = weakref.ref(self)
        if around is not None:
            loop.restore_body = save_body(parts.objects)
            self._set_key(int_keys.fold(parts.key, loop.name, "inside", around.body))
            self._make_source(inside=Position(loop.name, 0, 0, loops.step))
            loops.step += 1
            loops.under_way.append(loop)
            return
        self._set_key(int_keys.fold(parts.key, loop.name))
        parts.close_shards()  # of a loop that was left by `break`
        own = None
        if self._shards is not None:
            group = parts.saving.ranks.group
            self._sharded = parts.sharded = ShardedLoop(self._shards, group, parts.objects, self._begin_part)
            own = OwnShards(self._shards, self._sharded.rank, self._sharded.world_size)
        source = self._make_source(objects=parts.objects, shards=own)
        if loop.name in loops.done:
            end = loops.done[loop.name]
            self._over = parts.resume_finished(loop, end, self._epochs, "Run.steps")
            if self._over:
                source.continue_after(end.loader)
            else:
                source.load(end.loader, 0)
            return
        saved = parts.begin_outermost(loop, "Run.steps")
        if saved is None:
            return
        parts.resuming.restore_at_loop()
        loop.epoch, loop.batch_index = saved.epoch, saved.batch_index
        source.load(saved.loader, loop.batch_index)
        parts.warn_beyond(loop, self._epochs, loop.epoch, loop.batch_index)

    def _make_source(self, **options: Any) -> BatchSource | FixedLengthEpochs:
        batches = BatchSource(self._loader, self._key, process.overrides.batches_per_epoch, **options)
        self._source = self._loop.source = with_epoch_length(batches, self._steps_per_epoch)
        return self._source

    def _leave(self) -> None:
        self._parts.leave_loop(self._loop.name)

    def _note_place(self, frame: FrameType) -> None:
        self._loop.call_site = id(frame), frame.f_code, frame.f_lasti

    def _ended(self) -> bool:
        return self._loop.epoch >= self._epochs or self._parts.is_stopped(self._parts.loops.step)
