"""Restores objects in place, so that references that the program holds stay valid, and one object stays one.

`buffer = run.state.setdefault("buffer", deque())` before the loop gives one object two names, so that a
change under one name shows under the other. A resumed program enters its loop with objects under both names,
too. So a saved object is restored into the one that the program has at its place, at any depth
(`Restored.bind`), and wherever it is met again, this one is put (`Restored.of`). An object that the loop has
replaced is not that of the beginning: a commit lists such places (`PlacedObjects.replaced`), and there the
program's object is left alone.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
import torch

from samebits._objects.hashes import PLAIN
from samebits._objects.memory import fill_tensor, with_strides
from samebits.checkpoint import _classes as classes
from samebits.checkpoint._classes import items_of

Path = tuple[Any, ...]
MUTABLE = dict | list | deque | set | bytearray | np.ndarray | torch.Tensor


def can_change(value: Any) -> bool:
    """Returns True for what is restored in place: containers, arrays, tensors, dataclass instances."""
    return isinstance(value, MUTABLE) or (classes.is_instance(value) and not isinstance(value, tuple))


def _objects_in(value: Any) -> list[tuple[Any, Any]]:
    """Returns the items of a container that are no plain values."""
    items = items_of(value)
    if isinstance(value, dict | list | deque) and PLAIN.issuperset(
        map(type, value.values() if isinstance(value, dict) else value)
    ):
        return []
    return [(key, item) for key, item in items if type(item) not in PLAIN]


class PlacedObjects:
    """The objects that a program has put at their places before its loop, and those that were replaced."""

    def __init__(self) -> None:
        self._held: dict[Path, tuple[Any, dict[Any, Any]]] = {}
        self._replaced: dict[Path, None] = {}

    def note(self, values: Mapping[Any, Any], made: Collection[int] = ()) -> None:
        """Notes the objects in `values`, but those with the ids `made`: a resume has put them there."""
        self._held, seen = {}, set()

        def add(path: Path, owner: Any) -> None:
            seen.add(id(owner))
            inner = _objects_in(owner)
            held = {key: item for key, item in inner if can_change(item) and id(item) not in made}
            if held:
                self._held[path] = owner, held
            for key, item in inner:
                if id(item) not in seen:
                    add((*path, key), item)

        add((), values)

    def paths(self) -> list[Path]:
        return [(*path, key) for path, (_, held) in self._held.items() for key in held]

    def replaced(self, values: Mapping[Any, Any] | None = None) -> list[Path]:
        """Returns the places where another object, or none, is by now; `values`: what `note` had, by now."""
        for path, (owner, held) in self._held.items():
            now = dict(items_of(values if values is not None and not path else owner))
            gone = [key for key, item in held.items() if now.get(key) is not item]
            for key in gone:
                del held[key]
                self._replaced[*path, key] = None
        return list(self._replaced)

    def has(self, path: Path) -> bool:
        """Returns True for a place with the object of the beginning (as `replaced` saw it last)."""
        return path[:-1] in self._held and path[-1] in self._held[path[:-1]][1]


class Restored:
    """The live objects of saved ones: each saved object is one live object, under all of its names.

    `made`: gets the objects that had to be made.
    """

    def __init__(self, made: dict[int, Any] | None = None) -> None:
        self._made = {} if made is None else made
        self._live: dict[int, Any] = {}
        self._taken: dict[int, tuple[Any, int]] = {}
        self._done: dict[int, Any] = {}
        self.instances: dict[int, Any] = {}
        """The objects of the program's classes, by their numbers in the commit."""

    def bind(self, saved: Any, live: Any, replaced: Collection[Path] = (), path: Path = ()) -> None:
        """Notes that the object `live` takes the content of `saved`, and the objects in it those in `saved`.

        `path` and those below it that are in `replaced` are left alone.
        """
        if type(saved) in PLAIN or (path in replaced and id(live) not in self._made):
            return
        if can_change(saved):
            if not _can_take(live, saved):
                return
            if self._taken.setdefault(id(live), (live, id(saved)))[1] != id(saved):
                return
            self._live.setdefault(id(saved), live)
        self.bind_items(saved, live, replaced, path)

    def bind_items(self, saved: Any, live: Any, replaced: Collection[Path] = (), path: Path = ()) -> None:
        inner = _objects_in(saved)
        mine = dict(items_of(live)) if inner else {}
        for key, item in inner:
            if key in mine:
                self.bind(item, mine[key], replaced, (*path, key))

    def again(self) -> None:
        """Fills all objects once more at the next `of`: somebody may have changed them."""
        self._live.update(self._done)
        self._done = {}

    def of(self, saved: Any) -> Any:
        """Returns the live object of `saved` with its content, or a copy."""
        if type(saved) in PLAIN:
            return saved
        if id(saved) not in self._done:
            live = self._live.get(id(saved))
            if live is None:
                live = _empty_like(saved) if can_change(saved) else self._copy(saved)
                self._made[id(live)] = live
            self._done[id(saved)] = live
            if can_change(saved):
                self._fill(live, saved)
        return self._done[id(saved)]

    def _copy(self, saved: Any) -> Any:
        if not isinstance(saved, tuple) or isinstance(saved, torch.Size):
            return copy.deepcopy(saved)
        items = {name: self.of(item) for name, item in items_of(saved)}
        return tuple(items.values()) if type(saved) is tuple else classes.make(type(saved), items)

    def _fill(self, live: Any, saved: Any) -> None:
        if isinstance(saved, torch.Tensor):
            fill_tensor(live, saved)
        elif isinstance(saved, np.ndarray):
            live[...] = saved
        elif isinstance(saved, MUTABLE):
            items = self._items(saved)
            live.clear()  # the order of a dict is state
            (live.update if isinstance(saved, dict | set) else live.extend)(items)
            if type(saved) is OrderedDict:
                vars(live).update(self._items(vars(saved)))
        else:
            classes.set_fields(live, self._items(classes.fields_of(saved)))

    def _items(self, saved: Any) -> Any:
        if isinstance(saved, set | bytearray):
            return saved
        if isinstance(saved, dict):
            return {key: self.of(item) for key, item in saved.items()}
        return list(map(self.of, saved))


def _empty_like(saved: Any) -> Any:
    """Returns an object of the kind of `saved`, to be filled."""
    kind = type(saved)
    if isinstance(saved, torch.Tensor):
        return copy.deepcopy(saved)
    if isinstance(saved, np.ndarray):
        return saved.copy("K") if saved.flags.forc else with_strides(saved, saved.strides)
    if kind is deque:
        return deque(maxlen=saved.maxlen)
    if kind is defaultdict:
        return defaultdict(saved.default_factory)
    return kind() if isinstance(saved, MUTABLE) else classes.make(kind, {})


def _can_take(live: Any, saved: Any) -> bool:
    if isinstance(saved, torch.Tensor):
        return (
            isinstance(live, torch.Tensor)
            and (live.layout, live.dtype, live.shape) == (saved.layout, saved.dtype, saved.shape)
            and (live.stride() == saved.stride() or saved.numel() < 2)
        )
    if type(live) is not type(saved):
        return False
    if isinstance(saved, np.ndarray):
        same = (live.shape, live.dtype) == (saved.shape, saved.dtype) and live.flags.writeable
        return same and (live.strides == saved.strides or saved.size < 2)
    if isinstance(saved, defaultdict):
        return live.default_factory is saved.default_factory
    return not isinstance(saved, deque) or live.maxlen == saved.maxlen


def devices_in(values: Mapping[Any, Any], path: Path = ()) -> list[tuple[Path, str]]:
    """Returns the devices of tensors that are not on the CPU, in nested dicts."""
    found = []
    for name, value in values.items():
        if isinstance(value, torch.Tensor) and not value.is_cpu:
            found.append(((*path, name), str(value.device)))
        elif isinstance(value, dict) and len(path) < _MOST_LEVELS:
            found += devices_in(value, (*path, name))
    return found


_MOST_LEVELS = 8


def move_to_devices(values: dict[Any, Any], devices: Iterable[tuple[Path, str]]) -> None:
    """Moves tensors from the CPU, where a commit's are, to their former devices; without a GPU they stay."""
    for path, device in devices:
        if not device.startswith("cuda") or torch.cuda.is_available():
            owner = value_at(values, path[:-1])
            owner[path[-1]] = owner[path[-1]].to(device)


def is_valid(aliases: Any, values: Mapping[Any, Any]) -> bool:
    """Returns True if `aliases` may be what a run wrote with such values of `run.state`."""
    try:
        on_devices = [value_at(values, path) for path, device in aliases["devices"] if torch.device(device)]
        paths = [*aliases["run_state"], *aliases["grads"], *(path for path, _ in aliases["devices"])]
        return len(set(paths)) >= 0 and all(
            [type(path) is tuple and path for path in paths]
            + [isinstance(one, torch.Tensor) for one in on_devices]
            + [type(at) is int for _, at, _ in aliases.get("optimizers", ())]
        )
    except (KeyError, TypeError, IndexError, ValueError, RuntimeError):
        return False


def value_at(values: Any, path: Path) -> Any:
    for name in path:
        values = values[name]
    return values
