"""The loops of a run: the finished ones, the nested ones under way, and the number of the next step."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from samebits._arguments import require, require_int
from samebits._context import Position, process
from samebits._program import is_outside_of_body
from samebits.data._resumable import Resumable
from samebits.errors import DuplicateNameError, InvalidArgumentError, RunMismatchError
from samebits.train._committed_state import LoopEnd, LoopPlace, LoopsState
from samebits.train._loop.batch_source import BatchSource, length
from samebits.train._loop.entry_state import EntryState


class FixedLengthEpochs:
    """A source whose epochs have `steps` batches: each continues in the loader where the last one ended.

    The batches of a pass that an epoch leaves come first in the next epoch; the next pass follows them.
    """

    def __init__(self, source: BatchSource, steps: int) -> None:
        self._source = source
        self.steps = steps
        """Batches of an epoch."""
        self._pass = self._batch = 0
        """Position in the loader: number of complete passes, and of batches since."""

    @property
    def rolled(self) -> int:
        """Rolling digest of the batches of the loader's pass, if it keeps one."""
        return self._source.rolled

    @property
    def ordinal(self) -> int | None:
        """The number of the loader among those that the program has made."""
        return self._source.ordinal

    def state(self) -> dict[str, Any]:
        """Returns the state for a commit: the position in the loader, and the loader's own state."""
        state = self._source.state()
        return {"steps": self.steps, "pass": self._pass, "batch": self._batch, "loader": state}

    def load(self, state: dict[str, Any], batch_index: int) -> None:
        """Restores a state; raises `RunMismatchError` in the middle of an epoch of another length."""
        if batch_index and state["steps"] != self.steps:
            raise RunMismatchError(
                f"steps_per_epoch={self.steps}: the commit is in the middle of an epoch of {state['steps']} "
                "steps. Ask for as many, or use another run directory."
            )
        self._pass, self._batch = state["pass"], state["batch"]
        self._source.load(state["loader"], self._batch)

    def continue_after(self, state: dict[str, Any]) -> None:
        """Continues where a loop that is over has ended."""
        self._pass, self._batch = state["pass"], state["batch"]
        self._source.continue_after(state["loader"])

    def set_position(self, position: Position) -> None:
        """Sets the position in the run of the next batch; it matters where a pass begins."""
        if self._batch == 0:
            self._source.set_position(position._replace(batch_index=0))

    def replay(self, epoch: int, batch_index: int) -> None:
        """Reads the loader's pass again up to its next batch, where that is how it resumes."""
        self._source.replay(self._pass, self._batch)

    def next(self, epoch: int, batch_index: int) -> tuple[Any, bool]:
        """Returns the next batch, and True if it is the last one of the epoch of `steps` batches."""
        batch, ends = self._source.next(self._pass, self._batch)
        self._pass, self._batch = (self._pass + 1, 0) if ends else (self._pass, self._batch + 1)
        return batch, batch_index + 1 >= self.steps

    def end_body(self) -> None:
        """Notes that the body of the batch that came last is over."""
        self._source.end_body()

    def leave_epoch(self) -> None:
        """Ends an epoch that may have batches left: they come first in the next one."""

    def finish(self) -> dict[str, Any]:
        """Releases the iterator at the end of the loop; returns the state, which may be inside a pass."""
        state = self.state()
        self._source.finish()
        return state


def with_epoch_length(source: BatchSource, steps_per_epoch: int | None) -> BatchSource | FixedLengthEpochs:
    """Returns `source` with epochs of that many batches; None: with its own."""
    if steps_per_epoch is None:
        return source
    steps = min(steps_per_epoch, source.limit or steps_per_epoch)
    source.limit = None
    return FixedLengthEpochs(source, steps)


def is_endless(loader: Any) -> bool:
    """Returns True for an endless pipeline (`repeat()`), also inside a torch loader; others are unknown."""
    return any(getattr(one, "endless", False) is True for one in (loader, getattr(loader, "dataset", None)))


def epoch_length(loader: Any, steps_per_epoch: int | None) -> int | None:
    """Returns the number of batches of an epoch of `loader`; None if it is unknown before its end."""
    known = [steps_per_epoch or length(loader), process.overrides.batches_per_epoch]
    return min((one for one in known if one is not None), default=None) if known[0] is not None else None


def check_steps(loader: Any, steps: Any, call: str) -> None:
    """Raises unless `steps` is a number of batches that `loader` has, or None for a loader with an end.

    `call` names the argument.
    """
    where, _, name = call.rpartition("(")
    if steps is None:
        if is_endless(loader):
            raise InvalidArgumentError(
                f"{call}=None): the {type(loader).__name__} does not end, and so its first epoch would not. "
                f"Give {name}=N, the number of batches of an epoch."
            )
        return
    require_int(where, **{name: steps})
    known = length(loader)
    if known is not None and steps > known:
        raise InvalidArgumentError(
            f"{call}={steps}): the {type(loader).__name__} has {known} batches. Ask for at most as many; "
            "more epochs read it more often."
        )


@dataclass(eq=False)
class Loop:
    """One named loop: the position of its next batch.

    | event                  | `epoch`, `batch_index`  | `source` has read      | `process.position` |
    |------------------------|-------------------------|------------------------|--------------------|
    | begins                 | of the commit, else 0   | up to this batch       | None               |
    | waits for the batch    | this batch              | it, or not (`waiting`) | None               |
    | the batch's body runs  | this batch              | it                     | this batch         |
    | a boundary (`advance`) | the next one            | up to it               | None               |
    """

    name: str
    """The name, after those of the loops around it: "outer/inner"."""
    by_epoch: bool = False
    """True for a loop of `run.epochs`."""
    epoch: int = 0
    batch_index: int = 0
    ends_epoch: bool = False
    """True if the last batch was its epoch's last."""
    body: int = 0
    """Number of the step whose body runs, or ran last."""
    source: BatchSource | FixedLengthEpochs | None = None
    waiting: Any = None
    """The state of the source of before the batch that it waits for: a signal may commit it meanwhile."""
    driver: weakref.ref[Any] | None = None
    """The iterator of the `for` statement: freed after a `break`, if there is no other reference."""
    call_site: tuple[int, CodeType, int] | None = None
    """The frame (its identity), its code and the instruction that requested the step under way."""
    entered_with: EntryState | None = None
    """The state with which the code of its epoch before the steps began (`run.epochs`)."""
    restore_body: Callable[[], None] | None = None
    """Restores the position in the outer body when a nested loop continues."""

    def position(self, step: int) -> Position:
        return Position(self.name, self.epoch, self.batch_index, step)

    def loader_state(self) -> Any:
        """Returns the state of the loader for a commit of the boundary before the next batch."""
        return self.waiting if self.waiting is not None or self.source is None else self.source.state()

    def advance(self) -> None:
        """Advances the position past the batch whose body has just run."""
        self.batch_index += 1
        if self.ends_epoch:
            self.epoch, self.batch_index = self.epoch + 1, 0

    @property
    def was_left(self) -> bool:
        """Returns True if its body is no longer running: it was left by `break`, or by a return."""
        if self.driver is not None and self.driver() is None:
            return True
        return self.call_site is not None and is_outside_of_body(*self.call_site)


@dataclass
class Loops:
    """The loops of a run: finished, under way, and the number of the next step."""

    step: int = 0
    done: dict[str, LoopEnd] = field(default_factory=dict)
    """The finished outermost loops."""
    under_way: list[Loop] = field(default_factory=list)
    """From the outermost to the innermost."""
    saved: LoopPlace | None = None
    """The outermost loop of the restored commit, until the program's loop has taken over its position."""
    ended_with: EntryState | None = None
    """The state at the end of the last finished loop, with which the code before the next one begins."""
    loaders_before: int = field(default_factory=lambda: Resumable._count)
    """The number of loaders that the process had made before the run."""
    added_in: dict[str, int | None] = field(default_factory=dict)
    """By the name of an object, the epoch in whose body (`run.epochs`) it was added; None: before."""
    validation: Position | None = None
    """Position where the validation under way began."""
    asked: dict[str, int] = field(default_factory=dict)
    """Per loop that the program has made: its number of epochs."""
    _names: set[tuple[str, int, str]] = field(default_factory=set)
    _names_in_step: set[tuple[str, int, str]] = field(default_factory=set)

    @property
    def current(self) -> Loop | None:
        """The outermost loop under way: between two of its steps the state is complete."""
        return self.under_way[0] if self.under_way else None

    @property
    def innermost(self) -> Loop | None:
        return next((loop for loop in reversed(self.under_way) if not loop.was_left), None)

    def name(self, name: str, call: str) -> str:
        """Registers a loop or a validation of the program, and returns its whole name.

        One inside the body of a step is named within that step; the same name comes again in the next.
        """
        require(isinstance(name, str), call, 'a name is a str: name="train"', name=name)
        no_slash = 'a name has no "/", which separates the names of a loop and of one inside it'
        require("/" not in name, call, no_slash, name=name)
        around = self.innermost
        whole = name if around is None else f"{around.name}/{name}"
        loop_of_the_program = around is None and call != "Run.validate"
        step = -1 if loop_of_the_program else self.step if around is None else around.body
        kind = "validation" if call == "Run.validate" else "loop"
        names = self._names if step < 0 else self._names_in_step
        if (whole, step, kind) in names:
            cure = "name=..., with the round in it where a plain loop goes around."
            what = "this run" if loop_of_the_program else "this step"
            raise DuplicateNameError(
                f"{call}(name={name!r}): {what} already has a loop of that name. Give each its own: {cure}"
            )
        names.add((whole, step, kind))
        return whole

    def next_step(self, loop: Loop) -> None:
        """Ends the body of a step of `loop`, and the loops in it that were left unfinished.

        Raises `InvalidArgumentError` when `loop` itself was left that way.
        """
        self.validation = None
        if loop not in self.under_way:
            raise InvalidArgumentError(
                f"Run.steps(name={loop.name!r}) continues, but the step in whose body it began is over: "
                "loops in turn, step by step (zip, next), are not kept apart. Read both loaders in one loop "
                "(a loader that gives pairs, or samebits.data.Pipeline.zip), or let one loop run inside the "
                "body of the other."
            )
        while self.under_way[-1] is not loop:
            self.under_way.pop()
        if len(self.under_way) == 1:
            self._names_in_step.clear()

    def finish(self, *, stopped: bool) -> None:
        loop = self.under_way[0]
        loader, number = None, None
        if loop.source is not None:
            loader, number = loop.source.finish(), loop.source.ordinal
        self.done[loop.name] = LoopEnd(
            epoch=loop.epoch,
            stopped=stopped,
            loader=loader,
            ordinal=None if number is None else number - self.loaders_before,
            by_epoch=loop.by_epoch and loop.source is not None,
        )
        self.under_way.clear()

    @property
    def finished(self) -> bool:
        """True if loops have ended, none is under way, and none of the program's needs another step."""
        if self.under_way or self.saved is not None or not self.done:
            return False
        return all(
            name in self.done and (self.done[name].stopped or self.done[name].epoch >= epochs)
            for name, epochs in self.asked.items()
            if "/" not in name
        )

    @property
    def rolled(self) -> int:
        """The rolling digest of the batches of the outermost loop, if its loader keeps one."""
        return self.current.source.rolled if self.current and self.current.source else 0

    def stop(self) -> Position:
        """Ends the outermost loop, left by `break` after `run.stop()`; returns the next position."""
        assert self.current is not None
        self.step += 1
        self.current.advance()
        position = self.position()
        self.finish(stopped=True)
        return position

    def position(self) -> Position:
        return (self.current or Loop(next(reversed(self.done), ""))).position(self.step)

    def state(self) -> LoopsState:
        loop, current = self.current, None
        if loop is not None:
            current = LoopPlace(
                name=loop.name,
                epoch=loop.epoch,
                batch_index=loop.batch_index,
                by_epoch=loop.by_epoch,
                loader=loop.loader_state(),
                entered_with=loop.entered_with,
                ended_with=self.ended_with,
                anew=sorted(name for name, epoch in self.added_in.items() if epoch is not None),
            )
        return LoopsState(step=self.step, done=dict(self.done), current=current)

    def load(self, saved: LoopsState) -> None:
        """Restores a committed state; its loop must come next."""
        self.step, self.done, self.saved = saved.step, dict(saved.done), saved.current
        self.ended_with = None if self.saved is None else self.saved.ended_with
