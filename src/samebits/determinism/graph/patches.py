"""Attributes that are replaced while the switch is on, some of them only once their module is imported."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_ABSENT = object()
"""Before the value: the owner had inherited the attribute, or computed it."""


class Patches:
    """Replaced attributes and awaited imports, undone as one in reverse order."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []
        self._awaited: list[_AfterImport] = []

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
        module = sys.modules.get(name)
        if module is not None:
            action(module)
            return
        finder = _AfterImport(name, action)
        self._awaited.append(finder)
        sys.meta_path.insert(0, finder)

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


class _AfterImport(MetaPathFinder):
    """Finds one module as Python would, and lets its loader call `action` when the module's code has run."""

    def __init__(self, name: str, action: Callable[[ModuleType], None]) -> None:
        self._name, self._action = name, action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        self.withdraw()  # or the search below would find us again
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_then_act(module: ModuleType) -> None:
                load(module)
                self._action(module)

            spec.loader.exec_module = load_then_act  # type: ignore[method-assign]
        return spec

    def withdraw(self) -> None:
        if self in (sys.meta_path or ()):  # None when the interpreter ends
            sys.meta_path.remove(self)
