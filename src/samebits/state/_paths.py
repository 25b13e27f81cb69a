"""Paths to values inside an object, as a program writes them: `envs[0].state`, `['a'].counter`."""

from __future__ import annotations

import ast
import re
from typing import Any, NamedTuple

from samebits._inspect.object_parts import attributes_of
from samebits.errors import InvalidArgumentError

_PART = re.compile(r"\.?([^\W\d]\w*)|\[(-?\d+|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")\]")


class Place(NamedTuple):
    """An attribute or an item of `owner`."""

    owner: Any
    name: Any
    is_item: bool

    def get(self) -> Any:
        """Returns the value; raises KeyError, IndexError, TypeError or AttributeError if there is none.

        An attribute that only `__getattr__` finds belongs to another object, where setting it here would not
        reach it.
        """
        if self.is_item:
            return self.owner[self.name]
        if self.name not in attributes_of(self.owner) and not hasattr(type(self.owner), self.name):
            raise AttributeError(self.name)
        return getattr(self.owner, self.name)

    def set(self, value: Any) -> None:
        """Assigns the value."""
        if self.is_item:
            self.owner[self.name] = value
        else:
            setattr(self.owner, self.name, value)


def place(root: Any, path: str) -> Place:
    """Returns the place of a path, whose value need not exist; raises as `Place.get` where an object on the
    way is missing.

    Example:
        >>> place({"a": [1, 2]}, "['a'][1]").get()
        2
    """
    *above, last = _parts(path)
    for name, is_item in above:
        root = Place(root, name, is_item).get()
    return Place(root, *last)


def _parts(path: str) -> list[tuple[Any, bool]]:
    parts, at = [], 0
    while at < len(path) and (found := _PART.match(path, at)):
        name, item = found.groups()
        parts.append((name, False) if item is None else (ast.literal_eval(item), True))
        at = found.end()
    if not parts or at < len(path):
        raise InvalidArgumentError(
            f"samebits.state.attributes(..., {path!r}): not a path. Write it as the program does: "
            '"counter", "scheduler.step", "envs[0].state", "tables[\'a\']".'
        )
    return parts
