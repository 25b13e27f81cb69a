"""`python tools/api.py` writes tests/golden/public_names.txt: what is public, and so does not change without a file in changes/."""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from samebits._context import Observer

LIST = Path(__file__).resolve().parent.parent / "tests" / "golden" / "public_names.txt"
INNER = ("samebits.determinism.table", "samebits.nn.utils", "samebits.rounding.optim")
"""Public packages within public packages; the others are in `samebits.__all__`."""


def packages() -> list[ModuleType]:
    """The public packages: `samebits`, and what it lists that is a module."""
    root = importlib.import_module("samebits")
    inside = [f"samebits.{name}" for name in root.__all__ if inspect.ismodule(getattr(root, name))]
    return [root, *map(importlib.import_module, sorted([*inside, *INNER]))]


def names(package: ModuleType) -> dict[str, Any]:
    """The public names of a package but for modules: those that its `__init__` gives."""
    listed = getattr(package, "__all__", None) or [name for name in dir(package) if _is_own(package, name)]
    given = {name: getattr(package, name) for name in sorted(listed)}
    return {name: value for name, value in given.items() if not inspect.ismodule(value)}


def members(kind: type) -> list[str]:
    """The public attributes, methods and properties that a class adds to its public bases.

    Those that `samebits` itself calls (the hooks of an observer) are left out.
    """
    bases = [base for base in kind.__mro__[1:] if not _is_private(base)]
    found = {
        name
        for name, value in inspect.getmembers_static(kind)
        if not name.startswith("_") and (inspect.isroutine(value) or isinstance(value, property | classmethod))
        and not any(name in vars(base) for base in bases) and not hasattr(Observer, name)
    }  # fmt: skip
    return sorted(found | _attributes(kind))


def _attributes(kind: type) -> set[str]:
    """The annotated attributes of a class that a docstring below describes."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0].body  # type: ignore[attr-defined]
    return {
        first.target.id
        for first, second in itertools.pairwise(body)
        if isinstance(first, ast.AnnAssign) and isinstance(first.target, ast.Name)
        and not first.target.id.startswith("_") and isinstance(second, ast.Expr)
        and isinstance(second.value, ast.Constant) and isinstance(second.value.value, str)
    }  # fmt: skip


def listed() -> str:
    """The text of the list: a name a line."""
    return "".join(f"{name}\n" for package in packages() for name in _of_package(package))


def _of_package(package: ModuleType) -> Iterator[str]:
    for name, value in names(package).items():
        yield f"{package.__name__}.{name}"
        if inspect.isclass(value) and not issubclass(value, BaseException):
            yield from (f"{package.__name__}.{name}.{part}" for part in members(value))


def _is_private(kind: type) -> bool:
    """True if a class of samebits is on no page."""
    return kind.__module__.startswith("samebits") and not any(kind in names(it).values() for it in packages())


def _is_own(package: ModuleType, name: str) -> bool:
    if name.startswith("_") or name in {"TYPE_CHECKING", "attach"}:
        return False
    return getattr(getattr(package, name), "__module__", package.__name__).startswith("samebits")


if __name__ == "__main__":
    LIST.write_text(listed())
