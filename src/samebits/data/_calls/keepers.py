"""The places that may remember something from one call of a function to the next, and how to detect it.

A `Keeper` is a cache, a container, or the variables of an object, class, closure or module. Its `counts` change, or its
`slots` hold another object, after something was put there: a call compares nothing else. `save` is for calling a
function twice.
"""

from __future__ import annotations

import dis
import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, MutableMapping, MutableSet
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from samebits.data._purity import known_functions
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


OBJECTS, KEEPERS, ITEMS = 5000, 200, 64
"""Bounds: objects that are walked over, keepers, items of a container that are visited."""
_CONTAINERS = (
    dict,
    set,
    list,
    deque,
    MutableMapping,
    MutableSet,
)  # the last two: weak ones, OrderedDict, ...

Part = tuple[Any, str]
"""An object, and its name in messages."""


def keepers(function: Callable[..., Any]) -> list[Keeper]:
    """Returns the places that a call of `function` may read or leave something in, the nearest first."""
    found: list[Keeper] = []
    seen: dict[int, Any] = {}  # the objects too: an id is unique only while its object lives
    queue: deque[Part] = deque([(function, getattr(function, "__qualname__", type(function).__qualname__))])
    while queue and len(seen) < OBJECTS and len(found) < KEEPERS:
        obj, name = queue.popleft()
        if id(obj) not in seen and not isinstance(obj, PLAIN):
            seen[id(obj)] = obj
            found += _keepers_of(obj, name)
            queue.extend(_parts(obj, name))
    return found


def _keepers_of(obj: Any, name: str) -> Iterator[Keeper]:
    """Yields the keepers that an object is."""
    if isinstance(obj, functools._lru_cache_wrapper):
        yield FunctionCache(obj)
    elif isinstance(obj, FunctionType):
        yield from () if known_functions.is_library(obj) else _keepers_of_function(obj)
    elif isinstance(obj, type):
        if not known_functions.is_library(obj):
            yield Variables(f"{obj.__qualname__}.{{}}", vars(obj), functools.partial(setattr, obj))
    elif isinstance(obj, np.ndarray):
        if obj.flags.writeable and obj.dtype.kind in "biufc":
            yield Numbers(obj)
    elif isinstance(obj, torch.Tensor):
        if obj.layout is torch.strided and not obj.is_inference():
            yield Numbers(obj)
    elif isinstance(obj, _CONTAINERS):
        yield Container(name, obj)
    if not isinstance(obj, type | ModuleType | FunctionType) and isinstance(
        getattr(obj, "__dict__", None), dict
    ):
        yield Variables(f"{type(obj).__qualname__}.{{}}", vars(obj), vars(obj).__setitem__)


def _keepers_of_function(obj: FunctionType) -> Iterator[Keeper]:
    yield Variables(f"{obj.__qualname__}.{{}}", vars(obj), vars(obj).__setitem__)
    for name, cell in zip(obj.__code__.co_freevars, obj.__closure__ or (), strict=True):
        yield ClosureCell(name, cell)
    used, attributes = names_in(obj.__code__)
    yield Variables("{}", obj.__globals__, obj.__globals__.__setitem__, used)
    for found in _modules(obj, used):
        yield Variables(f"{found.__name__}.{{}}", vars(found), vars(found).__setitem__, attributes)


def _modules(obj: FunctionType, used: Iterable[str]) -> list[ModuleType]:
    """Returns the user's modules that a function names."""
    named = map(obj.__globals__.get, used)
    return [
        found for found in named if isinstance(found, ModuleType) and not known_functions.is_library(found)
    ]


def _parts(obj: Any, name: str) -> Iterator[Part]:
    """Yields the objects that a call may reach through an object."""
    if isinstance(obj, functools._lru_cache_wrapper):
        yield obj.__wrapped__, name
    elif isinstance(obj, functools.partial):
        yield from ((part, name) for part in (obj.func, *obj.args, *obj.keywords.values()))
    elif isinstance(obj, MethodType):
        yield from ((obj.__self__, name.rpartition(".")[0]), (obj.__func__, name))
    elif isinstance(obj, staticmethod | classmethod):
        yield obj.__func__, name
    elif isinstance(obj, property | functools.cached_property):
        yield obj.fget if isinstance(obj, property) else obj.func, name
    elif isinstance(obj, FunctionType):
        yield from ((obj.__wrapped__, name),) if hasattr(obj, "__wrapped__") else ()
        yield from () if known_functions.is_library(obj) else _parts_of_function(obj)
    elif isinstance(obj, type):
        bases = () if known_functions.is_library(obj) else obj.__mro__[1:]
        own = () if known_functions.is_library(obj) else vars(obj).items()
        yield from ((base, base.__qualname__) for base in bases)
        yield from ((part, f"{obj.__qualname__}.{n}") for n, part in own)
    elif isinstance(obj, (dict, list, set, tuple, frozenset, deque)):
        inside = obj.values() if isinstance(obj, dict) else obj
        yield from ((part, f"{name}[...]") for part, _ in zip(inside, range(ITEMS), strict=False))
    elif not isinstance(obj, (ModuleType, np.ndarray, torch.Tensor)):
        own = getattr(obj, "__dict__", None)
        for n, part in own.items() if isinstance(own, dict) else ():
            yield part, f"{type(obj).__qualname__}.{n}"
        yield type(obj), type(obj).__qualname__


def _parts_of_function(obj: FunctionType) -> Iterator[Part]:
    yield from ((part, f"{obj.__qualname__}.{n}") for n, part in vars(obj).items())
    for name, cell in zip(obj.__code__.co_freevars, obj.__closure__ or (), strict=True):
        yield contents(cell), name
    for part in (*(obj.__defaults__ or ()), *(obj.__kwdefaults__ or {}).values()):
        yield part, f"a default of {obj.__qualname__}"
    used, attributes = names_in(obj.__code__)
    yield from ((obj.__globals__[name], name) for name in used if name in obj.__globals__)
    for found in _modules(obj, used):
        yield from ((vars(found)[n], f"{found.__name__}.{n}") for n in attributes if n in vars(found))


def names_in(code: CodeType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the global variables and the attributes that a function's code names, inner functions included."""
    used, attributes = {}, {}
    for obj in dis.get_instructions(code):
        if obj.opname.endswith(("_GLOBAL", "_NAME")):
            used[obj.argval] = None
        elif obj.opname.endswith(("_ATTR", "_METHOD")):
            attributes[obj.argval] = None
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            more, others = names_in(inner)
            used.update(dict.fromkeys(more))
            attributes.update(dict.fromkeys(others))
    return tuple(used), tuple(attributes)
