"""NumPy under the switch: no entropy from the operating system, and no global draw without a seed.

Every generator of NumPy's that gets no seed calls one function for it
(`numpy.random.bit_generator.randbits`). That function is replaced, so the way in which a constructor was
imported does not matter. The global generator's functions are replaced only until it is seeded: by its `seed`
or `set_state`, or (seeded in another way) at the first draw after that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np

from samebits._context import at_import
from samebits._inspect.patching import Patches, stand_in
from samebits.determinism import twister
from samebits.determinism._guards import numpy_constructors
from samebits.determinism._guards.random_sources import (
    NUMPY_ENTROPY,
    NUMPY_GLOBAL,
    GlobalGuard,
    drawing_frame,
    raise_or_warn,
)

_mtrand: Any = np.random.mtrand
_entropy: Any = np.random.bit_generator
_GLOBAL: Any = _mtrand._rand
_SEEDS = frozenset({"seed", "set_state"})
_DRAWS = frozenset(
    name for name in np.random.__all__ if name in vars(_mtrand) and callable(getattr(_GLOBAL, name, None))
) - {*_SEEDS, "get_state", "RandomState"}


class NumpyGuard(GlobalGuard):
    """Guards NumPy's global generator while it has no seed."""

    def __init__(self) -> None:
        super().__init__(NUMPY_GLOBAL, numpy_was_seeded)

    def install(self) -> None:
        """Replaces the drawing functions, also on the object of scikit-learn and SciPy; not if seeded."""
        if numpy_was_seeded():
            return
        guarded = _GuardedRandomState(_GLOBAL._bit_generator, self)
        self._patches.put(_mtrand, "_rand", guarded)
        for name in _DRAWS | {"set_state"}:  # `numpy.random.seed` calls `_rand.seed`
            function = getattr(guarded, name)
            for module in (np.random, _mtrand):
                self._patches.put(module, name, function)


class _GuardedRandomState(np.random.RandomState):
    """Replaces `numpy.random.mtrand._rand`: passes everything on to it, draws after a check."""

    def __init__(self, bits: Any, guard: NumpyGuard) -> None:
        super().__init__(bits)
        self.__dict__["guard"] = guard

    def __getattribute__(self, name: str) -> Any:
        if name == "__dict__":
            return super().__getattribute__(name)
        value = getattr(_GLOBAL, name)
        if name in _DRAWS:
            return self.__dict__["guard"].checked(value, __self__=self)
        return self.__dict__["guard"].seeding(value, __self__=self) if name in _SEEDS else value

    def __eq__(self, other: object) -> bool:
        return other is self or other is _GLOBAL

    def __hash__(self) -> int:
        return hash(_GLOBAL)


def numpy_was_seeded() -> bool:
    """Returns True if NumPy's global generator was seeded or set: draws alone do not explain its state."""
    bits = _GLOBAL._bit_generator
    if at_import.numpy_seed is None or type(bits) is not np.random.MT19937:
        return True
    origin = np.random.MT19937(at_import.numpy_seed).state["state"]["key"]
    return not twister.is_reached_by_draws(origin, bits.state["state"]["key"])


def watch(patches: Patches) -> None:
    """Refuses generators without a seed, `numpy.random.seed()` included, for as long as the switch is on."""
    patches.put(_entropy, "randbits", _refuse_entropy(_entropy.randbits))
    for name, is_seeded in (
        ("RandomState", numpy_constructors.has_argument),
        ("Philox", numpy_constructors.has_seed_or_key),
    ):
        kind = getattr(np.random, name)
        patches.put(np.random, name, numpy_constructors.judged_class(kind, is_seeded, _refuse_type))
    patches.put(_mtrand, "_MT19937", numpy_constructors.judged_class(_mtrand._MT19937, None, _refuse_type))


def _refuse_entropy(randbits: Callable[[int], int]) -> Any:
    def refused(k: int) -> int:
        frame = drawing_frame()
        if frame is not None and not _makes_a_philox(frame):
            raise_or_warn(NUMPY_ENTROPY, frame)
        return randbits(k)

    return stand_in(randbits, refused)


def _refuse_type() -> None:
    # from outside of the class that replaces NumPy's
    raise_or_warn(NUMPY_ENTROPY, drawing_frame(sys._getframe(2)))


def _makes_a_philox(frame: FrameType) -> bool:
    """Returns True in `Philox(key=...)`, imported by name before the switch: it does not use that entropy."""
    names = {*frame.f_code.co_names, *frame.f_code.co_freevars, *frame.f_code.co_varnames}
    return any(name == "Philox" or frame.f_globals.get(name) is _PHILOX for name in names)


_PHILOX = np.random.Philox
