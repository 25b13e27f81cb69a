"""NumPy classes whose constructors are judged by their arguments: they read entropy with a seed, too.

Calls of a C class cannot be seen from outside. So while the switch is on, `numpy.random` has a class of the
same name whose call makes an object of NumPy's own class. `isinstance`, `issubclass`, `==`, signatures and
pickles see no difference; `is` does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

Judge = Callable[[tuple[Any, ...], dict[str, Any]], bool]


def judged_class(kind: type, is_seeded: Judge | None, refuse: Callable[[], None]) -> type:
    """Returns a class for `kind` whose call first calls `refuse` if `is_seeded(args, kwargs)` is False.

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
