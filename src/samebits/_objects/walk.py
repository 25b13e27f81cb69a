"""One bounded walk over a user's objects: values become leaves with paths that a reader would write."""

from __future__ import annotations

import argparse
import collections
import enum
import functools
import itertools
import operator
import types
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import xxhash
from torch.utils.data.dataloader import _BaseDataLoaderIter

from samebits import _digest as digest
from samebits._dtensors import local
from samebits._inspect.user_code import is_library, is_user_type
from samebits._objects.hashes import CONSTANTS, PLAIN, Leaves, leaf, nested, plain
from samebits._objects.parts import attributes_of, closure_of, contents, defaults_of, own_names, reader_of
from samebits._objects.rng_states import GENERATORS, of_generator

_ITERATORS = (
    types.GeneratorType,
    _BaseDataLoaderIter,
    *{type(iter(empty)) for empty in ([], (), range(0), {}, {}.values(), {}.items(), set(), "")},
    enumerate,
    zip,
    map,
)


@functools.lru_cache(maxsize=4096)
def action_of(kind: type) -> str | None:
    """The method of `Walk` for values of a type; None: they are not looked at."""
    for bases, action in _ACTIONS:
        if issubclass(kind, bases):
            return action
    if is_user_type(kind):
        return "attributes"
    if issubclass(kind, torch.utils.data.Sampler):
        return "sampler"
    if issubclass(kind, Iterator) and kind.__module__.startswith("samebits.data"):
        return "iterator"
    if issubclass(kind, torch.optim.Optimizer) or kind.__module__.startswith("samebits"):
        return None
    return "stateful" if hasattr(kind, "state_dict") else None


@functools.lru_cache(maxsize=4096)
def thorough_action_of(kind: type) -> str | None:
    """The same for a thorough walk."""
    if issubclass(kind, type):
        return "user_class"
    return "library" if reader_of(kind) is not None and not is_user_type(kind) else action_of(kind)


_ACTIONS: tuple[tuple[Any, str | None], ...] = (
    ((types.ModuleType, types.BuiltinFunctionType, type), None),
    (torch.Tensor, "tensor"),
    ((np.ndarray, np.generic), "array"),
    (GENERATORS, "generator"),
    (types.FunctionType, "function"),
    (types.MethodType, "method"),
    (torch.utils.data.DataLoader, "loader"),
    (dict, "mapping"),
    ((list, tuple), "sequence"),
    (collections.deque, "ends"),
    ((set, frozenset), "set"),
    (itertools.count, "counter"),
    (_ITERATORS, "iterator"),
    (torch.nn.Module, "module"),
    ((types.SimpleNamespace, argparse.Namespace), "attributes"),
    (CONSTANTS, "constant"),
)


ITEMS = 16
"""Items of a container that are followed one by one; of longer ones the length and both ends count."""
ENDS = 128
SET_ITEMS = 1 << 16
"""Items of a set that are hashed; of a larger one the length counts."""
_LARGE = 1 << 16
"""Bytes from which on a tensor is hashed only when its version changed, and an array by a sample."""


def both_ends(value: Any) -> list[Any]:
    """The items of a sequence; of a long one the first and the last."""
    return list(value) if len(value) <= 2 * ENDS else [*value[:ENDS], *value[-ENDS:]]


def of_ends(value: Any) -> bytes:
    """Hash of a sequence of plain values."""
    return plain([len(value), type(value).__name__, *both_ends(value)])


def numbers(length: int) -> range | list[int]:
    """The items of a sequence that are followed."""
    return range(length) if length <= ITEMS else [*range(ITEMS // 2), *range(length - ITEMS // 2, length)]


_VERSIONS: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()
_HASHED: dict[int, tuple[int, int, bytes]] = {}


def of_tensor(value: torch.Tensor) -> bytes:
    """Hash of a tensor; of a large one again only when torch counted a write to it, or it moved."""
    if value.numel() * value.element_size() <= _LARGE or value.is_inference():
        return leaf(value)
    now = (value._version, local(value).data_ptr())
    if _VERSIONS.get(id(value)) is value and _HASHED[id(value)][:2] == now:
        return _HASHED[id(value)][2]
    hashed = leaf(value)
    _VERSIONS[id(value)] = value
    _HASHED[id(value)] = (*now, hashed)
    return hashed


def of_array(value: np.ndarray) -> bytes:
    """Hash of an array; of a large one of shape, type and 4,096 elements spread over it."""
    if value.nbytes <= _LARGE:
        return leaf(value)
    step = max(1, value.size // 4096)
    some = value.reshape(-1)[::step] if value.flags.c_contiguous else value.flat[::step]
    sample: Any = np.ascontiguousarray(some)
    if sample.dtype.kind == "O":
        return plain(value.shape)
    return xxhash.xxh3_64_digest(sample.view(np.uint8), digest.leaf(f"{value.dtype}{value.shape}"))


_UNSET = object()
MAX_LEAVES = 300
DEPTH = 5
_PLAIN_SEQUENCES = (list, tuple)
_OF_CLASSES = (
    types.FunctionType, types.MemberDescriptorType, types.GetSetDescriptorType, property, staticmethod,
    classmethod, functools.cached_property,
)  # fmt: skip


class Walk(ABC):
    """One walk over objects, which reads each object once.

    A subclass says what is kept of a value (`add`), what is done on the way to it (`value`, `part`), and
    which method reads the values of a type (`action`). The methods that read are final.

    Args:
        most: the number of leaves after which nothing more is read.
        thorough: also reads all in a function's cells and defaults, classes, and the library's objects.
    """

    def __init__(self, most: int = MAX_LEAVES, *, thorough: bool = False) -> None:
        self.most = most
        self.thorough = thorough
        self.names: list[str] = []
        self._seen: set[int] = set()
        self._given: set[int] = set()

    @abstractmethod
    def add(self, path: str, hashed: bytes) -> None:
        """Keeps one leaf."""

    @abstractmethod
    def value(self, path: str, value: Any, depth: int) -> None:
        """Walks any value: `read`, and what the subclass does before and after."""

    @abstractmethod
    def part(self, kind: str, name: str, path: str, value: Any, depth: int) -> None:
        """Walks a value inside another: an "attr", "item", closure's "name", "module" or its "tensor"."""

    @abstractmethod
    def action(self, kind: type) -> str | None:
        """Returns the name of the method for values of a type; None if they are not read."""

    @abstractmethod
    def key(self, key: Any, number: int) -> str:
        """Returns the text of a dict's key in a path; `number`: of the item, in the order of the walk."""

    def skip(self, objects: dict[str, Any]) -> None:
        """Notes objects given to `Run`, whose state_dict is elsewhere: only what it leaves out is walked."""
        for thing in objects.values():
            self._given.add(id(thing))
            self._seen.update(map(id, getattr(thing, "__saved_objects__", list)()))  # an adapter's are whole
            if isinstance(thing, torch.nn.Module):
                self._given.update(map(id, thing.modules()))

    def read(self, path: str, value: Any, depth: int) -> None:
        kind = type(value)
        if len(self.names) >= self.most:
            return
        if kind in PLAIN:
            self.add(path, plain(value))
            return
        action = self.action(kind)
        if action == "constant":  # two variables may hold the same one
            self.add(path, leaf(value))
            return
        if action is None or id(value) in self._seen or depth > DEPTH:
            return
        self._seen.add(id(value))
        getattr(self, action)(path, value, depth)

    def tensor(self, path: str, value: torch.Tensor, depth: int) -> None:
        self.add(path, of_tensor(value))

    def array(self, path: str, value: Any, depth: int) -> None:
        self.add(path, of_array(value))

    def generator(self, path: str, value: Any, depth: int) -> None:
        """Adds one leaf: the state of a random generator, unless a module given to `Run` holds it."""
        if id(value) not in self._given:
            self.add(path, of_generator(value) or b"")

    def mapping(self, path: str, value: dict[Any, Any], depth: int) -> None:
        """Walks a dict's keys and some items; one leaf if long and plain; of a very long one its length."""
        pairs = list(dict.items(value))  # not the methods of a user's subclass
        if len(pairs) > ITEMS and {type(item) for _, item in pairs} <= PLAIN:
            self.add(path, of_ends([item for pair in pairs for item in pair if type(item) in PLAIN]))
            return
        if len(pairs) > 4 * ITEMS:
            self.add(f"{path}.keys()", plain(len(pairs)))
            return
        hashed = sorted(((leaf(key), key, item) for key, item in pairs), key=operator.itemgetter(0))
        keys = [own for own, _, _ in hashed]  # sorted: filled in another order after a resume
        self.add(f"{path}.keys()", plain(keys))
        for number, (_, key, item) in enumerate(hashed[:ITEMS]):
            self.part("item", "", f"{path}[{self.key(key, number)}]", item, depth + 1)

    def sequence(self, path: str, value: Any, depth: int) -> None:
        """Adds one leaf if a sequence is plain, else its length and some items."""
        if type(value) not in _PLAIN_SEQUENCES:  # not the methods of a user's subclass
            value = [*(list if isinstance(value, list) else tuple).__iter__(value)]
        if set(map(type, both_ends(value))) <= PLAIN:
            self.add(path, of_ends(value))
            return
        self.add(f"len({path})", plain(len(value)))
        for number in numbers(len(value)):
            self.part("item", "", f"{path}[{number}]", value[number], depth + 1)

    def ends(self, path: str, value: collections.deque[Any], depth: int) -> None:
        self.sequence(path, list(value), depth)

    def set(self, path: str, value: Any, depth: int) -> None:
        """Adds one leaf for a set, whatever the order."""
        hashed = sorted(leaf(item) for item in value) if len(value) <= SET_ITEMS else ()
        self.add(path, plain([len(value), *hashed][:ENDS]))

    def function(self, path: str, value: types.FunctionType, depth: int) -> None:
        """Walks the closures of the user's functions: plain cells; if `thorough`, all cells and defaults."""
        if is_library(value.__code__.co_filename):
            return
        for name, cell in closure_of(value):
            content = contents(cell, _UNSET)
            if content is not _UNSET and (type(content) in PLAIN or self.thorough):
                self.part("name", name, f"{path}.{name}", content, depth + 1)
        if self.thorough:
            for name, default in defaults_of(value):
                if type(default) not in PLAIN:
                    self.part("name", name, f"{path}.{name}", default, depth + 1)

    def library(self, path: str, value: Any, depth: int) -> None:
        """Walks the contents of an object of Python's library (`reader_of`)."""
        reader = reader_of(type(value))
        for kind, suffix, item in () if reader is None else reader(value):
            self.part(kind, suffix.strip(".()"), path + suffix, item, depth + 1)

    def user_class(self, path: str, value: type, depth: int) -> None:
        """Walks the attributes of a user's class, and of its metaclass."""
        for kind in (value, type(value)):
            own = is_user_type(kind) and not issubclass(kind, enum.Enum)
            for name, item in list(vars(kind).items()) if own else ():
                if not name.startswith(("__", "_abc_")) and not isinstance(item, _OF_CLASSES):
                    self.part("attr", name, f"{path}.{name}", item, depth + 1)

    def method(self, path: str, value: types.MethodType, depth: int) -> None:
        self.value(f"{path}.__self__", value.__self__, depth)

    def loader(self, path: str, value: Any, depth: int) -> None:
        """Walks the user's objects in a loader: dataset, samplers and collate function."""
        parts = ("dataset", "sampler", "batch_sampler", "collate_fn")
        for part in parts:
            self.value(f"{path}.{part}", getattr(value, part, None), depth + 1)

    def sampler(self, path: str, value: Any, depth: int) -> None:
        """Walks a torch sampler's attributes; its private generator is left to the loader and to `Run`."""
        for name, item in vars(value).items():
            if name != "generator":
                self.part("attr", name, f"{path}.{name}", item, depth + 1)

    def counter(self, path: str, value: itertools.count[Any], depth: int) -> None:
        self.add(path, plain(repr(value)))

    def attributes(self, path: str, value: Any, depth: int) -> None:
        """Walks the attributes of a user's object, its slots included; of a module without torch's own."""
        own = own_names(type(value))
        for name, item in attributes_of(value).items():
            if name not in own:
                self.part("attr", name, f"{path}.{name}", item, depth + 1)
        if self.thorough and id(type(value)) not in self._seen:
            for kind in type(value).__mro__:
                if is_user_type(kind):
                    self.value(kind.__qualname__, kind, depth)

    def module(self, path: str, value: torch.nn.Module, depth: int) -> None:
        """Walks the attributes of a user's module; tensors only of a module that `Run` does not know."""
        if is_user_type(type(value)):
            self.attributes(path, value, depth)
        if id(value) not in self._given:
            for name, tensor in (*value._parameters.items(), *value._buffers.items()):
                if tensor is not None:
                    self.part("tensor", name, f"{path}.{name}", tensor, depth + 1)
        for name, part in value._modules.items():
            if part is not None:
                self.part("module", name, f"{path}.{name}", part, depth + 1)

    def stateful(self, path: str, value: Any, depth: int) -> None:
        """Walks the state_dict of a library's object (a scheduler, a scaler) not given to `Run`."""
        if id(value) in self._given:
            return
        try:
            state = value.state_dict()
        except Exception:  # not usable yet; no state then
            return
        for name, hashed in itertools.islice(nested(state, path), MAX_LEAVES):
            self.add(name, hashed)

    def iterator(self, path: str, value: Any, depth: int) -> None:
        """Adds an iterator's position: by items left, items yielded, or the place in a generator."""
        if isinstance(value, types.GeneratorType):
            frame = value.gi_frame
            stands = {} if frame is None else frame.f_locals
            known = [item for _, item in sorted(stands.items()) if type(item) in PLAIN]
            self.add(path, plain([-1 if frame is None else frame.f_lasti, *known]))
        elif hasattr(value, "position"):  # of a loader or a pipeline; which elements it gave does not count
            at = value.position
            self.add(path, plain([at.epoch, at.delivered, repr(at.state)]))
        elif isinstance(value, _BaseDataLoaderIter):
            self.add(path, plain(value._num_yielded))
        elif hasattr(value, "__length_hint__"):
            self.add(path, plain(operator.length_hint(value)))
        else:  # enumerate, zip, map
            for number, item in enumerate(value.__reduce__()[1]):
                if isinstance(item, Iterator):
                    self.value(f"{path}[{number}]", item, depth + 1)


class LeafWalk(Walk):
    """A walk that keeps the hash of each leaf."""

    def __init__(self, most: int = MAX_LEAVES, *, thorough: bool = False) -> None:
        super().__init__(most, thorough=thorough)
        self.hashes: list[bytes] = []

    value = Walk.read

    def leaves(self) -> Leaves:
        """Returns the leaves that were found so far."""
        return Leaves(tuple(self.names), b"".join(self.hashes))

    def add(self, path: str, hashed: bytes) -> None:
        self.names.append(path)
        self.hashes.append(hashed)

    def part(self, kind: str, name: str, path: str, value: Any, depth: int) -> None:
        self.read(path, value, depth)

    def action(self, kind: type) -> str | None:
        return thorough_action_of(kind) if self.thorough else action_of(kind)

    def key(self, key: Any, number: int) -> str:
        """Returns the key itself if it is plain."""
        return repr(key) if type(key) in PLAIN else "..."


def leaves_in(name: str, value: Any) -> Leaves:
    walk = LeafWalk()
    walk.value(name, value, 0)
    return walk.leaves()


def hashes_in(name: str, value: Any) -> frozenset[bytes]:
    return frozenset(leaves_in(name, value).by_name().values())
