"""The iterator of a user's `for` statement."""

from __future__ import annotations

import sys
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Literal, Protocol

import torch

from samebits._context import Position, Words, notify, process
from samebits._inspect import user_code
from samebits.determinism._guards import conflicting_settings
from samebits.errors import RunMismatchError
from samebits.nn._layer_keys import preserve_call_counts
from samebits.random import _int_keys as int_keys
from samebits.random._global_generator import preserve_rng_state
from samebits.random._process import draw_counts
from samebits.train._boundary_commits import CommitPolicy, TakeNote
from samebits.train._completeness.commit_notes import CommitNotes
from samebits.train._completeness.completeness import Completeness
from samebits.train._completeness.wrapped_loops import check_wrappers
from samebits.train._loop.batch_source import BatchSource
from samebits.train._loop.loop_positions import FixedLengthEpochs, Loop, Loops, with_epoch_length
from samebits.train._loop.preemption import Preemption
from samebits.train._object_states import RunState, Stateful, check_adapters
from samebits.train._resume import ResumeState


def save_body(objects: Mapping[str, Any]) -> Callable[[], None]:
    """Notes position and draws of the body around an inner loop; returns a function that restores them."""
    position, generators = process.position, preserve_rng_state()
    layers = preserve_call_counts(thing for thing in objects.values() if isinstance(thing, torch.nn.Module))

    def restore_body() -> None:
        process.position = position
        generators()
        layers()

    return restore_body


class RunView(Protocol):
    """A `Run`, as its loops use it."""

    key: Words
    run_dir: Path | str | None
    objects: dict[str, Stateful]
    preemption: Preemption
    _loops: Loops
    _saving: CommitPolicy
    _resuming: ResumeState
    _completeness: Completeness
    _notes: CommitNotes
    _stop_requested: bool
    """True if the loop under way should end."""

    @property
    def state(self) -> RunState:
        """The user's plain values and tensors."""
        ...

    def _check_open(self, call: str) -> None:
        """Raises `InvalidArgumentError` outside the `with` block."""
        ...

    def _end_loop(self, loop: str) -> None:
        """Ends the loop."""
        ...


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


class Steps(Iterator[tuple[Step, Any]]):
    """An iterator of `(step, batch)`; between two, in the outermost loop, the run may be committed."""

    _number = "step.number"

    def __init__(
        self,
        run: RunView,
        loader: Iterable[Any],
        epochs: int,
        name: str,
        steps_per_epoch: int | None = None,
    ) -> None:
        self._run = run
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
        run, loop, loops = self._run, self._loop, self._run._loops
        run._check_open("Run.steps")
        run.preemption.idle = False
        first = self._source is None
        frame = sys._getframe(1)
        look = run._completeness, frame, self._loader, run.objects
        if first:
            check_wrappers(self, self._number, *look)
        if self._source is not None:
            self._source.end_body()
        self._advance()
        conflicting_settings.check()
        if self._over:
            self._leave()
            if first:
                ended = Position(loop.name, loop.epoch, loop.batch_index, loops.step)
                run._notes.begin(*look, run_state=run.state, position=ended, over=True)
            raise StopIteration
        process.position = None
        position = Position(loop.name, loop.epoch, loop.batch_index, loops.step)
        note = partial(run._notes.take, *look)
        outermost, ends = loop is loops.current, self._ended()
        self._note_place(frame)
        if first:
            self._fetch("replay", position, note, outermost=outermost)
        notify("boundary", run, position, frame)
        if outermost:
            # of several ranks, one that waits to raise would miss the exchange of the others
            now = ends or run.preemption.requested is not None or not run.preemption.single_process
            run._completeness.boundary(position, frame, run.objects, run.state, self._loader, ends=now)
            if first:
                run._notes.begin(*look, run_state=run.state, position=position)
        if ends:
            self._over = True
            self._finish(position, frame, note, outermost=outermost)
            raise StopIteration
        if not run._completeness.pending:
            run._saving.on_boundary(position, over=False, outermost=outermost, note=note)
        batch, loop.ends_epoch = self._fetch("next", position, note, outermost=outermost)
        draw_counts.begin(int_keys.fold(self._step_key, loops.step, *process.rank_key))
        process.position = position
        loop.body = loops.step
        notify("step_begins", run, position, batch, ends_epoch=loop.ends_epoch)
        return Step(loops.step, loop.epoch, loop.batch_index, loop.ends_epoch, loop.name), batch

    def _fetch(
        self, what: Literal["replay", "next"], position: Position, note: TakeNote, *, outermost: bool
    ) -> Any:
        """Calls this method of the source, which waits for the loader."""
        source = self._source
        assert source is not None
        source.set_position(position)
        preemption = self._run.preemption
        if preemption.installed:
            source.hold()
        fetched = preemption.fetch(
            partial(getattr(source, what), position.epoch, position.batch_index),
            partial(self._run._saving.on_interrupt, position, outermost=outermost, note=note),
        )
        source.release()
        return fetched

    def _finish(self, position: Position, frame: FrameType, note: TakeNote, *, outermost: bool) -> None:
        run, loop, loops = self._run, self._loop, self._run._loops
        if outermost:
            loops.finish(stopped=run._stop_requested)
            run._notes.end(run._completeness, frame, loop.name)
            run._saving.on_boundary(position, over=True, outermost=True, note=note)
            loops.ended_with = run._saving.entry_state()
            run._end_loop(loop.name)
            run.preemption.idle = True
        else:
            loops.under_way.remove(loop)
            loops.step -= 1  # the body around it continues
            run._stop_requested = False
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
        loop, loops = self._loop, self._run._loops
        if self._source is None:
            self._begin()
            return
        loops.next_step(loop)
        loops.step += 1
        loop.advance()

    def _begin(self) -> None:
        run, loop = self._run, self._loop
        loops, limit = run._loops, process.overrides.batches_per_epoch
        around = loops.innermost
        loop.driver = weakref.ref(self)
        if around is not None:
            loop.restore_body = save_body(run.objects)
            self._set_key(int_keys.fold(run.key, loop.name, "inside", around.body))
            here = Position(loop.name, 0, 0, loops.step)
            self._source = loop.source = with_epoch_length(
                BatchSource(self._loader, self._key, limit, "Run.steps", here), self._steps_per_epoch
            )
            loops.step += 1
            loops.under_way.append(loop)
            return
        self._set_key(int_keys.fold(run.key, loop.name))
        self._source = loop.source = with_epoch_length(
            BatchSource(self._loader, self._key, limit, objects=run.objects), self._steps_per_epoch
        )
        if loop.name in loops.done:
            run._saving.note_objects(run._resuming.made)
            end = loops.done[loop.name]
            self._over = resume_finished(run, loop, end, self._epochs, "Run.steps")
            if self._over:
                self._source.continue_after(end["loader"])
            else:
                self._source.load(end["loader"], 0)
            return
        saved = begin_outermost(run, loop, f"Run.steps(name={loop.name!r})", by_epoch=False)
        if saved is None:
            return
        run._resuming.restore_at_loop()
        loop.epoch, loop.batch_index = saved["epoch"], saved["batch_index"]
        self._source.load(saved["loader"], loop.batch_index)
        warn_beyond(run, loop, self._epochs, loop.epoch, loop.batch_index)

    def _leave(self) -> None:
        self._run._end_loop(self._loop.name)
        self._run.preemption.idle = True

    def _note_place(self, frame: FrameType) -> None:
        self._loop.call_site = id(frame), frame.f_code, frame.f_lasti

    def _ended(self) -> bool:
        run = self._run
        return self._loop.epoch >= self._epochs or run._stop_requested or reaches_limit(run._loops.step)


def reaches_limit(step: int) -> bool:
    """Returns True if the process is to stop before this step (`samebits verify --steps`)."""
    limit = process.overrides.stop_after_steps
    return limit is not None and step >= limit


def begin_outermost(run: RunView, loop: Loop, call: str, *, by_epoch: bool) -> dict[str, Any] | None:
    """Begins an outermost loop; returns its place in the commit from which the run resumes, if it is in it.

    `by_epoch`: a loop of `run.epochs`.
    """
    loops = run._loops
    check_adapters(run.objects)
    run._saving.note_objects(run._resuming.made)
    if loops.current is not None:  # the loop before was left by `break`
        loops.step += 1
        loops.finish(stopped=True)
        loops.ended_with = None
        run._end_loop(loop.name)
    loops.under_way.append(loop)
    saved, loops.saved = loops.saved, None
    if saved is None:
        return None
    if (saved["name"], saved.get("by_epoch", False)) != (loop.name, by_epoch):
        made = " of run.epochs" if saved.get("by_epoch") else ""
        raise RunMismatchError(
            f"{call}: the commit in {run.run_dir} is in the loop {saved['name']!r}{made}. "
            "Use another run directory, or the program that made it."
        )
    return saved


def resume_finished(run: RunView, loop: Loop, end: dict[str, Any], epochs: int, call: str) -> bool:
    """Restores a run whose commit has the loop's end; returns True if it is over, else begins it again."""
    loops = run._loops
    last = loops.saved is None and next(reversed(loops.done)) == loop.name
    over = end["stopped"] or end["epoch"] >= epochs
    if not over and not last:
        raise RunMismatchError(
            f"{call}(name={loop.name!r}, epochs={epochs}): in {run.run_dir} this loop ended after "
            f"{end['epoch']} epochs, and others followed. Ask for as many, or use another run directory."
        )
    if next(reversed(loops.done)) == loop.name and loops.saved is not None:
        run._resuming.enter(loops.ended_with)  # the code behind it runs again
    if last:
        run._resuming.restore_at_loop()  # changes before it (a fresh head, say) were part of the state
    if not end["stopped"]:
        warn_beyond(run, loop, epochs, end["epoch"], 0)
    if not over:
        del loops.done[loop.name]
        loops.under_way.append(loop)
        loop.epoch = end["epoch"]
    return over


def warn_beyond(run: RunView, loop: Loop, epochs: int, epoch: int, batch_index: int) -> None:
    """Warns of a run that has more epochs than the program asks for."""
    if (epoch, batch_index) > (epochs, 0):
        user_code.warn(
            f"Run.steps(name={loop.name!r}, epochs={epochs}): the run in {run.run_dir} is in epoch {epoch} "
            f"already (batch {batch_index}), and stays there: these are not the weights of {epochs} epochs. "
            "Use another run directory for them.",
        )
