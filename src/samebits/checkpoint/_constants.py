"""Values of Python's library that never change, and members of enums, in a commit: as texts and numbers."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from operator import attrgetter, index
from pathlib import Path
from typing import Any
from uuid import UUID

from samebits.checkpoint import _classes as classes
from samebits.errors import RunMismatchError

_FORMS: dict[type, tuple[str, Callable[[Any], Sequence[Any]], Callable[..., Any]]] = {
    # (a text may have an exponent of any size)
    Fraction: ("Fraction", attrgetter("numerator", "denominator"), lambda *two: Fraction(*map(index, two))),
    timedelta: ("timedelta", attrgetter("days", "seconds", "microseconds"), timedelta),
    **{kind: (kind.__name__, attrgetter("start", "stop", "step"), kind) for kind in (range, slice)},
    **{kind: (kind.__name__, lambda one: [str(one)], kind) for kind in (Decimal, UUID)},
    **{k: (k.__name__, lambda one: [one.isoformat()], k.fromisoformat) for k in (date, datetime, time)},
    type(Path()): ("Path", lambda one: [str(one)], Path),
}
"""For each class its name in a commit, and the functions that take a value apart and make it again."""
_MAKERS = {name: make for name, _, make in _FORMS.values()}


def is_constant(value: Any) -> bool:
    """Returns True if a commit gives exactly this value back: a time zone with a name has no text.

    >>> is_constant(Fraction(1, 3)), is_constant(Path("a")), is_constant([])
    (True, True, False)
    """
    if isinstance(value, enum.Enum):
        return value._name_ in vars(type(value))["_member_map_"]  # no combination of flags
    return type(value) in _FORMS and repr(made(*parts_of(value))) == repr(value)


def parts_of(value: Any) -> list[Any]:
    """Returns the name of a constant's class, and what the constant is made of."""
    if isinstance(value, enum.Enum):
        return ["enum", classes.name_of(type(value)), value._name_]
    name, parts, _ = _FORMS[type(value)]
    return [name, *parts(value)]


def made(name: str, *parts: Any) -> Any:
    """Returns the constant with these `parts_of`; KeyError, TypeError or ValueError for other parts.

    Raises `RunMismatchError` for a member of an enum that this program does not have.
    """
    try:
        return _member(*parts) if name == "enum" else _MAKERS[name](*parts)
    except ArithmeticError as error:
        raise ValueError(f"no {name} of {parts!r:.60}") from error


def _member(name: str, member: str) -> enum.Enum:
    for kind in classes.named(name, enum.Enum):
        if member in (members := vars(kind)["_member_map_"]):
            return members[member]
    raise RunMismatchError(
        f"the commit holds {name.replace(':', '.')}.{member}, and this program has no such enum yet. Define "
        "it, or import its module, before the run is entered."
    )
