"""The keepers that a user's function can reach: a walk over objects, whatever its code does with them."""

from __future__ import annotations

import dis
import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, MutableMapping, MutableSet
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from samebits.data._calls.memories import (
    ClosureCell,
    Container,
    FunctionCache,
    Keeper,
    Numbers,
    Variables,
    contents,
)
from samebits.data._purity import known
from samebits.data._purity.values import PLAIN

OBJECTS, KEEPERS, ITEMS = 5000, 200, 64
"""Bounds: objects that are walked over, keepers, items of a container that are visited."""
# The last two: weak ones, OrderedDict, ...
_CONTAINERS = (
    dict,
    set,
    list,
    deque,
    MutableMapping,
    MutableSet,
)

Part = tuple[Any, str]
"""An object, and its name in messages."""


def keepers(function: Callable[..., Any]) -> list[Keeper]:
    """Returns the places that a call of `function` may read or leave something in, the nearest first."""
    found: list[Keeper] = []
    seen: dict[int, Any] = {}  # the objects too: an id is unique only while its object lives
    queue: deque[Part] = deque([(function, getattr(function, "__qualname__", type(function).__qualname__))])
    while queue and len(seen) < OBJECTS and len(found) < KEEPERS:
        one, name = queue.popleft()
        if id(one) not in seen and not isinstance(one, PLAIN):
            seen[id(one)] = one
            found += _keepers_of(one, name)
            queue.extend(_parts(one, name))
    return found


def _keepers_of(one: Any, name: str) -> Iterator[Keeper]:
    """Yields the keepers that an object is."""
    if isinstance(one, functools._lru_cache_wrapper):
        yield FunctionCache(one)
    elif isinstance(one, FunctionType):
        yield from () if known.is_library(one) else _keepers_of_function(one)
    elif isinstance(one, type):
        if not known.is_library(one):
            yield Variables(f"{one.__qualname__}.{{}}", vars(one), functools.partial(setattr, one))
    elif isinstance(one, np.ndarray):
        if one.flags.writeable and one.dtype.kind in "biufc":
            yield Numbers(one)
    elif isinstance(one, torch.Tensor):
        if one.layout is torch.strided and not one.is_inference():
            yield Numbers(one)
    elif isinstance(one, _CONTAINERS):
        yield Container(name, one)
    if not isinstance(one, type | ModuleType | FunctionType) and isinstance(
        getattr(one, "__dict__", None), dict
    ):
        yield Variables(f"{type(one).__qualname__}.{{}}", vars(one), vars(one).__setitem__)


def _keepers_of_function(one: FunctionType) -> Iterator[Keeper]:
    yield Variables(f"{one.__qualname__}.{{}}", vars(one), vars(one).__setitem__)
    for name, cell in zip(one.__code__.co_freevars, one.__closure__ or (), strict=True):
        yield ClosureCell(name, cell)
    used, attributes = names_in(one.__code__)
    yield Variables("{}", one.__globals__, one.__globals__.__setitem__, used)
    for found in _modules(one, used):
        yield Variables(f"{found.__name__}.{{}}", vars(found), vars(found).__setitem__, attributes)


def _modules(one: FunctionType, used: Iterable[str]) -> list[ModuleType]:
    """Returns the user's modules that a function names."""
    named = map(one.__globals__.get, used)
    return [found for found in named if isinstance(found, ModuleType) and not known.is_library(found)]


def _parts(one: Any, name: str) -> Iterator[Part]:
    """Yields the objects that a call may reach through an object."""
    if isinstance(one, functools._lru_cache_wrapper):
        yield one.__wrapped__, name
    elif isinstance(one, functools.partial):
        yield from ((part, name) for part in (one.func, *one.args, *one.keywords.values()))
    elif isinstance(one, MethodType):
        yield from ((one.__self__, name.rpartition(".")[0]), (one.__func__, name))
    elif isinstance(one, staticmethod | classmethod):
        yield one.__func__, name
    elif isinstance(one, property | functools.cached_property):
        yield one.fget if isinstance(one, property) else one.func, name
    elif isinstance(one, FunctionType):
        yield from ((one.__wrapped__, name),) if hasattr(one, "__wrapped__") else ()
        yield from () if known.is_library(one) else _parts_of_function(one)
    elif isinstance(one, type):
        bases = () if known.is_library(one) else one.__mro__[1:]
        own = () if known.is_library(one) else vars(one).items()
        yield from ((base, base.__qualname__) for base in bases)
        yield from ((part, f"{one.__qualname__}.{n}") for n, part in own)
    elif isinstance(one, (dict, list, set, tuple, frozenset, deque)):
        inside = one.values() if isinstance(one, dict) else one
        yield from ((part, f"{name}[...]") for part, _ in zip(inside, range(ITEMS), strict=False))
    elif not isinstance(one, (ModuleType, np.ndarray, torch.Tensor)):
        own = getattr(one, "__dict__", None)
        for n, part in own.items() if isinstance(own, dict) else ():
            yield part, f"{type(one).__qualname__}.{n}"
        yield type(one), type(one).__qualname__


def _parts_of_function(one: FunctionType) -> Iterator[Part]:
    yield from ((part, f"{one.__qualname__}.{n}") for n, part in vars(one).items())
    for name, cell in zip(one.__code__.co_freevars, one.__closure__ or (), strict=True):
        yield contents(cell), name
    for part in (*(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values()):
        yield part, f"a default of {one.__qualname__}"
    used, attributes = names_in(one.__code__)
    yield from ((one.__globals__[name], name) for name in used if name in one.__globals__)
    for found in _modules(one, used):
        yield from ((vars(found)[n], f"{found.__name__}.{n}") for n in attributes if n in vars(found))


def names_in(code: CodeType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the global variables and the attributes that a function's code names, inner functions included."""
    used, attributes = {}, {}
    for one in dis.get_instructions(code):
        if one.opname.endswith(("_GLOBAL", "_NAME")):
            used[one.argval] = None
        elif one.opname.endswith(("_ATTR", "_METHOD")):
            attributes[one.argval] = None
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            more, others = names_in(inner)
            used.update(dict.fromkeys(more))
            attributes.update(dict.fromkeys(others))
    return tuple(used), tuple(attributes)
