"""What may remember something from one call of a function to the next, and how to tell that it did.

A `Keeper` is a cache, a container, or the variables of an object, class, closure or module. It has `counts`, which are
other numbers, and `slots`, which hold another object, after something was put there: all that a call has to look at.
`saved` is for calling a function twice.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from types import CellType
from typing import Any

import numpy as np
import torch

from samebits.data._purity.values import PLAIN

FEW = 16
"""Items of a container up to which it is seen that one takes the place of a plain value; of more only how many there are."""
LARGE = 1 << 20
"""Bytes."""
_NOTHING = object()

Count = Callable[[], int]
Slot = tuple[Callable[[Any], Any], Any]
"""A getter, and what to get."""


class Keeper:
    """One place that may remember."""

    def __init__(self, name: str) -> None:
        self.name = name
        """In messages."""
        self.counts: list[Count] = []
        self.slots: list[Slot] = []

    def told(self, slot: Any = None) -> str:
        """What is remembered, in messages; `slot`: the name of the variable that was set."""
        return self.name

    def saved(self) -> Callable[[], None]:
        """What puts it back to what it is now."""
        return lambda: None


class FunctionCache(Keeper):
    """A `functools.lru_cache` or `functools.cache`, by how many calls it had to compute."""

    def __init__(self, cached: Any) -> None:
        inner, info = cached.__wrapped__, cached.cache_info
        code = getattr(inner, "__code__", None)
        where = f" ({code.co_filename}, line {code.co_firstlineno})" if code is not None else ""
        super().__init__(f"the lru_cache of `{getattr(inner, '__qualname__', inner)}`{where}")
        self.counts = [lambda: info()[1]]


class Container(Keeper):
    """A dict, set, list, deque or the like, by how many it holds."""

    def __init__(self, name: str, held: Any) -> None:
        super().__init__(f"`{name}`")
        self._held = held
        self.counts = [held.__len__]
        if len(held) <= FEW and isinstance(held, dict | list):
            keys = list(held) if isinstance(held, dict) else range(len(held))
            get = held.get if isinstance(held, dict) else lambda at: held[at] if at < len(held) else _NOTHING
            self.slots = [(get, key) for key in keys if isinstance(held[key], PLAIN)]

    def saved(self) -> Callable[[], None]:
        """What puts it back; of what lies inside, containers are put back by themselves."""
        one = self._held
        kept = dict(one) if isinstance(one, MutableMapping) else list(one)
        fill = getattr(one, "update", None) or one.extend

        def put() -> None:
            now = dict(one) if isinstance(one, MutableMapping) else list(one)
            if _ids(now) != _ids(kept):
                one.clear()
                fill(kept)

        return put


class Variables(Keeper):
    """Variables with names, of an object, a class, a function or a module."""

    def __init__(
        self, name: str, table: Any, put: Callable[[str, Any], None], names: tuple[str, ...] | None = None
    ) -> None:
        """`name`: for messages, with {} for the variable's; `put` sets one; `names`: not of all."""
        super().__init__(name)
        self._table, self._put, self._names = table, put, names
        self.counts = [table.__len__] if names is None else []
        few = tuple(table) if names is None else names
        self.slots = [(table.get, one) for one in few if isinstance(table.get(one), PLAIN)]

    def told(self, slot: Any = None) -> str:
        """The variable that was set, or the newest."""
        return f"`{self.name.format(slot or next(reversed(list(self._table))))}`"

    def saved(self) -> Callable[[], None]:
        """What puts them back; one that comes into being stays."""
        table = self._table
        names = tuple(table) if self._names is None else self._names
        kept = {name: table[name] for name in names if name in table}

        def put() -> None:
            for name, value in kept.items():
                if table.get(name, _NOTHING) is not value:
                    self._put(name, value)

        return put


class ClosureCell(Keeper):
    """A variable of a closure."""

    def __init__(self, name: str, cell: CellType) -> None:
        super().__init__(f"`{name}`")
        self._cell = cell
        self.slots = [(contents, cell)] if isinstance(contents(cell), PLAIN) else []

    def saved(self) -> Callable[[], None]:
        """What puts it back."""
        kept = contents(self._cell)
        return lambda: None if kept is None else setattr(self._cell, "cell_contents", kept)


class Numbers(Keeper):
    """An array or tensor: put back, and not suspected, for to hash it at every call would cost too much."""

    def __init__(self, held: Any) -> None:
        super().__init__("")
        self._held = held

    @property
    def large(self) -> bool:
        """Whether a copy is too much to ask."""
        return self._held.nbytes > LARGE

    def saved(self) -> Callable[[], None]:
        """What puts the values back where they have changed."""
        one = torch.from_numpy(self._held) if isinstance(self._held, np.ndarray) else self._held.detach()
        kept = one.clone()

        def put() -> None:
            if not torch.equal(one, kept):
                one.copy_(kept)

        return put


def contents(cell: CellType) -> Any:
    """What a closure's variable holds; None where it is not set yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _ids(held: Any) -> list[int]:
    return list(map(id, [*held, *held.values()] if isinstance(held, dict) else held))
