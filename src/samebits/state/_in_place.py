"""Gives an object the content of another one of its kind, so that references to it stay valid."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import torch

from samebits._inspect.tree import PLAIN

MUTABLE = dict | list | deque | set | bytearray | np.ndarray | torch.Tensor
_MOST_ITEMS = 256
"""Items of a container that are restored in place; those of longer ones are replaced."""


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
    """Returns the items of `saved`; where the target's own is kept, and met once in both, that one with the new content."""
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
