"""Which values of `run.state` a program has in its hands, so that a resume puts the saved content into these very objects.

`buffer = run.state.setdefault("buffer", deque())` before the loop gives one object two names, and what the loop adds
under one name it finds under the other. A resumed program has come to its loop with an object of its own under both. So
a commit says which values are still those that the loop began with (`kept`: they are filled again, in place), which
paths lead to one and the same object (`same`), and which tensors are on a GPU (`devices`). All others were given to `run.state` in the loop, and are given again.

Looked at are the values of `run.state` and of small dicts in it, not what lists and large dicts hold: a replay buffer or a
table of values has a million of these.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import torch

Path = tuple[Any, ...]
_SMALL = 256
"""Items of a dict that is looked into."""
_MUTABLE = dict | list | deque | set | bytearray | np.ndarray | torch.Tensor


class InHand:
    """Knows the objects with which the outermost loop under way began."""

    def __init__(self) -> None:
        self._began: dict[Path, Any] = {}

    def begin(self, values: Mapping[Any, Any]) -> None:
        """A loop begins; what a resume puts back comes after."""
        self._began = dict(mutable(values))

    def state(self, values: Mapping[Any, Any]) -> dict[str, list[Any]]:
        """What a commit keeps; from now on, nothing holds on to objects that were replaced."""
        now = dict(mutable(values))
        self._began = {path: value for path, value in self._began.items() if now.get(path) is value}
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
        return {"kept": list(self._began), "same": same, **({"devices": devices} if devices else {})}


def is_of(in_hand: Any, values: Mapping[Any, Any]) -> bool:
    """Whether `in_hand` is what `InHand.state` says of such values, or None (of a commit from before there was any)."""
    if in_hand is None:
        return True
    try:
        paths = [*in_hand["kept"], *(path for pair in in_hand["same"] for path in pair)]
        paths += [path for path, device in in_hand.get("devices", ()) if torch.device(device)]
        for path in paths:
            _at(values, path)
        return all(type(path) is tuple and path for path in paths) and all(
            len(pair) == 2 for pair in in_hand["same"]
        )
    except (KeyError, TypeError, IndexError, ValueError, RuntimeError):
        return False


def put_on_devices(values: dict[Any, Any], devices: Collection[tuple[Path, str]]) -> None:
    """Puts tensors back on the devices where they were; a commit's are on the CPU, where they stay if there is no GPU."""
    for path, device in devices:
        if not device.startswith("cuda") or torch.cuda.is_available():
            _at(values, path[:-1])[path[-1]] = _at(values, path).to(device)


def share(values: dict[Any, Any], same: Collection[tuple[Path, Path]]) -> None:
    """Makes the object at the second path of each pair the one at the first path, too."""
    for path, first in same:
        _at(values, path[:-1])[path[-1]] = _at(values, first)


def fill(target: dict[Any, Any], saved: Mapping[Any, Any], kept: Collection[Path] | None) -> None:
    """Makes `target` equal to `saved`: in place what is `kept`, or (None) lists and dicts, as far as both are of one kind."""
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
    done[id(saved)] = target if stays and _put_into(target, saved) else saved
    return done[id(saved)]


def _put_into(target: Any, saved: Any) -> bool:
    """Gives `target` the content of `saved`; False: it is of another kind, and as it was."""
    if type(target) is not type(saved) or not isinstance(saved, _MUTABLE):
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
    elif isinstance(saved, deque):
        if target.maxlen != saved.maxlen:
            return False
        target.clear()
        target.extend(saved)
    elif isinstance(saved, set):
        target.clear()
        target.update(saved)
    else:
        target[:] = saved
    return True


def mutable(
    values: Mapping[Any, Any], path: Path = (), seen: frozenset[int] = frozenset()
) -> Iterator[tuple[Path, Any]]:
    """The values that can be changed in place, with their paths."""
    for name, value in values.items():
        if isinstance(value, _MUTABLE):
            yield (*path, name), value
        # one that contains itself is refused elsewhere
        if isinstance(value, dict) and len(value) <= _SMALL and id(value) not in seen:
            yield from mutable(value, (*path, name), seen | {id(value)})


def _at(values: Any, path: Path) -> Any:
    for name in path:
        values = values[name]
    return values
