"""Restores objects in place, so that references that the program holds stay valid.

`buffer = run.state.setdefault("buffer", deque())` before the loop gives one object two names, so that a
change under one name shows under the other. A resumed program enters its loop with a new object under both
names. So a commit records which values of `run.state` are still those that the loop began with (`kept`: they
are filled again, in place), which paths lead to the same object (`same`), and which tensors are on a GPU
(`devices`). All others were assigned to `run.state` in the loop, and are assigned again. Only its values and
those of small dicts in it count, not the items of lists and large dicts: a replay buffer or a table of values
has a million of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from samebits._inspect.tree import PLAIN

MUTABLE = dict | list | deque | set | bytearray | np.ndarray | torch.Tensor
_MOST_ITEMS = 256
"""Items of a container that are walked over and restored in place; those of longer ones are replaced."""


def mutable_inside(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yields a value and the items of containers in it that can be filled in place, by their paths."""
    if not isinstance(value, MUTABLE):
        return
    yield path, value
    if isinstance(value, dict | list | deque) and len(value) <= _MOST_ITEMS:
        for key, item in _items(value):
            if type(item) not in PLAIN:
                yield from mutable_inside(f"{path}[{key!r}]", item)


def _items(value: Any) -> list[tuple[Any, Any]]:
    return list(value.items() if isinstance(value, dict) else enumerate(value))


def fill_in_place(target: Any, saved: Any, path: str = "", kept: Collection[str] = ()) -> bool:
    """Gives `target` the content of `saved`; returns False, without a change, if it is of another kind.

    `kept`: the paths of the items that are filled in place, too; other items are replaced.
    """
    if type(target) is not type(saved) or not isinstance(saved, MUTABLE):
        return False
    if isinstance(saved, torch.Tensor):
        if (target.shape, target.dtype, target.layout) != (saved.shape, saved.dtype, saved.layout):
            return False
        with torch.no_grad():
            target.copy_(saved)
    elif isinstance(saved, np.ndarray):
        if (target.shape, target.dtype) != (saved.shape, saved.dtype) or not target.flags.writeable:
            return False
        target[...] = saved
    elif isinstance(saved, set | bytearray):
        target.clear()
        (target.update if isinstance(saved, set) else target.extend)(saved)
    elif isinstance(saved, deque) and target.maxlen != saved.maxlen:
        return False
    else:
        chosen = _with_kept_items(target, saved, path, kept) if kept else saved
        target.clear()  # the order of a dict is state
        (target.update if isinstance(saved, dict) else target.extend)(chosen)
    return True


def _with_kept_items(target: Any, saved: Any, path: str, kept: Collection[str]) -> Any:
    """Returns the items of `saved`, but the target's own, filled, where it is kept and met once in both."""
    old, new = dict(_items(target)), dict(_items(saved))
    for items in (old, new):
        ids = [id(item) for item in items.values()]
        if any(ids.count(id(item)) > 1 for item in items.values() if isinstance(item, MUTABLE)):
            return saved
    for key, item in new.items():
        inner = f"{path}[{key!r}]"
        if inner in kept and key in old and fill_in_place(old[key], item, inner, kept):
            new[key] = old[key]
    return new if isinstance(saved, dict) else list(new.values())


Path = tuple[Any, ...]


class StateAliases:
    """The objects with which the outermost loop under way began."""

    def __init__(self) -> None:
        self._initial: dict[Path, Any] = {}

    def begin(self, values: Mapping[Any, Any]) -> None:
        """Notes the values at the beginning of a loop; a resume restores them later."""
        self._initial = dict(mutable_values(values))

    def state(self, values: Mapping[Any, Any]) -> dict[str, list[Any]]:
        """Returns the aliases for a commit; replaced objects are no longer referenced."""
        now = dict(mutable_values(values))
        self._initial = {path: value for path, value in self._initial.items() if now.get(path) is value}
        first: dict[int, Path] = {}
        same = [
            (path, first[id(value)])
            for path, value in now.items()
            if first.setdefault(id(value), path) != path
        ]
        devices = [
            (path, str(value.device))
            for path, value in now.items()
            if isinstance(value, torch.Tensor) and not value.is_cpu
        ]
        return {"kept": list(self._initial), "same": same, **({"devices": devices} if devices else {})}


def is_valid(aliases: Any, values: Mapping[Any, Any]) -> bool:
    """Returns True if `aliases` may be from `StateAliases.state` for such values; None is (old commits)."""
    if aliases is None:
        return True
    try:
        paths = [*aliases["kept"], *(path for pair in aliases["same"] for path in pair)]
        paths += [path for path, device in aliases.get("devices", ()) if torch.device(device)]
        for path in paths:
            _at(values, path)
        return all(type(path) is tuple and path for path in paths) and all(
            len(pair) == 2 for pair in aliases["same"]
        )
    except (KeyError, TypeError, IndexError, ValueError, RuntimeError):
        return False


def move_to_devices(values: dict[Any, Any], devices: Collection[tuple[Path, str]]) -> None:
    """Moves tensors from the CPU, where a commit's are, to their former devices; without a GPU they stay."""
    for path, device in devices:
        if not device.startswith("cuda") or torch.cuda.is_available():
            _at(values, path[:-1])[path[-1]] = _at(values, path).to(device)


def share(values: dict[Any, Any], same: Collection[tuple[Path, Path]]) -> None:
    """Makes the object at the second path of each pair the one at the first path."""
    for path, first in same:
        _at(values, path[:-1])[path[-1]] = _at(values, first)


def fill(target: dict[Any, Any], saved: Mapping[Any, Any], kept: Collection[Path] | None) -> None:
    """Makes `target` equal to `saved`: in place for paths in `kept` (None: lists, dicts) if of one kind."""
    _fill(target, saved, (), None if kept is None else frozenset(kept), {})


def _fill(target: Any, saved: Any, path: Path, kept: frozenset[Path] | None, done: dict[int, Any]) -> Any:
    if id(saved) in done:  # one object at two paths
        return done[id(saved)]
    stays = not path or (isinstance(target, dict | list) if kept is None else path in kept)
    if isinstance(saved, dict):
        into = target if not path or (stays and type(target) is type(saved)) else saved
        done[id(saved)] = into
        before = dict(target) if isinstance(target, dict) else {}
        filled = {
            name: _fill(before.get(name), value, (*path, name), kept, done) for name, value in saved.items()
        }
        into.clear()  # the order of a dict is state
        into.update(filled)
        return into
    done[id(saved)] = target if stays and fill_in_place(target, saved) else saved
    return done[id(saved)]


def mutable_values(
    values: Mapping[Any, Any], path: Path = (), seen: frozenset[int] = frozenset()
) -> Iterator[tuple[Path, Any]]:
    """Yields the values that can be changed in place, with their paths."""
    for name, value in values.items():
        if isinstance(value, MUTABLE):
            yield (*path, name), value
        # one that contains itself is refused elsewhere
        if isinstance(value, dict) and len(value) <= _MOST_ITEMS and id(value) not in seen:
            yield from mutable_values(value, (*path, name), seen | {id(value)})


def _at(values: Any, path: Path) -> Any:
    for name in path:
        values = values[name]
    return values
