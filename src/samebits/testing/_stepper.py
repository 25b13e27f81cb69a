"""Steps of a stateful object, and its cuts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

from samebits._arguments import require
from samebits.errors import InvalidArgumentError
from samebits.random import _int_keys as int_keys
from samebits.random._process import generator_states
from samebits.train._object_states import Stateful

Advance = Callable[[Any, int], Any]
Cut = int | Iterable[int] | Literal["every"]
CALL = "assert_resumes_exactly"
PASSES, CALLS = 2, 20
"""Default number of steps: passes over an iterable, steps of anything else."""
MOST = 1000
"""Number of elements of an iterable above which `steps` is required."""


def check_stateful(thing: Any) -> None:
    """Raises `InvalidArgumentError` when `thing` has no state to save."""
    if not isinstance(thing, Stateful):
        raise InvalidArgumentError(
            f"{CALL}: factory() gave a {type(thing).__name__}, which has no state_dict and load_state_dict. "
            "Give it both; objects that belong together go into one object that has them."
        )


def is_run_function(factory: Callable[..., Any]) -> bool:
    """Returns True if `factory` takes a run directory: it is a whole training run."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # a class written in C
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(p.kind in positional and p.default is p.empty for p in parameters)


def cuts(cut: Cut, steps: int) -> list[int]:
    """Returns the requested cuts, of 0 to `steps`. Raises `InvalidArgumentError` for others."""
    if cut == "every":
        return list(range(steps + 1))
    wanted = [cut] if isinstance(cut, int) else list(cut)
    for at in wanted:
        valid = f"there are {steps} steps; a cut is from 0 to {steps}, or 'every'"
        require(isinstance(at, int) and 0 <= at <= steps, CALL, valid, cut=cut)
    return wanted


class Stepper:
    """One object under test: `step()` advances it and returns the result.

    As in a `Run`, the global generators are a function of the step's number, so that draws from them are
    reproducible, and the caller's are unchanged.
    """

    def __init__(self, thing: Any, advance: Advance | None, start: int = 0) -> None:
        self.thing = thing
        self.pass_ended = False
        """True if a pass over the iterable ended in the last step, before its element."""
        self._number = start
        self._advance = advance or _default_step(thing)

    def step(self) -> Any:
        """Returns the value of the next step. Raises `StopIteration` when there are no more elements."""
        before = self._passes_ended()
        with generator_states.preserve_states():
            generator_states.fill(int_keys.fold(int_keys.root(0), self._number))
            value = self._advance(self.thing, self._number)
        self._number += 1
        self.pass_ended = self._passes_ended() > before
        return value

    def values(self, steps: int | None) -> Iterator[Any]:
        """Yields the values of `steps` steps; None: of two passes over an iterable, else of 20 steps."""
        if steps is None and isinstance(self._advance, _Elements):
            yield from self._two_passes()
            return
        for _ in range(CALLS if steps is None else steps):
            try:
                yield self.step()
            except StopIteration:
                return

    def _passes_ended(self) -> int:
        return self._advance.passes if isinstance(self._advance, _Elements) else 0

    def _two_passes(self) -> Iterator[Any]:
        for _ in range(MOST):
            try:
                value = self.step()
            except StopIteration:
                return
            if self._passes_ended() == PASSES:
                return
            yield value
        raise InvalidArgumentError(
            f"{CALL}: {PASSES} passes over {type(self.thing).__name__} have more than {MOST} elements. "
            "Say how many to compare: steps=."
        )


def _default_step(thing: Any) -> Advance:
    """Returns the step of an object of this kind."""
    if hasattr(thing, "__iter__"):
        return _Elements()
    if callable(getattr(thing, "step", None)):
        return lambda scheduler, _: scheduler.step()
    if hasattr(thing, "__getitem__") and hasattr(thing, "__len__"):
        return lambda dataset, number: dataset[number % len(dataset)]
    raise InvalidArgumentError(
        f"{CALL}: a {type(thing).__name__} is neither iterable nor has it a step(). Define one step: "
        "advance=lambda thing, number: thing.update(data[number])."
    )


class _Elements:
    """A step that reads the next element; after a pass the next one begins, until a pass is empty."""

    def __init__(self) -> None:
        self._iterator: Iterator[Any] | None = None
        self.passes = 0

    def __call__(self, thing: Any, number: int) -> Any:
        for _ in range(2):  # the rest of a resumed pass may be empty
            if self._iterator is None:
                self._iterator = iter(thing)
            try:
                return next(self._iterator)
            except StopIteration:
                self._iterator = None
                self.passes += 1
        raise StopIteration
