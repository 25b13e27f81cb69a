"""The process's generators while elements are made: set for each call, or proven to be left alone.

Setting the generators of torch, NumPy and Python costs 8 to 20 us for each element, so it is not done for functions whose
code was read and cannot draw (`purity`). Such a proof is tried out once, on the first task: if a generator moved all
the same, that task is computed again with the generators set, and so are all later ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

from samebits.context import Words
from samebits.errors import PipelineError, UnseededError
from samebits.random import generators, words

T = TypeVar("T")

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
    # torch.initial_seed() inside an element must not tell which worker runs it
    generators.fill(key, initial_seed=key[0] >> 1)
    if watch is not None:
        watch.begin()


def fill_if_needed(key: Words, *path: int | str) -> None:
    """Sets the generators, by `key` with `path` folded in, unless nothing that follows draws from them."""
    if filling():
        fill(words.fold(key, *path))


class Draws:
    """What is known of a pipeline's functions in this process: whether they draw from the process's generators."""

    def __init__(self, *, may_draw: bool = True) -> None:
        """`may_draw`: False where reading the functions proved that they do not."""
        self._quiet = not may_draw
        self._tried = False
        self._watched = False

    @property
    def settled(self) -> bool:
        """Whether it was read, and tried out, that nothing draws."""
        return self._quiet and self._tried

    def run(self, task: Callable[[], T]) -> T:
        """The result of `task`. The process's generators are afterwards as they were before."""
        if self.settled:
            return _with(False, task)
        with generators.preserved() as before:
            if self._quiet:  # what was only read is tried out once
                self._tried = True
                try:
                    result = _with(False, task)
                except (PipelineError, UnseededError) as error:  # of a pipeline, of a loader
                    if not isinstance(error, UnseededError) and not isinstance(
                        error.__cause__, UnseededError
                    ):
                        raise
                else:
                    if same(before, generators.capture()):
                        return result
                self._quiet = False
            return _with(True, task)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """For what cannot be repeated: functions in the block find their generators set; the caller's are put back.

        So what was only read is tried out with the generators set, and watched: no draw, and later blocks need none.
        """
        if self._quiet and self._watched:
            with _filled(False):
                yield
            return
        with generators.preserved(), _filled(True):
            if not self._quiet:
                yield
                return
            around, _here.watch = _watch(), (watch := _Watch())
            try:
                yield
            finally:
                _here.watch = around
                watch.look()
                self._quiet, self._watched = self._quiet and not watch.drew, True


class _Watch:
    """Whether a generator moves otherwise than by `fill`."""

    def __init__(self) -> None:
        self.drew = False
        self.begin()

    def begin(self) -> None:
        """They have been set."""
        self._before = generators.capture()

    def look(self) -> None:
        """Compares."""
        self.drew = self.drew or not same(self._before, generators.capture())


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


def same(a: generators.GeneratorStates, b: generators.GeneratorStates) -> bool:
    """Whether no generator has moved between two captures."""
    numpy_a, numpy_b = a.numpy["state"], b.numpy["state"]
    return (
        torch.equal(a.torch, b.torch)
        and a.python == b.python
        and numpy_a["pos"] == numpy_b["pos"]
        and (numpy_a["key"] == numpy_b["key"]).all()
        and a.numpy["has_gauss"] == b.numpy["has_gauss"]
    )
