"""NumPy under the switch: no entropy from the operating system, and no draw from a global generator without a seed.

Every generator of NumPy's that gets no seed calls one function for it (`numpy.random.bit_generator.randbits`), and that
function is replaced; so it does not matter how the constructor was imported. The global generator's functions are
replaced only until it is seeded: by its `seed` or `set_state`, or (seeded in another way) at the first draw after that.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np

from samebits._context import at_import
from samebits._inspect.patching import Patches, stand_in
from samebits.determinism import twister
from samebits.determinism._guards.random_sources import (
    NUMPY_ENTROPY,
    NUMPY_GLOBAL,
    drawing_frame,
    raise_or_warn,
)
from samebits.random._process import generator_states

# NumPy classes whose constructors are judged by their arguments: they read entropy with a seed, too.
#
# Calls of a C class cannot be seen from outside. So while the switch is on, `numpy.random` has a class of
# the same name whose call makes an object of NumPy's own class. `isinstance`, `issubclass`, `==`,
# signatures and pickles see no difference; `is` does.


Judge = Callable[[tuple[Any, ...], dict[str, Any]], bool]


def judged_class(kind: type, is_seeded: Judge | None, refuse: Callable[[], None]) -> type:
    """Returns a class for `kind` whose call first calls `refuse` unless `is_seeded(args, kwargs)`; without a judge it
    is always allowed.

    NumPy reads entropy from inside the call here: from a line of samebits, which is allowed.
    """

    class JudgedCalls(type):
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            if cls is not stand_in:
                return super().__call__(*args, **kwargs)
            if is_seeded is not None and not is_seeded(args, kwargs):
                refuse()
            return kind(*args, **kwargs)

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, kind) if cls is stand_in else super().__instancecheck__(instance)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, kind) if cls is stand_in else super().__subclasscheck__(subclass)

        def __eq__(cls, other: object) -> bool:
            return cls is other or (cls is stand_in and other is kind)

        def __hash__(cls) -> int:
            return hash(kind) if cls is stand_in else super().__hash__()

        @property
        def __signature__(cls) -> inspect.Signature | None:
            return _signature(kind) if cls is stand_in else None

        @property
        def __text_signature__(cls) -> str | None:
            return (kind if cls is stand_in else super()).__text_signature__

    stand_in = JudgedCalls(kind.__name__, (kind,), {"__doc__": kind.__doc__, "__module__": "numpy.random"})
    return stand_in


def _signature(kind: type) -> inspect.Signature | None:
    try:
        return inspect.signature(kind)
    except ValueError:  # a NumPy without text signatures
        return None


def has_argument(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Returns True for `RandomState(seed)`."""
    return (args[0] if args else kwargs.get("seed")) is not None


def has_seed_or_key(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Returns True for `Philox(seed=None, counter=None, key=None)` with a seed or a key."""
    return has_argument(args, kwargs) or (args[2] if len(args) > 2 else kwargs.get("key")) is not None


_mtrand: Any = np.random.mtrand
_entropy: Any = np.random.bit_generator
_GLOBAL: Any = _mtrand._rand
_SEEDS = frozenset({"seed", "set_state"})
_DRAWS = frozenset(
    name for name in np.random.__all__ if name in vars(_mtrand) and callable(getattr(_GLOBAL, name, None))
) - {*_SEEDS, "get_state", "RandomState"}


class NumpyGuard:
    """Guards NumPy's global generator while it has no seed."""

    def __init__(self) -> None:
        self._patches = Patches()

    def install(self) -> None:
        """Replaces the drawing functions, also those of the object that scikit-learn and SciPy use; not if seeded."""
        if numpy_was_seeded():
            return
        guarded = _GuardedRandomState(_GLOBAL._bit_generator, self)
        self._patches.put(_mtrand, "_rand", guarded)
        for name in _DRAWS | {"set_state"}:  # `numpy.random.seed` calls `_rand.seed`
            function = getattr(guarded, name)
            for module in (np.random, _mtrand):
                self._patches.put(module, name, function)

    def remove(self) -> None:
        """Restores NumPy's functions; harmless when they are in place."""
        self._patches.undo()

    def checked(self, draw: Callable[..., Any], owner: np.random.RandomState) -> Any:
        """Returns `draw`, which raises as long as the generator has no seed; `owner` is its `__self__`."""

        def drawn(*args: Any, **kwargs: Any) -> Any:
            if not numpy_was_seeded():
                raise_or_warn(NUMPY_GLOBAL, drawing_frame())
            elif not generator_states.is_preserving():
                self.remove()
            return draw(*args, **kwargs)

        return stand_in(draw, drawn, __self__=owner)

    def seeding(self, seed: Callable[..., Any], owner: np.random.RandomState) -> Any:
        """Returns `seed`, which removes the guard when the generator has a seed that lasts."""

        def seeded(*args: Any, **kwargs: Any) -> Any:
            result = seed(*args, **kwargs)
            if not generator_states.is_preserving() and numpy_was_seeded():
                self.remove()
            return result

        return stand_in(seed, seeded, __self__=owner)


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
            return self.__dict__["guard"].checked(value, self)
        return self.__dict__["guard"].seeding(value, self) if name in _SEEDS else value

    def __eq__(self, other: object) -> bool:
        return other is self or other is _GLOBAL

    def __hash__(self) -> int:
        return hash(_GLOBAL)


def numpy_was_seeded() -> bool:
    """Returns True if NumPy's global generator was seeded, or its state set: drawing alone does not explain its state."""
    bits = _GLOBAL._bit_generator
    if at_import.numpy_seed is None or type(bits) is not np.random.MT19937:
        return True
    origin = np.random.MT19937(at_import.numpy_seed).state["state"]["key"]
    return not twister.is_reached_by_draws(origin, bits.state["state"]["key"])


def watch(patches: Patches) -> None:
    """Refuses generators without a seed, `numpy.random.seed()` included, for as long as the switch is on."""
    patches.put(_entropy, "randbits", _refuse_entropy(_entropy.randbits))
    for name, is_seeded in (
        ("RandomState", has_argument),
        ("Philox", has_seed_or_key),
    ):
        kind = getattr(np.random, name)
        patches.put(np.random, name, judged_class(kind, is_seeded, _refuse_type))
    patches.put(_mtrand, "_MT19937", judged_class(_mtrand._MT19937, None, _refuse_type))


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
    """Returns True in `Philox(key=...)`, which reads entropy that it does not use; imported by name before the switch,
    it comes here.
    """
    names = {*frame.f_code.co_names, *frame.f_code.co_freevars, *frame.f_code.co_varnames}
    return any(name == "Philox" or frame.f_globals.get(name) is _PHILOX for name in names)


_PHILOX = np.random.Philox
