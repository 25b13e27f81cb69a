"""Named tuples and dataclass instances in a commit: by the name of their class and of its fields.

A commit is data of any origin. So its reader imports nothing and calls nothing of a class: it looks for one
that the program has already, with the same fields, and puts the values into an instance as they are.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from samebits.errors import RunMismatchError


@lru_cache(maxsize=4096)
def _field_names(kind: type) -> tuple[str, ...] | None:
    """Returns the names of the fields of a named tuple's class or a dataclass; None for any other class."""
    if hasattr(kind, "__del__"):  # a forged instance would run it
        return None
    if issubclass(kind, tuple):
        names = getattr(kind, "_fields", None)
        known = isinstance(names, tuple) and all(type(name) is str for name in names)
        return names if known and "__dict__" not in _slots(kind) else None
    if not dataclasses.is_dataclass(kind) or hasattr(kind, "state_dict") or _base(kind) is not object:
        return None
    return tuple(field.name for field in dataclasses.fields(kind))


def _slots(kind: type) -> set[str]:
    return {name for base in kind.__mro__ for name in vars(base)}


def _base(kind: type) -> type:
    """Returns the first class in C that `kind` is made from."""
    return next(base for base in kind.__mro__ if not base.__flags__ & 1 << 9)


def is_instance(value: Any) -> bool:
    """Returns True for a named tuple, and for a dataclass instance without further attributes."""
    names = _field_names(type(value))
    if names is None:
        return False
    return len(value) == len(names) if isinstance(value, tuple) else vars_of(value).keys() <= {*names}


def vars_of(value: Any) -> Mapping[str, Any]:
    """Returns the attributes of a dataclass instance; those in slots are its fields."""
    return getattr(value, "__dict__", {})


def fields_of(value: Any) -> dict[str, Any]:
    """Returns the values of the fields of an instance; of a dataclass those that were ever set."""
    names = _field_names(type(value)) or ()
    if isinstance(value, tuple):
        return dict(zip(names, value, strict=True))
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def name_of(kind: type) -> str:
    """Returns the name under which a class is found again: "__main__:Transition"."""
    return f"{kind.__module__}:{kind.__qualname__}"


def make(kind: type, fields: Mapping[str, Any]) -> Any:
    """Returns an instance of a class with these fields; no method of the class is called."""
    if issubclass(kind, tuple):
        return tuple.__new__(kind, fields.values())
    made = object.__new__(kind)
    set_fields(made, fields)
    return made


def set_fields(instance: Any, fields: Mapping[str, Any]) -> None:
    """Sets the fields of a dataclass instance, of a frozen one, too, and removes the others."""
    for name in fields_of(instance).keys() - fields:
        with suppress(AttributeError):  # of the class
            object.__delattr__(instance, name)
    for name, value in fields.items():
        object.__setattr__(instance, name, value)


class Classes:
    """The classes that were found while one commit is read."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], tuple[type, tuple[str, ...]]] = {}

    def make(self, kind: str, name: str, fields: Sequence[str] | None, values: Sequence[Any]) -> Any:
        """Returns an instance of the class of that name; `fields` is None after its first instance.

        Raises:
            RunMismatchError: the program has no such class, or one with other fields.
        """
        if (kind, name) not in self._found:
            if fields is None:
                raise ValueError(f"no fields of {name}")
            self._found[kind, name] = _find(kind, name, tuple(fields)), tuple(fields)
        found, names = self._found[kind, name]
        return make(found, dict(zip(names if fields is None else fields, values, strict=True)))


def _find(kind: str, name: str, fields: tuple[str, ...]) -> type:
    base = tuple if kind == "named tuple" else object
    module, _, path = name.partition(":")
    for found in (_at(module, path), *_below(base)):
        if isinstance(found, type) and issubclass(found, base) and name_of(found) == name:
            names = _field_names(found)
            if names is not None and issubclass(found, tuple) == (base is tuple) and {*fields} <= {*names}:
                return found
    raise RunMismatchError(
        f"the commit holds an instance of {name.replace(':', '.')} ({kind}) with the fields "
        f"{', '.join(fields)}, and this program has no such class yet. Define it as it was, or import its "
        "module, before the run is entered."
    )


def _at(module: str, path: str) -> Any:
    """Returns what a module that is imported already has at a path, without running any code of it."""
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return found


def _below(base: type) -> Iterator[type]:
    """Yields the classes that are made from `base`, the newest first: those in functions have no path."""
    for kind in reversed(type.__subclasses__(base)):
        yield kind
        yield from _below(kind)
