"""The loops of a run: those that are over, those under way (one inside the body of the other), the number of the next step."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from samebits._context import Position
from samebits._inspect._program.control_flow import is_outside_of_body
from samebits.errors import DuplicateNameError, InvalidArgumentError
from samebits.train._loop.batch_source import BatchSource
from samebits.train._loop.fixed_length_epochs import Continued


@dataclass(eq=False)
class Loop:
    """One named loop: the position of its next batch."""

    name: str
    """With the names of the loops around it: "outer/inner"."""
    epoch: int = 0
    batch_index: int = 0
    ends_epoch: bool = False
    """Whether the batch that was handed out last was its epoch's last."""
    body: int = 0
    """Number of the step whose body runs, or ran last."""
    source: BatchSource | Continued | None = None
    driver: weakref.ref[Any] | None = None
    """The iterator that the `for` statement holds: gone when the loop was left by `break`, if nobody else holds it."""
    asked_from: tuple[int, CodeType, int] | None = None
    """The frame (its identity), its code and the instruction that asked for the step under way."""
    go_on: Callable[[], None] | None = None
    """Of a loop inside the body of another's step: goes on in that body."""

    def advance(self) -> None:
        """Moves behind the batch whose body has just run."""
        self.batch_index += 1
        if self.ends_epoch:
            self.epoch, self.batch_index = self.epoch + 1, 0

    @property
    def left(self) -> bool:
        """Whether its body is not running any more: it was left by `break`, or by a return."""
        if self.driver is not None and self.driver() is None:
            return True
        return self.asked_from is not None and is_outside_of_body(*self.asked_from)


@dataclass
class Loops:
    """The loops of a run: those that are done, those under way, the number of the next step."""

    step: int = 0
    done: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Per outermost loop that is over: its next epoch, whether it was stopped before its epochs, and where its loader stands."""
    under_way: list[Loop] = field(default_factory=list)
    """From the outermost to the innermost."""
    saved: dict[str, Any] | None = None
    """The outermost loop under way in the commit that was restored, until that loop has taken it up."""
    validation: Position | None = None
    """Where the validation under way began."""
    _names: set[tuple[str, int, str]] = field(default_factory=set)

    @property
    def current(self) -> Loop | None:
        """The outermost loop under way: between two of its steps the state is complete."""
        return self.under_way[0] if self.under_way else None

    @property
    def innermost(self) -> Loop | None:
        """The loop in whose body the program is."""
        return next((loop for loop in reversed(self.under_way) if not loop.left), None)

    def name(self, name: str, call: str) -> str:
        """Registers a loop or a validation of the program, and returns its whole name.

        One inside the body of a step is named within that step; the same name comes again in the next.
        """
        if not isinstance(name, str):
            raise InvalidArgumentError(f'{call}(name={name!r:.60}): a name is a str: name="train".')
        around = self.innermost
        whole = name if around is None else f"{around.name}/{name}"
        if "/" in name:
            raise InvalidArgumentError(
                f'{call}(name={name!r}): a name has no "/", which stands between the names of a loop and of one inside it.'
            )
        loop_of_the_program = around is None and call == "Run.steps"
        step = -1 if loop_of_the_program else self.step if around is None else around.body
        if (whole, step, call) in self._names:
            cure = "name=..., with the round in it where a plain loop goes around."
            what = "this run" if loop_of_the_program else "this step"
            raise DuplicateNameError(
                f"{call}(name={name!r}): {what} already has a loop of that name. Give each its own: {cure}"
            )
        self._names.add((whole, step, call))
        return whole

    def enter(self, loop: Loop) -> None:
        """`loop` begins."""
        self.under_way.append(loop)

    def next_step(self, loop: Loop) -> None:
        """The body of a step of `loop` is over, and with it what was left unfinished inside.

        Raises `InvalidArgumentError` when `loop` itself was left so.
        """
        self.validation = None
        if loop not in self.under_way:
            raise InvalidArgumentError(
                f"Run.steps(name={loop.name!r}) goes on, but the step in whose body it began is over: loops in turn, step "
                "by step (zip, next), are not kept apart. Read both loaders in one loop (a loader that gives pairs, or "
                "samebits.data.Pipeline.zip), or let one loop run inside the body of the other."
            )
        while self.under_way[-1] is not loop:
            self.under_way.pop()
        if len(self.under_way) == 1:
            self._names = {used for used in self._names if used[1] < 0}

    def finish(self, *, stopped: bool) -> None:
        """The outermost loop is over."""
        loop = self.under_way[0]
        loader = None if loop.source is None else loop.source.finish()
        self.done[loop.name] = {"epoch": loop.epoch, "stopped": stopped, "loader": loader}
        self.under_way.clear()

    @property
    def rolled(self) -> int:
        """The rolling digest of the batches of the outermost loop, of loaders that keep one."""
        return self.current.source.rolled if self.current and self.current.source else 0

    def stop(self) -> Position:
        """The outermost loop was left by `break` after `run.stop()`; the position behind the step that ran last."""
        assert self.current is not None
        self.step += 1
        self.current.advance()
        position = self.position()
        self.finish(stopped=True)
        return position

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
