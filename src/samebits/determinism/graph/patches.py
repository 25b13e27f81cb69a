"""Attributes that are replaced while the switch is on, some of them only once their module is imported."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from samebits.imports import AfterImport, when_imported

_ABSENT = object()
"""Before the value: the owner had inherited the attribute, or computed it."""


class Patches:
    """Replaced attributes and awaited imports, undone as one in reverse order."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []
        self._awaited: list[AfterImport] = []

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Sets `owner.name` to `value` until `undo`."""
        self._before.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def force(self, config: Any, name: str, value: Any) -> None:
        """Sets an entry of a torch config module, for every thread and over what is assigned to it, until `undo`.

        `config.name = value` would hold in this thread only: since torch 2.13 such values are `ContextVar`s.
        """
        self.put(config._config[name], "env_value_force", value)

    def when_imported(self, name: str, action: Callable[[ModuleType], None]) -> None:
        """Calls `action(module)` now if the module `name` is imported, else at the end of its import."""
        finder = when_imported(name, action)
        if finder is not None:
            self._awaited.append(finder)

    def undo(self) -> None:
        """Puts everything back; harmless when there is nothing."""
        for finder in self._awaited:
            finder.withdraw()
        for owner, name, value in reversed(self._before):
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
        self._awaited, self._before = [], []
