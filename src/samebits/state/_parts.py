"""The parts of an object that are saved without pickle, by path: values and generators."""

from __future__ import annotations

import argparse
import functools
import logging
import random
import re
import threading
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from samebits._inspect.user_code import is_table, owner_of_module
from samebits._objects.hashes import CONSTANTS, PLAIN
from samebits._objects.parts import attributes_of
from samebits._objects.rng_states import RESTORABLE
from samebits.checkpoint._classes import fields_of, is_instance
from samebits.checkpoint._codec import FACTORIES
from samebits.checkpoint._constants import is_constant
from samebits.errors import InvalidArgumentError

_LEAVES = (np.generic, torch.Size, torch.dtype, torch.device)
CONTAINERS = {dict, list, tuple, deque, set, frozenset, OrderedDict, defaultdict, Counter, bytearray}
_PASSED_OVER = (
    *(type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType),
    *(functools.partial, functools._lru_cache_wrapper, logging.Logger, np.dtype),
    *(type(threading.Lock()), type(threading.RLock()), re.Pattern, torch.finfo, torch.iinfo),
)
"""Code, and what a program makes anew: no state."""
_FACTORIES = {None, *FACTORIES.values()}
_NAMESPACES = (types.SimpleNamespace, argparse.Namespace)
_POINTER = 8


@dataclass
class Parts:
    """The parts of one object, by their paths; each object counts once, by its first path."""

    ignored: Collection[str] = ()
    """Paths that are left out."""
    is_state: Callable[[Any, str, Any], bool] | None = None
    """Returns False for an attribute (its object, name and value) that is left out."""
    values: dict[str, Any] = field(default_factory=dict)
    generators: dict[str, Any] = field(default_factory=dict)
    same: dict[str, str] = field(default_factory=dict)
    """For an array, a container or a generator that was met before: its first path."""
    held: dict[str, Any] = field(default_factory=dict)
    """Objects, and lists, dicts and deques of objects: what a resume makes again where it is missing."""
    passed_over: list[str] = field(default_factory=list)
    """Functions, locks and their like, which only the program can make."""
    with_state_dict: dict[str, Any] = field(default_factory=dict)
    """Objects inside with a `state_dict` of their own, such as optimizers: not saved here."""
    unsavable: dict[str, str] = field(default_factory=dict)
    """For each part that cannot be saved, the reason, and what to do."""
    _seen: dict[int, tuple[str, Any]] = field(default_factory=dict)

    def add(self, path: str, value: Any) -> None:
        kind = type(value)
        if path in self.ignored:
            return
        if kind in PLAIN or isinstance(value, _LEAVES) or is_constant(value):
            self.values[path] = value
        elif isinstance(value, _PASSED_OVER):
            self.passed_over.append(path)
        elif id(value) in self._seen:
            self.same[path] = self._seen[id(value)][0]
        else:
            self._seen[id(value)] = path, value
            self._add_object(path, value)

    def objects(self) -> list[tuple[str, Any]]:
        """Returns what was met and may be met again, by its first path."""
        return [*self._seen.values()]

    def _add_object(self, path: str, value: Any) -> None:
        kind = type(value)
        if isinstance(value, RESTORABLE) and not isinstance(value, random.SystemRandom):
            self.generators[path] = value
        elif isinstance(value, torch.Tensor | np.ndarray):
            reason = _of_array(value)
            if reason:
                self.unsavable[path] = reason
            else:
                self.values[path] = value
        elif path and is_instance(value) and is_plain(value):
            self.values[path] = value
        elif kind in CONTAINERS or (isinstance(value, tuple) and is_instance(value)):
            self._add_container(path, value)
        elif path and _has_state_dict(value):
            self.with_state_dict[path] = value
        elif reason := _of_object(value):
            self.unsavable[path] = reason
        else:
            self.held[path] = value
            for name, item in attributes_of(value).items():
                if self.is_state is None or self.is_state(value, name, item):
                    self.add(f"{path}.{name}".removeprefix("."), item)

    def _add_container(self, path: str, value: Any) -> None:
        if is_plain(value):
            self.values[path] = value
        elif isinstance(value, dict) and all(type(key) in {str, int} for key in value):
            self.held[path] = value
            self._add_items(path, value.items())
        elif isinstance(value, list | tuple | deque):
            self.held |= {} if isinstance(value, tuple) else {path: value}
            self._add_items(path, enumerate(value))
        else:
            self.unsavable[path] = f"a {type(value).__name__} of objects. Keep their plain values instead"

    def _add_items(self, path: str, items: Iterable[tuple[Any, Any]]) -> None:
        for key, item in items:
            self.add(f"{path}[{key!r}]", item)


def is_plain(value: Any, around: tuple[int, ...] = ()) -> bool:
    """Returns True for plain values, arrays, tensors, dataclass instances, and containers of them alone."""
    kind = type(value)
    if kind in PLAIN or isinstance(value, _LEAVES) or is_constant(value):
        return True
    if isinstance(value, torch.Tensor | np.ndarray):
        return not _of_array(value)
    if id(value) in around:  # it holds itself
        return False
    inner = (*around, id(value))
    if kind not in CONTAINERS:  # named tuples, dataclass instances
        return is_instance(value) and all(is_plain(one, inner) for one in fields_of(value).values())
    if isinstance(value, dict):
        made = getattr(value, "default_factory", None)  # of another only the items are saved
        return made in _FACTORIES and all(map(_is_key, value)) and is_plain([*value.values()], inner)
    return set(map(type, value)) <= PLAIN or all(is_plain(one, inner) for one in value)


def _is_key(key: Any) -> bool:
    return type(key) in PLAIN or is_constant(key) or (type(key) is tuple and all(map(_is_key, key)))


def _of_array(value: Any) -> str:
    """Returns why an array or a tensor cannot be saved; empty if it can."""
    if isinstance(value, np.ndarray):
        if type(value) is not np.ndarray:
            return f"a {type(value).__name__}. Keep a plain array: np.asarray(...)"
        return "an array of objects. Keep numbers in it" if value.dtype.kind in "OV" else ""
    if value.layout is not torch.strided or value.is_quantized or value.is_meta:
        return f"a {value.layout} tensor. Keep a dense one"
    return "a tensor of a graph. Store tensor.detach()" if value.grad_fn is not None else ""


def _of_object(value: Any) -> str:
    """Returns why the attributes of an object are not all of its state; empty if they are."""
    kind = type(value)
    if is_table(kind):
        return (
            f'a {kind.__qualname__}: keep its rows in a list, rows = run.state.setdefault("rows", []), and '
            "make the table of them where it is read"
        )
    if _has_state_dict(value):
        return f"a {kind.__qualname__}, which has a state_dict. Give it to the run by a name of its own"
    of_library = has_hidden_memory(kind) or owner_of_module(kind.__module__) in {"framework", "standard"}
    if not isinstance(value, _NAMESPACES) and (of_library or isinstance(value, CONSTANTS)):
        return f"a {kind.__module__}.{kind.__qualname__}, whose state is not in attributes that can be set"
    return ""


def _has_state_dict(value: Any) -> bool:
    owns = torch.nn.Module | torch.optim.Optimizer
    return isinstance(value, owns) or hasattr(type(value), "load_state_dict")


@functools.lru_cache(maxsize=4096)
def has_hidden_memory(kind: type) -> bool:
    """Returns True if instances have memory besides attributes and slots: of a class in C, or made from one.

    Example:
        >>> has_hidden_memory(Parts), has_hidden_memory(type("MyList", (list,), {}))
        (False, True)
    """
    while kind is not object:
        base = kind.__base__
        assert base is not None
        slots, hidden = types.MemberDescriptorType, {"__dict__", "__weakref__"}
        shown = [name for name, item in vars(kind).items() if isinstance(item, slots) or name in hidden]
        if kind.__itemsize__ or kind.__basicsize__ - base.__basicsize__ > _POINTER * len(shown):
            return True
        kind = base
    return False


def refuse(call: str, unsavable: dict[str, str]) -> InvalidArgumentError:
    lines = "".join(f"\n  - {path or 'the object itself'} is {reason}." for path, reason in unsavable.items())
    paths = ", ".join(f'"{path}"' for path in unsavable)
    return InvalidArgumentError(
        f"{call}: cannot be saved without pickle:{lines}\n"
        "Saved are plain values, arrays, tensors, random generators, and containers and objects of them. To "
        "save it without these parts, if it works without their state: samebits.state.attributes(..., "
        f"ignore=[{paths}])."
    )
