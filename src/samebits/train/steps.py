"""The loops of a run, and the iterator that a user's `for` statement drives."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from samebits.context import Position, Words, notify, process
from samebits.determinism import conflicts
from samebits.errors import DuplicateNameError, RunMismatchError
from samebits.random import accounting, words
from samebits.train.source import Source


@dataclass(frozen=True)
class Step:
    """Where the loop's body is. `number` counts the batches of the whole run from 0."""

    number: int
    epoch: int
    batch_index: int
    ends_epoch: bool
    """Whether this is the epoch's last batch: the place for validation."""
    loop: str


@dataclass
class Loop:
    """One named loop: the position of its next batch."""

    name: str
    epoch: int = 0
    batch_index: int = 0
    source: Source | None = None


@dataclass
class Loops:
    """The loops of a run: those that are done, the one under way, the number of the next step."""

    step: int = 0
    done: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Per loop that is over: its next epoch, whether it was stopped before its epochs, and where its loader stands."""
    current: Loop | None = None
    saved: dict[str, Any] | None = None
    """The current loop of the commit that was restored, until that loop has taken it up."""
    _names: list[str] = field(default_factory=list)

    def begin(self, name: str) -> Loop:
        """Registers a loop of the program."""
        if name in self._names:
            raise DuplicateNameError(
                f"Run.steps(name={name!r}): this run already has a loop of that name. Give each loop its own: name=..."
            )
        self._names.append(name)
        return Loop(name)

    def finish(self, *, stopped: bool) -> None:
        """The current loop is done."""
        loop = self.current
        assert loop is not None
        loader = None if loop.source is None else loop.source.finish()
        self.done[loop.name] = {"epoch": loop.epoch, "stopped": stopped, "loader": loader}
        self.current = None

    def position(self) -> Position:
        """The position between two steps."""
        loop = self.current or Loop(next(reversed(self.done), ""))
        return Position(loop.name, loop.epoch, loop.batch_index, self.step)

    def state(self) -> dict[str, Any]:
        """What a commit keeps: plain values (and the states of private generators of a loader)."""
        loop = self.current
        if loop is None:
            return {"step": self.step, "done": dict(self.done), "current": None}
        current: dict[str, Any] = {"name": loop.name, "epoch": loop.epoch, "batch_index": loop.batch_index}
        current["loader"] = None if loop.source is None else loop.source.state()
        return {"step": self.step, "done": dict(self.done), "current": current}

    def load(self, saved: dict[str, Any]) -> None:
        """Takes up a committed state; the loop that it stands in must come next."""
        self.step, self.done, self.saved = saved["step"], dict(saved["done"]), saved["current"]


class Owner(Protocol):
    """What the steps need of the run that they belong to."""

    key: Words
    run_dir: Path | str | None
    _loops: Loops

    @property
    def stop_asked(self) -> bool:
        """Whether this loop is to end."""
        ...

    def restore(self) -> None:
        """Puts the committed state back."""
        ...

    def between(self, position: Position, *, over: bool) -> None:
        """Between two iterations: the place for a commit."""
        ...

    def end_loop(self, loop: str) -> None:
        """The loop is over."""
        ...


class Steps(Iterator[tuple[Step, Any]]):
    """Yields `(step, batch)`; between two of them the run's state is complete and may be committed."""

    def __init__(self, run: Owner, loader: Iterable[Any], epochs: int, loop: Loop) -> None:
        self._run = run
        self._loader = loader
        self._epochs = epochs
        self._loop = loop
        self._source: Source | None = None
        self._key = words.fold(run.key, loop.name)
        self._ends_epoch = False
        self._over = False

    def __iter__(self) -> Steps:
        return self

    def __next__(self) -> tuple[Step, Any]:
        process.position = None
        conflicts.check()
        if self._over:
            raise StopIteration
        self._advance()
        if self._over:
            self._run.end_loop(self._loop.name)
            raise StopIteration
        loop, loops = self._loop, self._run._loops
        position = Position(loop.name, loop.epoch, loop.batch_index, loops.step)
        notify("boundary", self._run, position, sys._getframe(1))
        if self._ended():
            loops.finish(stopped=self._run.stop_asked)
            self._over = True
            self._run.between(position, over=True)
            self._run.end_loop(loop.name)
            raise StopIteration
        self._run.between(position, over=False)
        assert self._source is not None
        batch, self._ends_epoch = self._source.next(loop.epoch, loop.batch_index)
        accounting.begin(words.fold(self._key, "step", loops.step))
        process.position = position
        notify("step_begins", self._run, position, batch, ends_epoch=self._ends_epoch)
        return Step(loops.step, loop.epoch, loop.batch_index, self._ends_epoch, loop.name), batch

    def _advance(self) -> None:
        """Moves behind the batch whose body has just run; the first call finds where to start."""
        loop = self._loop
        if self._source is None:
            self._begin()
            return
        self._run._loops.step += 1
        loop.batch_index += 1
        if self._ends_epoch:
            loop.epoch, loop.batch_index = loop.epoch + 1, 0

    def _begin(self) -> None:
        run, loop = self._run, self._loop
        loops = run._loops
        self._source = loop.source = Source(self._loader, self._key, process.overrides.batches_per_epoch)
        if loop.name in loops.done:
            self._resume_done(loops.done[loop.name])
            return
        if loops.current is not None:  # the loop before was left by `break`
            loops.step += 1
            loops.finish(stopped=True)
            run.end_loop(loop.name)
        loops.current = loop
        if loops.saved is None:
            return
        saved, loops.saved = loops.saved, None
        if saved["name"] != loop.name:
            raise RunMismatchError(
                f"Run.steps(name={loop.name!r}): the commit in {run.run_dir} stands in the loop {saved['name']!r}. "
                "Use another run directory, or the program that made it."
            )
        run.restore()
        loop.epoch, loop.batch_index = saved["epoch"], saved["batch_index"]
        self._source.load(saved["loader"], loop.batch_index)

    def _resume_done(self, end: dict[str, Any]) -> None:
        """The loop was over when the commit was made: it yields nothing, or goes on when more epochs are asked for."""
        run, loop = self._run, self._loop
        loops = run._loops
        assert self._source is not None
        last = loops.saved is None and next(reversed(loops.done)) == loop.name
        self._over = end["stopped"] or end["epoch"] >= self._epochs
        if not self._over and not last:
            raise RunMismatchError(
                f"Run.steps(name={loop.name!r}, epochs={self._epochs}): in {run.run_dir} this loop ended after "
                f"{end['epoch']} epochs, and others followed. Ask for as many, or use another run directory."
            )
        if last:
            run.restore()  # what ran in between (a fresh head, say) was part of the state, or came after it
        self._source.load(end["loader"], 0)
        if not self._over:
            del loops.done[loop.name]
            loops.current, loop.epoch = loop, end["epoch"]

    def _ended(self) -> bool:
        limit = process.overrides.stop_after_steps
        return (
            self._loop.epoch >= self._epochs
            or self._run.stop_asked
            or (limit is not None and self._run._loops.step >= limit)
        )
