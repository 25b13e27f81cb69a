"""What a user's loop holds outside of `Run`: live locals, globals, and the attributes of the user's own objects."""

from __future__ import annotations

import argparse
import collections
import functools
import inspect
import itertools
import os
import random
import sys
import sysconfig
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
import xxhash

from samebits import context, digest
from samebits.audit import liveness
from samebits.audit.leaves import PLAIN, Leaves, leaf, plain
from samebits.audit.random_state import of_generator

MAX_LEAVES = 300
_DEPTH = 5
_ITEMS = 16
"""Items of a container that are followed one by one; of longer ones the length and both ends count."""
_ENDS = 128
_LARGE = 1 << 16
"""Bytes from which on a tensor is hashed only when its version changed, and an array by a sample."""
_SKIPPED = (
    torch.optim.Optimizer,
    types.ModuleType,
    types.BuiltinFunctionType,
    types.GeneratorType,
    type,
)
_MODULE_OWN = frozenset(vars(torch.nn.Module()))
_LIBRARIES = tuple(
    os.path.realpath(path) + os.sep for path in {*sysconfig.get_paths().values()} if path
)  # the standard library, site-packages, the interpreter's scripts
_SAMEBITS = os.path.dirname(os.path.realpath(context.__file__)) + os.sep


def take(frame: types.FrameType | None, objects: dict[str, Any]) -> Leaves:
    """Leaves of the live locals of `frame`, of the script's globals, and of the attributes of `objects`.

    Bounded: at most MAX_LEAVES, containers and large arrays by samples. Never raises for a user's object.
    """
    walk = _Walk()
    for name, value in sorted((dict(_variables(frame)) | objects).items()):
        walk.value(name, value, 0)
    return Leaves(tuple(walk.names), b"".join(walk.hashes))


def _variables(frame: types.FrameType | None) -> Iterator[tuple[str, Any]]:
    loop = frame
    while loop is not None and loop.f_back is not None and _foreign(loop.f_code.co_filename):
        loop = loop.f_back
    while loop is not None:
        found = loop.f_locals
        for name in liveness.carried(loop.f_code, loop.f_lasti):
            if name in found:
                yield name, found[name]
        if not loop.f_code.co_flags & inspect.CO_GENERATOR:
            break
        loop = loop.f_back  # a generator of the user's around the loop: its consumer carries locals, too
    script = vars(sys.modules["__main__"])
    for name in _global_names(frame, script):
        if name in script and not name.startswith("__"):
            yield name, script[name]


def _global_names(frame: types.FrameType | None, script: dict[str, Any]) -> frozenset[str]:
    """Names of the script's globals that its functions use."""
    while frame is not None:
        if frame.f_globals is script and frame.f_code.co_name == "<module>":
            return liveness.names_read(frame.f_code)
        frame = frame.f_back
    return frozenset()


@functools.lru_cache(maxsize=4096)
def _foreign(filename: str) -> bool:
    """Whether code of this file is neither the user's nor samebits'."""
    if filename.startswith("<"):
        return filename.startswith("<frozen")
    path = os.path.realpath(filename)
    return path.startswith(_LIBRARIES) and not path.startswith(_SAMEBITS)


@functools.lru_cache(maxsize=4096)
def _is_users(kind: type) -> bool:
    """Whether instances of `kind` are the user's own objects, or samebits' callbacks."""
    if kind.__module__ == "__main__" or kind.__module__.startswith("samebits.callbacks"):
        return True
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    return file is not None and not _foreign(file) and not os.path.realpath(file).startswith(_SAMEBITS)


class _Walk:
    """One walk over objects; each object once."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.hashes: list[bytes] = []
        self._seen: set[int] = set()

    def _add(self, path: str, hashed: bytes) -> None:
        self.names.append(path)
        self.hashes.append(hashed)

    def value(self, path: str, value: Any, depth: int) -> None:
        kind = type(value)
        if len(self.names) >= MAX_LEAVES:
            return
        if kind in PLAIN:
            self._add(path, plain(value))
            return
        action = _action(kind)
        if action is None or id(value) in self._seen or depth > _DEPTH:
            return
        self._seen.add(id(value))
        action(self, path, value, depth)

    def tensor(self, path: str, value: torch.Tensor, depth: int) -> None:
        self._add(path, _tensor(value))

    def array(self, path: str, value: Any, depth: int) -> None:
        self._add(path, leaf(value) if value.nbytes <= _LARGE else _sampled(value))

    def generator(self, path: str, value: Any, depth: int) -> None:
        self._add(path, of_generator(value) or b"")

    def mapping(self, path: str, value: Mapping[Any, Any], depth: int) -> None:
        if len(value) > _ITEMS and set(map(type, value.values())) <= PLAIN:
            self._add(path, _ends([item for pair in value.items() for item in pair if type(item) in PLAIN]))
            return
        self._add(f"len({path})", plain(len(value)))
        for key, item in list(value.items())[:_ITEMS]:
            self.value(f"{path}[{key!r}]" if type(key) in PLAIN else f"{path}[...]", item, depth + 1)

    def sequence(self, path: str, value: Any, depth: int) -> None:
        if set(map(type, _both_ends(value))) <= PLAIN:
            self._add(path, _ends(value))
            return
        self._add(f"len({path})", plain(len(value)))
        for number in _numbers(len(value)):
            self.value(f"{path}[{number}]", value[number], depth + 1)

    def set(self, path: str, value: Any, depth: int) -> None:
        self._add(path, plain([len(value), *sorted(leaf(item) for item in value)][:_ENDS]))

    def function(self, path: str, value: types.FunctionType, depth: int) -> None:
        """Closures of the user's functions: their plain cells."""
        if value.__closure__ and not _foreign(value.__code__.co_filename):
            for name, cell in zip(value.__code__.co_freevars, value.__closure__, strict=True):
                try:
                    content = cell.cell_contents
                except ValueError:  # not assigned yet
                    continue
                if type(content) in PLAIN:
                    self._add(f"{path}.{name}", plain(content))

    def method(self, path: str, value: types.MethodType, depth: int) -> None:
        self.value(f"{path}.__self__", value.__self__, depth)

    def loader(self, path: str, value: Any, depth: int) -> None:
        parts = ("dataset", "sampler", "batch_sampler", "collate_fn")
        for part in parts:
            self.value(f"{path}.{part}", getattr(value, part, None), depth + 1)

    def counter(self, path: str, value: itertools.count[Any], depth: int) -> None:
        self._add(path, plain(repr(value)))

    def attributes(self, path: str, value: Any, depth: int) -> None:
        """Attributes of a user's object, its slots included; of a module without torch's own."""
        found = dict(getattr(value, "__dict__", ()))
        for kind in type(value).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            for slot in (slots,) if isinstance(slots, str) else slots:
                if slot not in {"__dict__", "__weakref__"} and hasattr(value, slot):
                    found[slot] = getattr(value, slot)
        module = isinstance(value, torch.nn.Module)
        for name, item in found.items():
            if not (module and name in _MODULE_OWN):
                self.value(f"{path}.{name}", item, depth + 1)
        if module:
            self.submodules(path, value, depth)

    def submodules(self, path: str, value: torch.nn.Module, depth: int) -> None:
        for name, part in value._modules.items():
            if part is not None:
                self.value(f"{path}.{name}", part, depth + 1)


_Action = Callable[[_Walk, str, Any, int], None]


@functools.lru_cache(maxsize=4096)
def _action(kind: type) -> _Action | None:
    """What is done with values of a type; None: nothing."""
    if issubclass(kind, _SKIPPED):
        return None
    for bases, action in _ACTIONS:
        if issubclass(kind, bases):
            return action
    if _is_users(kind):
        return _Walk.attributes
    return _Walk.submodules if issubclass(kind, torch.nn.Module) else None


_ACTIONS: tuple[tuple[Any, _Action], ...] = (
    (torch.Tensor, _Walk.tensor),
    ((np.ndarray, np.generic), _Walk.array),
    ((torch.Generator, np.random.Generator, np.random.RandomState, random.Random), _Walk.generator),
    (types.FunctionType, _Walk.function),
    (types.MethodType, _Walk.method),
    (torch.utils.data.DataLoader, _Walk.loader),
    (dict, _Walk.mapping),
    ((list, tuple), _Walk.sequence),
    (collections.deque, lambda walk, path, value, depth: walk.sequence(path, list(value), depth)),
    ((set, frozenset), _Walk.set),
    (itertools.count, _Walk.counter),
    ((types.SimpleNamespace, argparse.Namespace), _Walk.attributes),
)


def _both_ends(value: Any) -> list[Any]:
    return list(value) if len(value) <= 2 * _ENDS else [*value[:_ENDS], *value[-_ENDS:]]


def _ends(value: Any) -> bytes:
    return plain([len(value), type(value).__name__, *_both_ends(value)])


def _numbers(length: int) -> range | list[int]:
    return range(length) if length <= _ITEMS else [*range(_ITEMS // 2), *range(length - _ITEMS // 2, length)]


_VERSIONS: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()
_HASHED: dict[int, tuple[int, int, bytes]] = {}


def _tensor(value: torch.Tensor) -> bytes:
    """Hash of a tensor; of a large one again only when torch counted a write to it, or it moved."""
    if value.numel() * value.element_size() <= _LARGE or value.is_inference():
        return leaf(value)
    now = (value._version, value.data_ptr())
    if _VERSIONS.get(id(value)) is value and _HASHED[id(value)][:2] == now:
        return _HASHED[id(value)][2]
    hashed = leaf(value)
    _VERSIONS[id(value)] = value
    _HASHED[id(value)] = (*now, hashed)
    return hashed


def _sampled(value: np.ndarray) -> bytes:
    """Hash of shape, type and 4,096 elements spread over a large array."""
    step = max(1, value.size // 4096)
    sample: Any = np.ascontiguousarray(
        value.reshape(-1)[::step] if value.flags.c_contiguous else value.flat[::step]
    )
    if sample.dtype.kind == "O":
        return plain(value.shape)
    return xxhash.xxh3_64_digest(sample.view(np.uint8), digest.leaf(f"{value.dtype}{value.shape}"))
