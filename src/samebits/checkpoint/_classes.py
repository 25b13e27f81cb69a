"""Named tuples and dataclass instances in a commit: by the name of their class and of its fields.

A commit is data of any origin. So its reader imports nothing and calls nothing of a class: it looks for one
that the program has already, with these fields, and puts the values into an instance as they are.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from samebits.errors import RunMismatchError

_HEAP_TYPE = 1 << 9


@lru_cache(maxsize=4096)
def _fields(kind: type) -> tuple[str, ...] | None:
    """Returns the names of the fields of a named tuple's class or a dataclass; None for any other class."""
    if hasattr(kind, "__del__"):  # a forged instance would run it
        return None
    if issubclass(kind, tuple):
        names = getattr(kind, "_fields", None)
        plain = isinstance(names, tuple) and not any("__dict__" in vars(base) for base in kind.__mro__)
        return names if plain and all(type(name) is str for name in names) else None
    if not _is_of_attributes(kind) or not dataclasses.is_dataclass(kind):
        return None
    return tuple(field.name for field in dataclasses.fields(kind))


def _is_of_attributes(kind: type) -> bool:
    """Returns True for a class in Python whose instances are their attributes."""
    in_c = next(base for base in kind.__mro__ if not base.__flags__ & _HEAP_TYPE)
    return in_c is object and not hasattr(kind, "state_dict") and not hasattr(kind, "__del__")


def find_class(name: str, base: type = object) -> type | None:
    """Returns a class that the program has, made from `base`, whose instances are their attributes."""
    found = next(named(name, base), None)
    return found if found is not None and _is_of_attributes(found) else None


def is_instance(value: Any) -> bool:
    """Returns True for a named tuple, and for a dataclass instance without further attributes."""
    names = _fields(type(value))
    if names is None or isinstance(value, tuple):
        return names is not None and len(names) == len(value)
    return {*getattr(value, "__dict__", ())} <= {*names}


def fields_of(value: Any) -> dict[str, Any]:
    """Returns the values of the fields of an instance; of a dataclass those that were ever set."""
    names = _fields(type(value)) or ()
    if isinstance(value, tuple):
        return dict(zip(names, value, strict=True))
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def items_of(value: Any) -> Iterable[tuple[Any, Any]]:
    """Returns keys and values of a container, names and values of fields; nothing for any other value."""
    if isinstance(value, dict):
        return value.items()
    if type(value) in {list, tuple, deque}:
        return enumerate(value)
    return fields_of(value).items() if is_instance(value) else ()


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


def name_of(kind: type) -> str:
    """Returns the name under which a class is found again: "__main__:Transition"."""
    return f"{kind.__module__}:{kind.__qualname__}"


def find(name: str, fields: Sequence[str], base: type) -> type:
    """Returns the class of that name that has these fields. Raises `RunMismatchError` if there is none."""
    for found in named(name, base):
        names = _fields(found)
        if names is not None and issubclass(found, tuple) == (base is tuple) and {*fields} <= {*names}:
            return found
    raise RunMismatchError(
        f"the commit holds an instance of {name.replace(':', '.')} with the fields {', '.join(fields)}, and "
        "this program has no such class yet. Define it, or import its module, before the run is entered."
    )


def named(name: str, base: type) -> Iterator[type]:
    """Yields the classes of that name that the program has and that are made from `base`."""
    module, _, path = name.partition(":")
    for found in (_at(module, path), *_below(base)):
        if isinstance(found, type) and issubclass(found, base) and name_of(found) == name:
            yield found


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
