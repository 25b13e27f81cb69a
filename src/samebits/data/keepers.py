"""What may remember something from one call of a function to the next, and how to tell that it did.

A `Keeper` is a cache, a container, or the variables of an object, class, closure or module. Its mark is cheap, and another
one after something was put there; `saved` is for calling a function twice.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from types import CellType
from typing import Any

import numpy as np
import torch

FEW = 16
"""Items of a container up to which one that was replaced is seen; of more only how many there are."""

LARGE = 1 << 20
"""Bytes."""
_NOTHING = object()


class Cache:
    """A `functools.lru_cache` or `functools.cache`."""

    def __init__(self, cached: Any) -> None:
        inner = cached.__wrapped__
        code = getattr(inner, "__code__", None)
        where = f" ({code.co_filename}, line {code.co_firstlineno})" if code is not None else ""
        self.name = f"the lru_cache of `{getattr(inner, '__qualname__', inner)}`{where}"
        self._info = cached.cache_info

    def mark(self) -> Any:
        """How many calls were computed."""
        return self._info().misses

    def told(self, before: Any) -> str:
        """What is remembered, in messages."""
        return self.name

    def saved(self) -> Callable[[], None]:
        """Nothing: what it holds stays."""
        return _nothing


class Container:
    """A dict, set, list, deque or the like."""

    def __init__(self, name: str, held: Any) -> None:
        self.name, self._held = f"`{name}`", held

    def mark(self) -> Any:
        """How many it holds; of few which."""
        held = self._held
        if len(held) > FEW:
            return len(held)
        return tuple(map(id, held.values() if isinstance(held, MutableMapping) else held))

    def told(self, before: Any) -> str:
        """What is remembered, in messages."""
        return self.name

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


class Variables:
    """Variables with names, of an object, a class, a function or a module; `names`: not of all."""

    def __init__(
        self, name: str, table: Any, put: Callable[[str, Any], None], names: tuple[str, ...] | None = None
    ) -> None:
        """`name`: for messages, with {} for the variable's; `put` sets one."""
        self.name, self._table, self._put, self._names = name, table, put, names

    def mark(self) -> Any:
        """Which objects they are."""
        if self._names is None:
            return tuple(map(id, self._table.values()))
        return tuple([id(self._table.get(name)) for name in self._names])

    def told(self, before: Any) -> str:
        """What is remembered, in messages: the first that is another one."""
        now = self.mark()
        at = next((at for at, (a, b) in enumerate(zip(before, now, strict=False)) if a != b), len(before))
        return f"`{self.name.format((self._names or tuple(self._table))[at])}`"

    def saved(self) -> Callable[[], None]:
        """What puts them back; one that comes into being stays."""
        table = self._table
        kept = {name: table[name] for name in self._names or tuple(table) if name in table}

        def put() -> None:
            for name, value in kept.items():
                if table.get(name, _NOTHING) is not value:
                    self._put(name, value)

        return put


class Cell:
    """A variable of a closure."""

    def __init__(self, name: str, cell: CellType) -> None:
        self.name, self._cell = f"`{name}`", cell

    def mark(self) -> Any:
        """Which object it is."""
        return id(contents(self._cell))

    def told(self, before: Any) -> str:
        """What is remembered, in messages."""
        return self.name

    def saved(self) -> Callable[[], None]:
        """What puts it back."""
        kept = contents(self._cell)
        return _nothing if kept is None else lambda: setattr(self._cell, "cell_contents", kept)


class Numbers:
    """An array or tensor: put back, and not suspected, for to hash it at every call would cost too much."""

    def __init__(self, held: Any) -> None:
        self._held = held

    @property
    def large(self) -> bool:
        """Whether a copy is too much to ask."""
        return self._held.nbytes > LARGE

    def mark(self) -> Any:
        """Always the same."""
        return None

    def told(self, before: Any) -> str:
        """It is never told."""
        return ""

    def saved(self) -> Callable[[], None]:
        """What puts the values back where they have changed."""
        one = torch.from_numpy(self._held) if isinstance(self._held, np.ndarray) else self._held.detach()
        kept = one.clone()

        def put() -> None:
            if not torch.equal(one, kept):
                one.copy_(kept)

        return put


Keeper = Cache | Container | Variables | Cell | Numbers


def contents(cell: CellType) -> Any:
    """What a closure's variable holds; None where it is not set yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _ids(held: Any) -> list[int]:
    return list(map(id, [*held, *held.values()] if isinstance(held, dict) else held))


def _nothing() -> None:
    return None
