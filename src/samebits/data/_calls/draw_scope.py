"""The process's generators while elements are made: set for each call, or proven to be left alone.

Setting the generators of torch, NumPy and Python costs 8 to 20 us for each element, so it is not done for functions whose
code was read and cannot draw (`purity`). Such a proof is tried out on every task: if a generator moved all the same,
that task is computed again with the generators set, and so are all later ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from samebits._context import Words
from samebits._inspect import rng_states
from samebits._native.lazy_kernel import modules_of_others
from samebits.errors import PipelineError, UnseededError
from samebits.random import _int_keys as int_keys
from samebits.random._process import generator_states

T = TypeVar("T")

CURE = (
    "Then the element that comes first in a process decides for all others there, and other workers, or a resume, give other "
    "elements. Draw outside of what is remembered; draw it once before the pipeline is read, so that all workers find it; or "
    "remember it by what it is drawn from: a parameter `key`, say."
)
_here = threading.local()
"""Of each thread: beside the training thread nobody may set the process's generators."""


def filling() -> bool:
    """Whether the generators are set for each call of a user's function."""
    return getattr(_here, "filling", True)


def fill(key: Words) -> None:
    """Sets the generators for one call."""
    watch = _watch()
    if watch is not None:
        watch.look()
    refill(key)
    if watch is not None:
        watch.begin()


def refill(key: Words) -> None:
    """Sets the generators once more for the same call."""
    # torch.initial_seed() inside an element must not tell which worker runs it
    generator_states.fill(key, initial_seed=key[0] >> 1)


def fill_if_needed(key: Words, *path: int | str) -> None:
    """Sets the generators, by `key` with `path` folded in, unless nothing that follows draws from them."""
    if filling():
        fill(int_keys.fold(key, *path))


class Draws:
    """What is known of a pipeline's functions in this process: whether they draw from the process's generators."""

    def __init__(self, *, may_draw: bool = True) -> None:
        """`may_draw`: False where reading the functions proved that they do not."""
        self._quiet = not may_draw
        self._tried = False

    def run(self, task: Callable[[], T]) -> T:
        """The result of `task`. The process's generators are afterwards as they were before.

        Raises:
            PipelineError: the task drew although reading had shown no draw, and not when it was computed again.
        """
        if not self._quiet:
            with generator_states.preserved():
                return _with(True, task)
        before, modules = rng_states.of_process(), modules_of_others()
        try:
            result = _with(False, task)
        except (PipelineError, UnseededError) as error:  # of a pipeline, of a loader
            if not isinstance(error, UnseededError) and not isinstance(error.__cause__, UnseededError):
                raise
        else:
            if rng_states.of_process() == before:
                return result
        imported = modules_of_others() != modules  # a library may draw when it is imported
        before.restore()
        self._quiet = False
        with generator_states.preserved(), _filled(True), _watched() as watch:
            result = task()
        if not watch.drew and not imported:
            raise PipelineError(
                "a task of the pipeline drew from the process's generators, and not when it was computed again: one of its "
                f"functions remembers what it drew. {CURE}"
            )
        return result

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """For what cannot be repeated: functions in the block find their generators set; the caller's are put back.

        So what was only read is tried out with the generators set, and watched: no draw, and later blocks need none.
        """
        if self._quiet and self._tried:
            with _filled(False):
                yield
            return
        with generator_states.preserved(), _filled(True):
            if not self._quiet:
                yield
                return
            with _watched() as watch:
                yield
            self._quiet, self._tried = not watch.drew, True


class _Watch:
    """Whether a generator moves otherwise than by `fill`."""

    def __init__(self) -> None:
        self.drew = False
        self.begin()

    def begin(self) -> None:
        """They have been set."""
        self._before = rng_states.of_process()

    def look(self) -> None:
        """Compares."""
        self.drew = self.drew or rng_states.of_process() != self._before


@contextmanager
def _watched() -> Iterator[_Watch]:
    """Watches the block's calls of `fill`, and what comes behind the last."""
    around, _here.watch = _watch(), (watch := _Watch())
    try:
        yield watch
    finally:
        _here.watch = around
        watch.look()


def _watch() -> _Watch | None:
    """What watches the calls of `fill` of this thread."""
    return getattr(_here, "watch", None)


@contextmanager
def _filled(value: bool) -> Iterator[None]:
    before, _here.filling = filling(), value
    try:
        yield
    finally:
        _here.filling = before


def without(task: Callable[[], T]) -> T:
    """The result of a task that draws from none of the process's generators, on any thread."""
    return _with(False, task)


def _with(value: bool, task: Callable[[], T]) -> T:
    before, around, _here.filling = filling(), _watch(), value
    _here.watch = None  # a forked worker is no part of what is watched, and `run` puts back what it moves
    try:
        return task()
    finally:
        _here.filling, _here.watch = before, around
