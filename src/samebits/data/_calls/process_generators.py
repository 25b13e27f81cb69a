"""The process's generators while elements are computed: set for each call, or proven to be untouched.

Setting the generators of torch, NumPy and Python costs time (docs/how-to/pipelines.md), so it is not done
for functions whose code was read and cannot draw (`purity`). Such a proof is checked on every task: if a
generator moved all the same, that task is computed again with the generators set, and so are all later ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import repeat
from typing import Any, TypeVar

import numpy as np

from samebits._context import Words
from samebits._native import imported_by_others
from samebits._objects import rng_states
from samebits.data._calls.own_generators import OwnBlock, OwnGenerators, no_block
from samebits.errors import PipelineError, UnseededError
from samebits.random import _int_keys as int_keys
from samebits.random._process import generator_states

T = TypeVar("T")

CURE = (
    "Then the element that is first in a process determines all others in it, and other workers, or a "
    "resume, give other elements. Draw outside of the cached code; draw it once before the pipeline is read, "
    "so that all workers have it; or remember it by its origin: a parameter `key`, say."
)


class _Watch:
    """Checks if a generator moves otherwise than by `fill`."""

    def __init__(self) -> None:
        self.drew = False
        self.begin()

    def begin(self) -> None:
        """Notes the states after the generators were set."""
        self._before = rng_states.of_process()

    def check(self) -> None:
        self.drew = self.drew or rng_states.of_process() != self._before


class _ThreadState(threading.local):
    """State of each thread: beside the training thread no thread may set the process's generators."""

    filling = True
    watch: _Watch | None = None


_thread = _ThreadState()


def is_filling() -> bool:
    """Returns True if the generators are set for each call of a user's function."""
    return _thread.filling


def fill(key: Words) -> None:
    """Sets the process's generators for one call."""
    watch = _thread.watch
    if watch is not None:
        watch.check()
    _refill(key)
    if watch is not None:
        watch.begin()


def _refill(key: Words) -> None:
    # torch.initial_seed() inside an element must not depend on the worker
    generator_states.fill(key, initial_seed=key[0] >> 1)


def fill_if_needed(own: OwnGenerators, key: Words, *path: int | str) -> None:
    """Sets the generators, by `key` with `path` folded in, unless nothing that follows draws from them."""
    has_own = own.enter()
    if not (has_own or is_filling()):
        return
    words = int_keys.fold(key, *path)
    if is_filling():
        fill(words)
    if has_own:
        own.set(words)


def fill_each(own: OwnGenerators | None, keys: np.ndarray) -> Iterator[Any]:
    """Sets the process's generators, if needed, and those of objects, from the next key at every step.

    `keys`: uint64, of shape (calls, 2).
    """
    of_process = map(fill, map(tuple, keys.tolist())) if is_filling() else repeat(None, len(keys))
    return of_process if own is None else zip(of_process, own.set_each(keys), strict=True)


def refill_all(own: OwnGenerators, key: Words) -> None:
    """Sets the generators once more for the same call."""
    if is_filling():
        _refill(key)
    own.set(key)


class Draws:
    """The knowledge, in this process, of whether a pipeline's functions draw from its generators."""

    def __init__(self, *, may_draw: bool = True) -> None:
        """`may_draw`: False where reading the functions proved that they do not."""
        self._quiet = not may_draw
        self._tried = False

    def run(self, task: Callable[[], T]) -> T:
        """Returns the result of `task`. Afterwards the generators of process and objects are restored.

        Raises PipelineError if the task drew although reading had shown no draw, but not when computed again.
        """
        with OwnBlock() as block:
            result = self._run(task)
            if block.has_new():  # it drew from a generator that was not known yet
                block.put_back()
                result = self._run(task)
        return result

    def _run(self, task: Callable[[], T]) -> T:
        if not self._quiet:
            with generator_states.preserve_states():
                return _run_with(True, task)
        before, modules = rng_states.of_process(), imported_by_others()
        try:
            result = _run_with(False, task)
        except (PipelineError, UnseededError) as error:  # raised by a pipeline, by a loader
            if not isinstance(error, UnseededError) and not isinstance(error.__cause__, UnseededError):
                raise
        else:
            if rng_states.of_process() == before:
                return result
        imported = imported_by_others() != modules  # a library may draw when it is imported
        before.restore()
        self._quiet = False
        with generator_states.preserve_states(), _watch_draws() as watch:
            result = task()
        if not watch.drew and not imported:
            raise PipelineError(
                "a task of the pipeline drew from the process's generators, and not when it was computed "
                f"again: one of its functions remembers its draw. {CURE}"
            )
        return result

    @contextmanager
    def fill_each_call(self) -> Iterator[None]:
        """Sets the generators for each call of functions that run only once; then restores the caller's.

        The draws are watched: if none was seen, later blocks do not set the generators.
        """
        with OwnBlock() as block:
            with self._fill_process_generators():
                yield
            block.has_new()  # from the next call on

    @contextmanager
    def _fill_process_generators(self) -> Iterator[None]:
        if self._quiet and self._tried:
            with _Setting(_thread.watch, filling=False):
                yield
        elif not self._quiet:
            with generator_states.preserve_states(), _Setting(_thread.watch, filling=True):
                yield
        else:
            with generator_states.preserve_states(), _watch_draws() as watch:
                yield
            self._quiet, self._tried = not watch.drew, True


class _Setting:
    """Sets the state of this thread in the block."""

    def __init__(self, watch: _Watch | None, *, filling: bool) -> None:
        self._state = filling, watch

    def __enter__(self) -> None:
        self._before = _thread.filling, _thread.watch
        _thread.filling, _thread.watch = self._state

    def __exit__(self, *_: object) -> None:
        _thread.filling, _thread.watch = self._before


@contextmanager
def _watch_draws() -> Iterator[_Watch]:
    """Watches the block's calls of `fill`, and the draws after the last one."""
    watch = _Watch()
    try:
        with _Setting(watch, filling=True):
            yield watch
    finally:
        watch.check()


def run_without_rng_setup(task: Callable[[], T]) -> T:
    """Returns the result of a task that draws from none of the process's generators, on any thread."""
    with no_block():
        return _run_with(False, task)


def _run_with(filling: bool, task: Callable[[], T]) -> T:
    with _Setting(None, filling=filling):  # a forked worker is not watched, and `run` restores the generators
        return task()
