"""The objects that a commit holds, by identity and memory: which of them a name of the program means.

`best = pool[3]` names an element of what is saved. A commit has the element, and not that `best` means
it. And a `load_state_dict` that replaces a list leaves the old one to the list's second name.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from samebits import _digest as digest
from samebits._inspect.user_code import is_user_type
from samebits._objects.hashes import PLAIN
from samebits._objects.parts import attributes_of, own_names
from samebits.state._attributes import Attributes
from samebits.train._committed_state import CommittedState
from samebits.train._completeness import kinds_of_state

_MOST, _PATHS = 50_000, 4
"""Paths that are followed, and those of one object."""


class SavedPath(str):
    """A path of a saved object as the program may write it: `run.state.pool[3]`."""

    __slots__ = ("paths",)
    paths: frozenset[str]
    """All of its paths: `run.state.best`, too."""

    def __repr__(self) -> str:
        return str(self)


def saved_path(paths: Iterable[str]) -> SavedPath | None:
    """Returns the first path with the others; None without any."""
    found = list(paths)
    path = SavedPath(found[0] if found else "")
    path.paths = frozenset(found)
    return path if found else None


class SavedObjects:
    """The paths of what a run saves. `wanted`: paths whose objects are kept to be compared with others."""

    def __init__(self, objects: Mapping[str, Any], saved: CommittedState, wanted: Iterable[str] = ()) -> None:
        self._paths: dict[Any, list[str]] = {}
        self._memory: dict[int, tuple[list[str], int]] = {}
        self._wanted: dict[str, Any] = dict.fromkeys(wanted)
        waiting = deque(_roots(objects, saved))
        for _ in itertools.takewhile(lambda _: waiting, range(_MOST)):
            path, value = waiting.popleft()  # the shortest path of an object comes first
            if type(value) not in PLAIN and self._add(path, value):
                waiting.extend(_parts(path, value))

    def path_of(self, value: Any) -> SavedPath | None:
        """Returns the path of a saved object, or of one whose memory the value is a view of; else None."""
        paths = self._paths.get(_key(value), [])
        if not paths and isinstance(value, torch.Tensor | np.ndarray):
            owners, at = self._memory.get(memory_of(value), ([], 0))
            paths = [f"{one}[a view: {_offset(value) - at}, {[*value.shape]}]" for one in owners]
        return saved_path(paths)

    def is_equal(self, value: Any, path: str) -> bool:
        saved = self._wanted.get(path)
        with suppress(Exception):  # of a class that has no digest
            return type(saved) is type(value) and not digest.differing([value], [saved])
        return False

    def _add(self, path: str, value: Any) -> bool:
        paths = self._paths.setdefault(_key(value), [])
        if path in self._wanted:
            self._wanted[path] = value
        if isinstance(value, torch.Tensor | np.ndarray):
            self._memory.setdefault(memory_of(value), (paths, _offset(value)))
        if len(paths) < _PATHS and path not in paths:
            paths.append(path)
            return True
        return False


def _roots(objects: Mapping[str, Any], saved: CommittedState) -> Iterator[tuple[str, Any]]:
    yield from ((f"run.state.{name}", value) for name, value in saved.run_state.items())
    for name, thing in objects.items():
        yield name, thing
        if isinstance(thing, torch.nn.Module):
            yield from ((f"{name}.{path}", one) for path, one in thing.named_modules() if path)
            yield from ((f"{name}.{path}", one) for path, one in thing.named_parameters())
        elif isinstance(thing, Attributes):
            yield from ((joined(name, path), one) for path, one in thing.held())
        elif isinstance(thing, torch.optim.Optimizer):
            yield f"{name}.param_groups", thing.param_groups
            yield f"{name}.state", thing.state
        state = saved.objects.get(name)
        yield from ((f"{name}.{path}", one) for path, one in state.items()) if isinstance(state, dict) else ()
    yield from ((f"{path}.grad", one) for path, one in saved.grads.items())
    yield from ((path, one) for path, one in saved.optimizer_only.items())
    yield from ((name, one) for name, one in saved.buffers.items())


def _parts(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for number, (key, item) in enumerate(value.items()):
            yield f"{path}[{key!r}]" if type(key) in PLAIN else f"{path}[...{number}]", item
    elif isinstance(value, list | tuple | deque) and len(value) <= kinds_of_state.MOST_ITEMS:
        yield from ((f"{path}[{number}]", item) for number, item in enumerate(value))
    elif is_user_type(type(value)) and not isinstance(value, Attributes) and not _saves_parts_alone(value):
        own = own_names(type(value))
        found = attributes_of(value).items()
        yield from ((f"{path}.{name}", item) for name, item in found if name not in own)


def joined(name: str, path: str) -> str:
    """Returns the path of a part of an object."""
    return f"{name}{path}" if path[:1] in {"", "["} else f"{name}.{path}"


def _key(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and (memory := memory_of(value)) > 0:
        return memory, _offset(value), value.dtype, value.shape, value.stride()
    return id(value)


def memory_of(value: Any) -> int:
    """Returns what is equal for all views of one memory."""
    if isinstance(value, torch.Tensor):
        return kinds_of_state.of_tensor(value)
    while isinstance(value.base, np.ndarray):
        value = value.base
    return memory_of(value.base) if isinstance(value.base, torch.Tensor) else _offset(value)


def _offset(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return int(value.__array_interface__["data"][0])
    inside = value.storage_offset() * value.element_size() if value.layout is torch.strided else 0
    return memory_of(value) + inside


def _saves_parts_alone(value: Any) -> bool:
    """Returns True for a module that saves its parameters, buffers and modules, and no other attribute."""
    names, base = ("state_dict", "get_extra_state"), torch.nn.Module
    own = any(getattr(type(value), name, None) is not getattr(base, name) for name in names)
    return isinstance(value, base) and not own
