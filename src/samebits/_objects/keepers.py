"""The places that may remember something from one call of a function to the next, and how to detect it.

A `Keeper` is a cache, a container, or the variables of an object, class, closure or module. They are found by
a walk over the objects that a function reaches, whatever its code does with them.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping, MutableSet
from dataclasses import dataclass, field
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from samebits._inspect.code_names import names_in
from samebits._inspect.library_code import is_library_code
from samebits._objects.parts import IMMUTABLE, closure_of, contents, defaults_of

OBJECTS, KEEPERS, ITEMS = 5000, 200, 64
"""Bounds: objects that are walked over, keepers, items of a container that are visited."""
FEW = 16
"""Items of a container up to which a replaced plain value is detected; of larger ones only their number."""
LARGE = 1 << 20
"""Bytes of an array from which a copy would cost too much."""
_CONTAINERS = (dict, set, list, deque, MutableMapping, MutableSet)
"""The last two for weak ones, OrderedDict and the like."""
_NOTHING = object()

Part = tuple[Any, str]
"""An object, and its name in messages."""
Restore = Callable[[], None]


@dataclass(eq=False)
class Keeper:
    """One place that may remember."""

    name: str
    """In messages; of variables with {} for the variable's."""
    save: Callable[[], Restore]
    """Returns a function that restores the present content: for calling a function twice."""
    counts: list[Callable[[], int]] = field(default_factory=list)
    slots: list[tuple[Callable[[Any], Any], Any]] = field(default_factory=list)
    """Getters with their arguments. After something was put there, a count or a slot's object is another."""
    table: Mapping[str, Any] | None = None
    """The variables, by name."""
    array: Any = None
    """An array or tensor: restored, but not checked, since hashing it at every call would cost too much."""

    def describe(self, slot: str | None = None) -> str:
        """Returns the name of what is remembered: of the variable `slot`, or of the newest."""
        if self.table is None:
            return self.name
        return f"`{self.name.format(slot or next(reversed(list(self.table))))}`"


def keepers(function: Callable[..., Any]) -> list[Keeper]:
    """Returns the places that a call of `function` may read or leave something in, the nearest first."""
    found: list[Keeper] = []
    seen: dict[int, Any] = {}  # the objects too: an id is unique only while its object lives
    queue: deque[Part] = deque([(function, getattr(function, "__qualname__", type(function).__qualname__))])
    while queue and len(seen) < OBJECTS and len(found) < KEEPERS:
        obj, name = queue.popleft()
        if id(obj) not in seen and not isinstance(obj, IMMUTABLE):
            seen[id(obj)] = obj
            for one in _keepers_and_parts(obj, name):
                if isinstance(one, Keeper):
                    found.append(one)
                else:
                    queue.append(one)
    return found


def _keepers_and_parts(obj: Any, name: str) -> Iterator[Keeper | Part]:
    """Yields the keepers that an object is, and the objects that a call may reach through it."""
    if isinstance(obj, FunctionType):
        if hasattr(obj, "__wrapped__"):
            yield obj.__wrapped__, name
        if not is_library_code(obj):
            yield from _of_function(obj)
    elif isinstance(obj, type):
        if not is_library_code(obj):
            yield _variables(f"{obj.__qualname__}.{{}}", vars(obj), functools.partial(setattr, obj))
            yield from ((base, base.__qualname__) for base in obj.__mro__[1:])
            yield from ((part, f"{obj.__qualname__}.{n}") for n, part in vars(obj).items())
    elif not isinstance(obj, ModuleType):
        own = getattr(obj, "__dict__", None)
        own = own if isinstance(own, dict) else None
        yield from _of_object(obj, name, own)
        if own is not None:
            yield _variables(f"{type(obj).__qualname__}.{{}}", own, own.__setitem__)


def _of_object(obj: Any, name: str, own: dict[str, Any] | None) -> Iterator[Keeper | Part]:
    if isinstance(obj, np.ndarray):
        if obj.flags.writeable and obj.dtype.kind in "biufc":
            yield Keeper("", lambda: _save_values(torch.from_numpy(obj)), array=obj)
        return
    if isinstance(obj, torch.Tensor):
        if obj.layout is torch.strided and not obj.is_inference():
            yield Keeper("", lambda: _save_values(obj.detach()), array=obj)
        return
    if isinstance(obj, _CONTAINERS):
        yield _container(name, obj)
    if isinstance(obj, functools._lru_cache_wrapper):
        yield _function_cache(obj)
        yield obj.__wrapped__, name
    elif isinstance(obj, functools.partial):
        yield from ((part, name) for part in (obj.func, *obj.args, *obj.keywords.values()))
    elif isinstance(obj, MethodType):
        yield from ((obj.__self__, name.rpartition(".")[0]), (obj.__func__, name))
    elif isinstance(obj, staticmethod | classmethod):
        yield obj.__func__, name
    elif isinstance(obj, property | functools.cached_property):
        yield obj.fget if isinstance(obj, property) else obj.func, name
    elif isinstance(obj, (dict, list, set, tuple, frozenset, deque)):
        inside = obj.values() if isinstance(obj, dict) else obj
        yield from ((part, f"{name}[...]") for part, _ in zip(inside, range(ITEMS), strict=False))
    else:
        yield from ((part, f"{type(obj).__qualname__}.{n}") for n, part in (own or {}).items())
        yield type(obj), type(obj).__qualname__


def _of_function(obj: FunctionType) -> Iterator[Keeper | Part]:
    yield _variables(f"{obj.__qualname__}.{{}}", vars(obj), vars(obj).__setitem__)
    yield from ((part, f"{obj.__qualname__}.{n}") for n, part in vars(obj).items())
    for name, cell in closure_of(obj):
        yield _closure_cell(name, cell)
        yield contents(cell), name
    yield from ((part, f"a default of {obj.__qualname__}") for _, part in defaults_of(obj))
    used, attributes = names_in(obj.__code__)
    known = obj.__globals__
    yield _variables("{}", known, known.__setitem__, used)
    yield from ((known[name], name) for name in used if name in known)
    for found in map(known.get, used):
        if isinstance(found, ModuleType) and not is_library_code(found):
            table = vars(found)
            yield _variables(f"{found.__name__}.{{}}", table, table.__setitem__, attributes)
            yield from ((table[n], f"{found.__name__}.{n}") for n in attributes if n in table)


def _function_cache(cached: Any) -> Keeper:
    """Returns the keeper of a `functools.lru_cache`, with the number of its misses."""
    inner, info = cached.__wrapped__, cached.cache_info
    code = getattr(inner, "__code__", None)
    where = f" ({code.co_filename}, line {code.co_firstlineno})" if code is not None else ""
    name = f"the lru_cache of `{getattr(inner, '__qualname__', inner)}`{where}"
    return Keeper(name, lambda: lambda: None, [lambda: info()[1]])


def _container(name: str, target: Any) -> Keeper:
    """Returns the keeper of a dict, set, list, deque or the like, with the number of its items."""
    slots: list[Any] = []
    if len(target) <= FEW and isinstance(target, dict | list):
        keys = list(target) if isinstance(target, dict) else range(len(target))
        get = (
            target.get
            if isinstance(target, dict)
            else lambda at: target[at] if at < len(target) else _NOTHING
        )
        slots = [(get, key) for key in keys if isinstance(target[key], IMMUTABLE)]
    return Keeper(f"`{name}`", functools.partial(save_items, target), [target.__len__], slots)


def _variables(
    name: str, table: Any, put: Callable[[str, Any], None], names: tuple[str, ...] | None = None
) -> Keeper:
    """Returns the keeper of the variables `names` (None: of all) of an object or a module; `put` sets one."""
    few = tuple(table) if names is None else names
    slots = [(table.get, one) for one in few if isinstance(table.get(one), IMMUTABLE)]
    counts = [table.__len__] if names is None else []
    return Keeper(name, functools.partial(save_variables, table, put, names), counts, slots, table)


def _closure_cell(name: str, cell: CellType) -> Keeper:
    def save() -> Restore:
        kept = contents(cell)
        return lambda: None if kept is None else setattr(cell, "cell_contents", kept)

    return Keeper(f"`{name}`", save, [], [(contents, cell)] if isinstance(contents(cell), IMMUTABLE) else [])


def save_items(target: Any) -> Restore:
    """Returns a function that restores the items of a container, but not containers inside it."""
    copied: Any = dict if isinstance(target, MutableMapping) else list
    kept = copied(target)
    fill = getattr(target, "update", None) or target.extend

    def put() -> None:
        if _ids(copied(target)) != _ids(kept):
            target.clear()
            fill(kept)

    return put


def save_variables(table: Any, put: Callable[[str, Any], None], names: tuple[str, ...] | None) -> Restore:
    """Returns a function that restores variables; a new one of a class or a module stays."""
    kept = {name: table[name] for name in (tuple(table) if names is None else names) if name in table}

    def restore() -> None:
        for name, value in kept.items():
            if table.get(name, _NOTHING) is not value:
                put(name, value)
        for name in set(table) - kept.keys() if names is None and type(table) is dict else ():
            del table[name]

    return restore


def _save_values(tensor: torch.Tensor) -> Restore:
    """Returns a function that restores the values where they have changed."""
    kept = tensor.clone()

    def put() -> None:
        if not torch.equal(tensor, kept):
            tensor.copy_(kept)

    return put


def _ids(target: Any) -> list[int]:
    return list(map(id, [*target, *target.values()] if isinstance(target, dict) else target))
