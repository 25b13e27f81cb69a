"""Attributes that are replaced for a time: functions of torch, NumPy and Python, restored afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from samebits._inspect.user_code import warn
from samebits._lazy_imports import AfterImport, when_imported

_ABSENT = object()
"""Marks a value that the owner inherits or computes."""


@dataclass(eq=False)
class _Patch:
    """One replaced attribute, with the owner's value before and since."""

    owner: Any
    name: str
    before: Any
    stored: Any


_patches: list[_Patch] = []
"""All current patches, in the order in which they were put: two of one attribute may be undone in any order."""


class Patches:
    """Replaced attributes and awaited imports, undone together in reverse order."""

    def __init__(self) -> None:
        self._own: list[_Patch] = []
        self._awaited: list[AfterImport] = []

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Sets `owner.name` to `value` until `undo`."""
        before = vars(owner).get(name, _ABSENT)
        setattr(owner, name, value)
        self._own.append(_Patch(owner, name, before, vars(owner).get(name, _ABSENT)))
        _patches.append(self._own[-1])

    def force(self, config: Any, name: str, value: Any) -> None:
        """Sets an entry of a torch config module, for every thread and over later assignments, until `undo`.

        `config.name = value` would hold in this thread only: since torch 2.13 such values are `ContextVar`s.
        """
        self.put(config._config[name], "env_value_force", value)

    def when_imported(self, name: str, action: Callable[[ModuleType], None]) -> None:
        """Calls `action(module)` now if the module `name` is imported, else at the end of its import."""
        finder = when_imported(name, action)
        if finder is not None:
            self._awaited.append(finder)

    def undo(self) -> None:
        """Restores everything; harmless when there is nothing.

        An attribute that was replaced again since the patch is left as it is, with a warning.
        """
        own, awaited = self._own, self._awaited
        self._own, self._awaited = [], []
        for finder in awaited:
            finder.withdraw()
        for patch in reversed(own):
            _undo(patch)


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replaces `owner.name` by `value` in the block.

    Example:
        >>> import math
        >>> with replaced(math, "pi", 3):
        ...     math.pi
        3
    """
    patches = Patches()
    patches.put(owner, name, value)
    try:
        yield
    finally:
        patches.undo()


def _undo(patch: _Patch) -> None:
    owner, name = patch.owner, patch.name
    place = next(number for number, one in enumerate(_patches) if one is patch)
    del _patches[place]
    above = [one for one in _patches[place:] if one.owner is owner and one.name == name]
    if above:
        if above[0].before is patch.stored:
            above[0].before = patch.before
    elif vars(owner).get(name, _ABSENT) is not patch.stored:
        warn(
            f"{getattr(owner, '__name__', owner)}.{name} was replaced while samebits had replaced it. It is left so."
        )
    elif patch.before is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, patch.before)
