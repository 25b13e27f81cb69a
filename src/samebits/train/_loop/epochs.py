"""`Run.epochs`: a loop over epochs, with a loop over steps in each: for programs with a call per epoch.

A commit falls between two steps of an epoch. Before the first step of an epoch, what the program does at its
beginning is part of the commit; what it does after the last one is part of the next commit. A resumed run
enters the body of its epoch again with the state of the epoch's begin, if the code before the steps may read
it; its own state is restored when the first step is fetched. So that code computes what it did the first
time, without an effect on what was saved, and the code after the steps runs as ever.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any, Self

from samebits._context import notify, process
from samebits._inspect import user_code
from samebits._inspect.user_call import explain_wrong_calls
from samebits.data._resumable import NextEpoch, Resumable
from samebits.determinism._guards import conflicting_settings
from samebits.errors import DuplicateNameError, InvalidArgumentError, RunMismatchError
from samebits.random import _int_keys as int_keys
from samebits.train._committed_state import LoopPlace
from samebits.train._completeness.completeness import Look
from samebits.train._completeness.wrapped_loops import check_wrappers
from samebits.train._loop.batch_source import BatchSource, check_loader, keeps_state
from samebits.train._loop.entry_state import may_read_state
from samebits.train._loop.loop_positions import FixedLengthEpochs, Loop, check_steps, with_epoch_length
from samebits.train._loop.run_parts import RunParts
from samebits.train._loop.steps import Steps
from samebits.train._run_arguments import explain_epoch_steps


class Epoch(int):
    """One epoch of `run.epochs`: the number of the epoch, from 0, which also gives its steps.

    Example:
        >>> samebits.set_random_seed(1)
        >>> with samebits.Run(None) as run:
        ...     for epoch in run.epochs(2):
        ...         for step, batch in epoch.steps(["x", "y"]):
        ...             print(epoch, batch, step.number)
        0 x 0
        0 y 1
        1 x 2
        1 y 3
    """

    _epochs: Epochs

    def __new__(cls, number: int, epochs: Epochs) -> Self:
        made = super().__new__(cls, number)
        made._epochs = epochs
        return made

    @property
    def number(self) -> int:
        """The number of the epoch, from 0: a plain int."""
        return int(self)

    @property
    def run(self) -> Any:
        """The run, for a function that is given only the epoch: `epoch.run.state`, `epoch.run.add`."""
        return self._epochs.parts.run

    @explain_wrong_calls(explain_epoch_steps)
    def steps(self, loader: Iterable[Any], *, steps_per_epoch: int | None = None) -> EpochSteps:
        """Returns an iterator of `(step, batch)` over one pass of the loader, as far as steps are left.

        It may be called in another function: `def train(epoch): for step, (x, y) in epoch.steps(loader):
        ...`. An epoch has one such loop. `break` ends the steps of this epoch; the code after the loop runs.

        Args:
            loader: as for `run.steps`. The same object in each epoch, unless it is a loader or a pipeline of
                samebits, a list, or anything else that keeps no state of its own.
            steps_per_epoch: as for `run.steps`.

        Raises:
            InvalidArgumentError: the epoch is over, or the loader cannot be iterated once per epoch.
            DuplicateNameError: the epoch already has its loop over steps.
        """
        call = "Epoch.steps"
        check_loader(loader, call)
        check_steps(loader, steps_per_epoch, f"{call}(steps_per_epoch")
        self._epochs.check_under_way(self)
        return EpochSteps(self._epochs, loader, steps_per_epoch)


class Epochs(Iterator[Epoch]):
    """An iterator of epochs, the outermost loop of a run."""

    def __init__(self, parts: RunParts, epochs: int, name: str) -> None:
        self.parts = parts
        self.loop = Loop(name, by_epoch=True)
        self.key = int_keys.fold(parts.key, name)
        self.saved: LoopPlace | None = None
        """The place in the commit that the first step restores."""
        self.ran = self.has_steps = False
        """If a step of the epoch has run, and if its loop over steps was made."""
        self._epochs = epochs
        self._epoch: Epoch | None = None
        self._over = False
        self._reads_state: bool | None = None
        self._loader: Any = None
        self._loader_state: Any = None
        """The state of the loader at the end of the loop in the commit, which continues."""
        self._checks = parts.completeness.between_epochs()

    def __iter__(self) -> Epochs:
        return self

    def __next__(self) -> Epoch:
        if self._over:
            raise StopIteration
        parts, loop, loops = self.parts, self.loop, self.parts.loops
        parts.check_open("Run.epochs")
        parts.preemption.idle = False
        first, frame = self._epoch is None, sys._getframe(1)
        look = Look(self._checks, frame, None, parts.objects, parts.state)
        if first:
            check_wrappers(self, "epoch.number", look)
            self._begin()
        else:
            self._end_epoch()
        conflicting_settings.check()
        process.position = None
        position = loop.position(loops.step)
        if first:
            parts.notes.begin(look, position, by_epoch=True, over=self._over)
        if self._over:
            parts.leave_loop(loop.name)
            raise StopIteration
        loop.call_site = id(frame), frame.f_code, frame.f_lasti
        if self.saved is None:
            self._checks.boundary(position, look, ends=True)
        if loop.epoch >= self._epochs or parts.is_stopped(loops.step):
            self._over = True
            notify("boundary", parts.run, position, frame)
            parts.finish_outermost(loop, position, look)
            raise StopIteration
        if not first:
            parts.notes.take(look, position, by_epoch=True)
        self._epoch = Epoch(loop.epoch, self)
        self.outside_of_steps("epoch begins")
        loop.body = loops.step
        if self.saved is None:
            if self._reads_state is None:
                self._reads_state = may_read_state(frame, parts.objects)
            loop.entered_with = parts.saving.entry_state() if self._reads_state else None
        return self._epoch

    def outside_of_steps(self, part: str) -> None:
        """Sets the position and the generators for the code before or after the steps of an epoch."""
        position = self.loop.position(self.parts.loops.step)
        self.parts.begin_body(position, self.key, part, position.epoch)

    def check_under_way(self, epoch: Epoch) -> None:
        """Raises unless the body of `epoch` runs, and has no loop over steps yet."""
        self.parts.check_open("Epoch.steps")
        if epoch is not self._epoch or self._over:
            raise InvalidArgumentError(
                f"Epoch.steps: epoch {epoch} is over. Call it in the body of `for epoch in run.epochs(...)`."
            )
        if self.has_steps:
            raise DuplicateNameError(
                f"Epoch.steps: epoch {epoch} already has its loop over steps. For another loop in the same "
                'epoch: run.steps(loader, name="second"), after the first one.'
            )
        self.has_steps = True

    def begin_steps(
        self, loader: Iterable[Any], steps_per_epoch: int | None
    ) -> BatchSource | FixedLengthEpochs:
        """Restores the run if it resumes in this epoch; returns the source of batches at their beginning."""
        parts, loop = self.parts, self.loop
        source, new = self._source(loader, steps_per_epoch)
        saved, self.saved = self.saved, None
        if saved is not None:
            parts.resuming.restore_at_loop(in_epoch=True)
            loop.batch_index = saved.batch_index
            source.load(saved.loader, loop.batch_index)
        elif isinstance(source, FixedLengthEpochs) or not isinstance(loader, Resumable):
            before = self._loader_state if loop.source is None else loop.source.state()
            if new and before is not None:
                source.load(before, 0)
        else:
            loader._next = NextEpoch(loop.epoch)
        loop.source, self._loader, self._loader_state = source, loader, None
        parts.completeness.begin_epoch()
        return source

    def _source(
        self, loader: Iterable[Any], steps_per_epoch: int | None
    ) -> tuple[BatchSource | FixedLengthEpochs, bool]:
        """Returns the source of an epoch, and True if the epoch before had another."""
        before = self.loop.source
        length = before.steps if isinstance(before, FixedLengthEpochs) else None
        if before is not None and loader is self._loader and length == steps_per_epoch:
            return before, False
        changed = before is not None and loader is not self._loader
        if changed and (keeps_state(loader) or keeps_state(self._loader)):
            raise InvalidArgumentError(
                f"Epoch.steps(loader={type(loader).__name__}): another loader than in the epoch before, and "
                "it keeps a state of its own (a generator, a state_dict), which a resume would lose. Make it "
                "once, before run.epochs; or use samebits.data.DataLoader (same arguments)."
            )
        most, objects = process.overrides.batches_per_epoch, self.parts.objects
        batches = BatchSource(loader, self.key, most, "Epoch.steps", objects=objects)
        return with_epoch_length(batches, steps_per_epoch), True

    def _begin(self) -> None:
        parts, loop, loops = self.parts, self.loop, self.parts.loops
        loop.driver = weakref.ref(self)
        if loop.name in loops.done:
            end = loops.done[loop.name]
            self._over = parts.resume_finished(loop, end, self._epochs, "Run.epochs")
            self._loader_state = end.loader
            if self._over and end.ordinal is not None:  # the next loop may read the same loader
                Resumable._continue_numbered(end.ordinal + loops.loaders_before, _of_pass(end.loader))
            return
        self.saved = parts.begin_outermost(loop, "Run.epochs")
        if self.saved is None:
            return
        loop.epoch = self.saved.epoch
        if loop.epoch >= self._epochs:
            parts.resuming.restore_at_loop()
            loop.batch_index, self.saved = self.saved.batch_index, None
            parts.warn_beyond(loop, self._epochs, loop.epoch, loop.batch_index)
            return
        loop.entered_with = self.saved.entered_with
        parts.resuming.enter(loop.entered_with)

    def _end_epoch(self) -> None:
        """Ends the body of an epoch, whose loop over steps may have been left by `break`."""
        loop, loops = self.loop, self.parts.loops
        if self.saved is not None:
            raise RunMismatchError(
                f"Run.epochs(name={loop.name!r}): the commit in {self.parts.run_dir} is in epoch "
                f"{loop.epoch}, and the program read no step of it (epoch.steps). Use the program that made "
                "the commit, or another run directory."
            )
        if not self.has_steps and loop.epoch == 0:
            user_code.warn(
                "Run.epochs: the first epoch had no loop over epoch.steps(loader), so that no step of it is "
                "committed or resumed. Write `for step, batch in epoch.steps(loader)` in the place of `for "
                "batch in loader`."
            )
        loops.next_step(loop)
        loops.step += self.ran
        if loop.source is not None:
            loop.source.leave_epoch()
        loop.epoch, loop.batch_index, loop.ends_epoch = loop.epoch + 1, 0, False
        self.ran = self.has_steps = False


def _of_pass(state: Any) -> Any:
    """Returns the loader's own state, where epochs have a length of their own, too."""
    return state["loader"] if isinstance(state, dict) and "steps" in state else state


class EpochSteps(Steps):
    """The steps of one epoch: those that are left of it."""

    _number = "step.batch_index"

    def __init__(self, epochs: Epochs, loader: Iterable[Any], steps_per_epoch: int | None) -> None:
        super().__init__(epochs.parts, loader, 1, epochs.loop.name, steps_per_epoch)
        self._of, self._loop = epochs, epochs.loop

    def _advance(self) -> None:
        loop, loops = self._loop, self._parts.loops
        first = self._source is None
        if first:
            self._set_key(self._of.key)
            self._source = self._of.begin_steps(self._loader, self._steps_per_epoch)
        elif not loop.ends_epoch:
            loops.next_step(loop)
        ends = loop.ends_epoch and not first
        if ends or self._parts.is_stopped(loops.step + (not first)):
            self._over = True
            return
        if not first:
            loops.step += 1
            loop.advance()
        self._of.ran = True

    def _leave(self) -> None:
        self._of.outside_of_steps("epoch ends")

    def _note_place(self, frame: FrameType) -> None:
        """Leaves the place of the loop over epochs, in whose body the steps are."""

    def _ended(self) -> bool:
        return False
