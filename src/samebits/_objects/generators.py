"""The random generators that belong to objects: those that can be reached from an object, whatever its class.

A generator of an installed package's object counts like the user's own:
`albumentations.Compose.random_generator`, MONAI's `Randomizable.R` (an attribute of the class), a `gymnasium`
environment's `np_random`.
"""

from __future__ import annotations

import functools
import itertools
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from samebits._inspect import code_names
from samebits._inspect.user_code import owner_of_module
from samebits._objects.hashes import PLAIN
from samebits._objects.parts import attributes_of, own_names, variables_of
from samebits._objects.rng_states import RESTORABLE, is_of_process

MOST_OBJECTS = 20_000
"""The number of objects after which a search ends."""
_ITEMS = 256
"""A container's first items are searched: transforms are among them, samples need not be."""
_FEW = 32
"""The items of longer containers are searched last: they are samples, and there are many."""
_LEAVES = (torch.Tensor, np.ndarray, np.generic, types.ModuleType, types.CodeType, torch.optim.Optimizer)

_CONTAINERS = (list, tuple, set, frozenset, deque)
_BUILTIN = types.BuiltinFunctionType | types.MethodWrapperType

_TORCH_SAMPLERS = frozenset(
    one
    for one in vars(torch.utils.data.sampler).values()
    if isinstance(one, type) and issubclass(one, torch.utils.data.Sampler)
)


class FoundGenerator(NamedTuple):
    """A generator, and the text that a reader would write to reach it."""

    path: str
    generator: Any


def generators_in(
    roots: Iterable[tuple[str, Any]], seen: dict[int, Any] | None = None
) -> list[FoundGenerator]:
    """Returns the generators that can be reached from the named objects, each once, the nearest first.

    Followed are attributes, slots, items, the closure, defaults and global variables of functions, and class
    attributes. Nothing of the user's is called. Left out: the process's own generators, those of torch's
    samplers, and what samebits' objects hold. `seen`: objects that are not searched, by identity; gets those
    that were.

    Example:
        >>> import random
        >>> class Noise:
        ...     def __init__(self):
        ...         self.draws = [random.Random(3)]
        >>> [found.path for found in generators_in([("noise", Noise())])]
        ['noise.draws[0]']
    """
    found: dict[int, FoundGenerator] = {}
    seen = {} if seen is None else seen  # the objects, too: an id is unique only while its object lives
    waiting: deque[tuple[str, Any]] = deque(roots)
    later: deque[tuple[str, Any]] = deque()
    while (waiting or later) and len(seen) < MOST_OBJECTS:
        path, value = (waiting or later).popleft()
        if type(value) in PLAIN or id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, RESTORABLE):
            if not is_of_process(value):
                found.setdefault(id(_source(value)), FoundGenerator(path, value))
        else:
            many = isinstance(value, (*_CONTAINERS, dict)) and len(value) > _FEW
            (later if many else waiting).extend(_parts(path, value))
    return list(found.values())


def _source(generator: Any) -> Any:
    """Returns the object that holds the state: the bit generator, which NumPy generators may share."""
    if isinstance(generator, np.random.RandomState):
        return generator._bit_generator
    return generator.bit_generator if isinstance(generator, np.random.Generator) else generator


def _parts(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yields what can be reached from a value in one step."""
    if isinstance(value, _LEAVES) or _is_of_samebits(type(value)) or type(value) in _TORCH_SAMPLERS:
        return
    if isinstance(value, torch.nn.Module):  # a thousand layers have a thousand empty dicts each
        own = own_names(type(value))
        held = [*attributes_of(value).items(), *value._modules.items()]
        yield from ((f"{path}.{name}", item) for name, item in held if name not in own)
        yield type(value).__qualname__, type(value)
        return
    if isinstance(value, torch.utils.data.DataLoader):
        yield from ((f"{path}.{name}", getattr(value, name, None)) for name in ("dataset", "collate_fn"))
        return
    if isinstance(value, types.FunctionType):
        yield from _of_function(path, value)
    elif isinstance(value, _BUILTIN):  # the method of an object, such as `default_rng(3).integers`
        yield f"{path}.__self__", value.__self__
    elif isinstance(value, types.MethodType):
        yield from ((path, value.__func__), (f"{path}.__self__", value.__self__))
    elif isinstance(value, functools.partial):
        yield from ((path, value.func), (path, value.args), (path, value.keywords))
    elif isinstance(value, functools._lru_cache_wrapper):
        yield path, value.__wrapped__
    elif isinstance(value, property | staticmethod | classmethod | functools.cached_property):
        yield path, next((getattr(value, n) for n in ("fget", "__func__", "func") if hasattr(value, n)), None)
    elif isinstance(value, type):
        yield from _of_class(path, value)
    elif isinstance(value, Mapping):
        held = dict.items(value) if isinstance(value, dict) else ()
        yield from ((f"{path}[{key!r:.40}]", item) for key, item in itertools.islice(held, _ITEMS))
    elif isinstance(value, _CONTAINERS):
        items = enumerate(itertools.islice(value, _ITEMS))
        yield from ((f"{path}[{number}]", item) for number, item in items)
    if not isinstance(value, type | types.FunctionType | types.MethodType | _BUILTIN):
        yield from ((f"{path}.{name}", item) for name, item in attributes_of(value).items())
        yield type(value).__qualname__, type(value)


def _is_of_samebits(kind: type) -> bool:
    return str(kind.__module__).startswith("samebits.") and not issubclass(kind, torch.utils.data.DataLoader)


def _of_function(path: str, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    owner = owner_of_module(str(function.__module__))
    if owner in {"framework", "standard", "samebits"}:
        return
    yield from ((f"{path}.{name}", item) for name, item in vars(function).items())
    yield from variables_of(function)
    for name in _global_names(function.__code__):
        item = function.__globals__.get(name)
        if owner == "user" or isinstance(item, RESTORABLE):  # of a package's module only a generator itself
            yield name, item
        if isinstance(item, types.ModuleType) and owner_of_module(item.__name__) == "user":
            used = function.__code__.co_names
            yield from ((f"{name}.{each}", vars(item)[each]) for each in used if each in vars(item))


@functools.lru_cache(maxsize=4096)
def _global_names(code: types.CodeType) -> tuple[str, ...]:
    return tuple(sorted({name for one in code_names.whole(code) for name in code_names.globals_read(one)}))


def _of_class(path: str, kind: type) -> Iterator[tuple[str, Any]]:
    for base in kind.__mro__:
        owner = owner_of_module(str(base.__module__))
        if owner in {"framework", "standard", "samebits", None}:
            continue
        for name, item in list(vars(base).items()):
            if isinstance(item, RESTORABLE) or (type(item) not in PLAIN and not name.startswith("__")):
                yield f"{base.__qualname__}.{name}", item
        for name in ("__call__", "__getitem__", "__getitems__", "__init__", "__iter__"):
            if name in vars(base):
                yield f"{base.__qualname__}.{name}", vars(base)[name]
