"""Python's `random` under the switch: neither its global generator nor a `Random` draws without a seed."""

from __future__ import annotations

import functools
import os
import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from samebits._context import at_import, process
from samebits._inspect.patching import Patches, is_stand_in, stand_in
from samebits._inspect.user_code import line_of_frame
from samebits.determinism import twister
from samebits.determinism._guards.random_sources import (
    PYTHON_GLOBAL,
    PYTHON_RANDOM,
    PYTHON_SEED,
    SYSTEM_RANDOM,
    GlobalGuard,
    drawing_frame,
    is_import_of_a_library,
    raise_or_warn,
)
from samebits.random._process import generator_states

_GLOBAL: Any = random._inst  # type: ignore[attr-defined]
_DRAWS = ("random", "getrandbits")
"""The two methods by which everything in the module `random` draws."""


class PythonGuard(GlobalGuard):
    """Guards Python's global generator while it has no seed."""

    def __init__(self) -> None:
        super().__init__(PYTHON_GLOBAL, python_was_seeded)
        # Python seeds it anew, from the operating system, in every forked child.
        os.register_at_fork(after_in_child=self._forked)

    def install(self) -> None:
        """Replaces the two functions by which all others draw, however imported; not if seeded since.

        The functions of the module that seed remove the guard.
        """
        if not _has_changed_by_draws_only():
            return
        for name in _DRAWS:
            checked = self.checked(getattr(_GLOBAL, name))
            self._patches.put(_GLOBAL, name, checked)
            self._patches.put(random, name, checked)
        for name in ("seed", "setstate"):
            self._patches.put(random, name, self.seeding(getattr(random, name)))

    def _forked(self) -> None:
        if process.op_determinism is not None:
            self.remove()
            self.install()


def python_was_seeded() -> bool:
    """Returns True if Python's global generator was seeded, or its state set (0.3 to 16 ms).

    The state itself is read: seeding leaves no other trace, and it may have happened before samebits was
    imported.
    """
    return not _has_changed_by_draws_only() or (_origin is _AT_IMPORT and _was_seeded_at_import())


def _has_changed_by_draws_only() -> bool:
    """Returns True if only draws followed the import of samebits, or a seed of the system (0.3 ms)."""
    global _origin
    state = random.getstate()
    words = _words(state)
    if twister.is_from_entropy(words, state[1][-1]):
        _origin = words
    return twister.is_reached_by_draws(_origin, words)


@functools.cache
def _was_seeded_at_import() -> bool:
    return twister.is_from_person(_AT_IMPORT)


def _words(state: tuple[Any, ...]) -> np.ndarray:
    return np.array(state[1][:-1], np.uint32)


_AT_IMPORT = _origin = _words(at_import.python_state or random.getstate())


def watch(patches: Patches) -> None:
    """Refuses seeds from the operating system for as long as the switch is on."""
    kind = random.Random
    patches.put(random, "seed", _require_seed(random.seed))
    patches.put(kind, "seed", _hold_unseeded(kind.seed))
    patches.put(kind, "setstate", _release_on_setstate(kind.setstate))
    patches.put(random.SystemRandom, "seed", _refuse_call(random.SystemRandom.seed))


def _require_seed(seed: Callable[..., None]) -> Any:
    def seeded(a: Any = None, version: int = 2) -> None:
        if a is None:
            raise_or_warn(PYTHON_SEED, drawing_frame())
        seed(a, version)

    return stand_in(seed, seeded)


def _hold_unseeded(seed: Callable[..., None]) -> Callable[..., None]:
    """Allows `random.Random()`, as pickle and others set its state afterwards; drawing from it raises."""
    made = random.Random.__init__.__code__

    @functools.wraps(seed)
    def seeded(self: random.Random, a: Any = None, version: int = 2) -> None:
        _release(self)
        seed(self, a, version)
        if a is not None:
            return
        frame = drawing_frame()
        if sys._getframe(1).f_code is not made:
            raise_or_warn(PYTHON_SEED, frame)
        elif frame is not None and not is_import_of_a_library(frame):
            _hold(self, f" (made at {line_of_frame(frame)})")

    return seeded


def _release_on_setstate(setstate: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(setstate)
    def set_state(self: random.Random, state: Any) -> None:
        setstate(self, state)
        _release(self)

    return set_state


def _refuse_call(seed: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(seed)
    def refused(self: random.Random, *args: Any, **kwargs: Any) -> None:
        raise_or_warn(SYSTEM_RANDOM, drawing_frame())
        seed(self, *args, **kwargs)

    return refused


def _held(generator: random.Random, name: str, made: str) -> Any:
    """Returns what replaces a method that draws, on one object that has no seed yet."""
    original = getattr(generator, name)

    def drawn(*args: Any) -> Any:
        if process.op_determinism is not None and not generator_states.sets_objects():
            raise_or_warn(PYTHON_RANDOM, drawing_frame(), made)
        return original(*args)

    return stand_in(original, drawn)


def _hold(generator: random.Random, line: str) -> None:
    if type(generator).random is random.Random.random:
        for name in _DRAWS:
            vars(generator)[name] = _held(generator, name, line)


def _release(generator: random.Random) -> None:
    for name in _DRAWS:
        if is_stand_in(vars(generator).get(name)):
            del vars(generator)[name]
