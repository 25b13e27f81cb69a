"""The places that may remember something from one call of a function to the next, and how to detect it.

A `Keeper` is a cache, a container, or the variables of an object, class, closure or module. Its `counts` change, or its
`slots` hold another object, after something was put there: a call compares nothing else. `save` is for calling a
function twice.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from types import CellType
from typing import Any

import numpy as np
import torch

from samebits.data._purity.abstract_values import PLAIN

FEW = 16
"""Items of a container up to which a replaced plain value is detected; of larger ones only the number of items."""
LARGE = 1 << 20
"""Bytes."""
_NOTHING = object()

Count = Callable[[], int]
Slot = tuple[Callable[[Any], Any], Any]
"""A getter, and its argument."""


class Keeper:
    """One place that may remember."""

    def __init__(self, name: str) -> None:
        self.name = name
        """In messages."""
        self.counts: list[Count] = []
        self.slots: list[Slot] = []

    def describe(self, slot: Any = None) -> str:
        """Returns the name of what is remembered, for messages; `slot`: the name of the variable that was set."""
        return self.name

    def save(self) -> Callable[[], None]:
        """Returns a function that restores the present content."""
        return lambda: None


class FunctionCache(Keeper):
    """A `functools.lru_cache` or `functools.cache`, with the number of its misses."""

    def __init__(self, cached: Any) -> None:
        inner, info = cached.__wrapped__, cached.cache_info
        code = getattr(inner, "__code__", None)
        where = f" ({code.co_filename}, line {code.co_firstlineno})" if code is not None else ""
        super().__init__(f"the lru_cache of `{getattr(inner, '__qualname__', inner)}`{where}")
        self.counts = [lambda: info()[1]]


class Container(Keeper):
    """A dict, set, list, deque or the like, with the number of its items."""

    def __init__(self, name: str, target: Any) -> None:
        super().__init__(f"`{name}`")
        self._held = target
        self.counts = [target.__len__]
        if len(target) <= FEW and isinstance(target, dict | list):
            keys = list(target) if isinstance(target, dict) else range(len(target))
            get = (
                target.get
                if isinstance(target, dict)
                else lambda at: target[at] if at < len(target) else _NOTHING
            )
            self.slots = [(get, key) for key in keys if isinstance(target[key], PLAIN)]

    def save(self) -> Callable[[], None]:
        """Returns a function that restores its items; containers inside it are restored separately."""
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
    """The named variables of an object, a class, a function or a module."""

    def __init__(
        self, name: str, table: Any, put: Callable[[str, Any], None], names: tuple[str, ...] | None = None
    ) -> None:
        """`name`: for messages, with {} for the variable's; `put` sets one; `names`: only these."""
        super().__init__(name)
        self._table, self._put, self._names = table, put, names
        self.counts = [table.__len__] if names is None else []
        few = tuple(table) if names is None else names
        self.slots = [(table.get, one) for one in few if isinstance(table.get(one), PLAIN)]

    def describe(self, slot: Any = None) -> str:
        """Returns the name of the variable that was set, or of the newest."""
        return f"`{self.name.format(slot or next(reversed(list(self._table))))}`"

    def save(self) -> Callable[[], None]:
        """Returns a function that restores them; a new variable stays."""
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

    def save(self) -> Callable[[], None]:
        """Returns a function that restores it."""
        kept = contents(self._cell)
        return lambda: None if kept is None else setattr(self._cell, "cell_contents", kept)


class Numbers(Keeper):
    """An array or tensor: restored, but not checked, since hashing it at every call would cost too much."""

    def __init__(self, target: Any) -> None:
        super().__init__("")
        self._held = target

    @property
    def large(self) -> bool:
        """Returns True if a copy would cost too much."""
        return self._held.nbytes > LARGE

    def save(self) -> Callable[[], None]:
        """Returns a function that restores the values where they have changed."""
        one = torch.from_numpy(self._held) if isinstance(self._held, np.ndarray) else self._held.detach()
        kept = one.clone()

        def put() -> None:
            if not torch.equal(one, kept):
                one.copy_(kept)

        return put


def contents(cell: CellType) -> Any:
    """Returns the content of a closure's variable; None if it is not set yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _ids(target: Any) -> list[int]:
    return list(map(id, [*target, *target.values()] if isinstance(target, dict) else target))
