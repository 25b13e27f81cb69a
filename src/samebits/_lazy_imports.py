"""Late imports: of a package's parts at their first use, and callbacks after another module's import."""

from __future__ import annotations

import ast
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec
from opcode import opmap
from types import FrameType, ModuleType
from typing import Any, NoReturn

_IMPORT_FROM = bytes([opmap["IMPORT_FROM"]])


def attach(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns `__getattr__` and `__dir__` (PEP 562) of a package whose parts are imported at their first use.

    The parts are those that its text imports under `if TYPE_CHECKING:`, for type checkers.

    ```python
    if TYPE_CHECKING:
        from samebits import train as train
        from samebits.train import Run as Run

    __getattr__, __dir__ = attach(__name__)
    ```
    """

    @cache
    def places() -> Mapping[str, str]:
        loader: Any = sys.modules[package].__loader__
        return late_imports(loader.get_source(package))

    def getattribute(name: str) -> Any:
        place = places().get(name)
        if place is None:
            _refuse(package, name, sys._getframe(1))
        value = (
            import_module(f"{package}.{name}") if place == package else getattr(import_module(place), name)
        )
        setattr(sys.modules[package], name, value)  # the next access finds it in the module
        return value

    def directory() -> list[str]:
        given = list(vars(sys.modules[package]).items())  # to look at one may import another
        return sorted({*(name for name, value in given if not _is_helper(name, value)), *places()})

    return getattribute, directory


def late_imports(source: str) -> dict[str, str]:
    """Returns the names that the text of a package imports for type checkers alone, with their modules."""
    blocks = [node.body for node in ast.parse(source).body if isinstance(node, ast.If)]
    found = [node for node in itertools.chain(*blocks) if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module or "" for node in found for alias in node.names}


def _refuse(package: str, name: str, frame: FrameType) -> NoReturn:
    """Raises for a name that the package lacks, with the name that was meant; `frame` asked for it.

    `from package import name` drops an AttributeError's text, so it gets an ImportError; `hasattr` is False.
    """
    missing = import_module("samebits._missing_names")  # reads files: not at every start
    hint = missing.hint(package, name)
    code, place = frame.f_code.co_code, frame.f_lasti
    if hint and code[place : place + 1] == _IMPORT_FROM:
        raise ImportError(f"cannot import name {name!r} from {package!r}.{hint}", name=package)
    text = f"module {package!r} has no attribute {name!r}"
    # Python adds a guess of its own unless the error says whose attribute it is.
    raise AttributeError(f"{text}.{hint}", name=name, obj=None) if hint else AttributeError(text)


def _is_helper(name: str, value: Any) -> bool:
    """Returns True for helpers of an `__init__.py`, which are no names of the package."""
    return name == "TYPE_CHECKING" or getattr(value, "__module__", None) == __name__


class AfterImport:
    """Finds one module as Python would, and calls `action(module)` when the module's code has run.

    `when_imported` makes one. It stays through searches that import nothing (`importlib.util.find_spec`) and
    through imports that fail; nothing of it remains in the module or its loader.
    """

    def __init__(self, name: str, action: Callable[[ModuleType], None]) -> None:
        self._name, self._action = name, action

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        spec = self._find_after(path, target)
        if spec is not None and spec.loader is not None:
            loader, load = spec.loader, spec.loader.exec_module

            def load_then_act(module: ModuleType) -> None:
                vars(loader).pop("exec_module", None)
                load(module)
                if self in sys.meta_path:
                    self.withdraw()
                    self._action(module)

            loader.exec_module = load_then_act  # type: ignore[method-assign]
        return spec

    def _find_after(self, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        """Returns the spec of the finders that Python would call after this one."""
        finders = list(sys.meta_path)
        for finder in finders[finders.index(self) + 1 :] if self in finders else ():
            spec = finder.find_spec(self._name, path, target)
            if spec is not None:
                return spec
        return None

    def withdraw(self) -> None:
        """Removes the finder; does nothing if it is gone."""
        if self in (sys.meta_path or ()):  # None when the interpreter ends
            sys.meta_path.remove(self)


def when_imported(name: str, action: Callable[[ModuleType], None]) -> AfterImport | None:
    """Calls `action(module)` now if the module `name` is imported, else at the end of its import.

    The import of a module that is under way has no end to hook into: there the call is made now. Returns the
    finder, for `withdraw`; None if the call was made.
    """
    module = sys.modules.get(name)
    if module is not None:
        action(module)
        return None
    finder = AfterImport(name, action)
    sys.meta_path.insert(0, finder)
    return finder
