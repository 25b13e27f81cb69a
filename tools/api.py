"""`python tools/api.py` writes docs/api.md: each public name, with the first sentence of its docstring."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

PAGE = Path(__file__).resolve().parent.parent / "docs" / "api.md"
INNER = ("samebits.determinism.table", "samebits.rounding.optim")
"""Public packages within public packages; the others are in `samebits.__all__`."""
HEAD = """# Public names

What is not on this page is private. `python tools/api.py` writes it from the docstrings, which have the arguments, the errors and an
example each; a test compares it.
"""


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


def methods(kind: type) -> dict[str, Any]:
    """The public methods and properties that a class adds to its public bases (torch's or samebits')."""
    bases = [base for base in kind.__mro__[1:] if not _is_private(base)]
    return {
        name: value
        for name, value in inspect.getmembers_static(kind)
        if not name.startswith("_") and (inspect.isroutine(value) or isinstance(value, property | classmethod))
        and not any(name in vars(base) for base in bases)
    }  # fmt: skip


def first_sentence(thing: Any) -> str:
    """The first sentence of a docstring, on one line."""
    text = " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())
    return re.split(r"(?<=[.:]) (?=[A-Z])", text)[0].rstrip(":").replace("|", "\\|")


def page() -> str:
    """The text of docs/api.md."""
    return HEAD + "".join(_section(package) for package in packages())


def _section(package: ModuleType) -> str:
    lines = [f"\n## {package.__name__}\n", "| name | |", "|---|---|"]
    for name, value in names(package).items():
        lines.append(f"| `{name}` | {first_sentence(value)} |")
        if inspect.isclass(value) and not issubclass(value, BaseException):
            lines += [f"| `{name}.{part}` | {first_sentence(it)} |" for part, it in methods(value).items()]
    return "\n".join(lines) + "\n"


def _is_private(kind: type) -> bool:
    """True if a class of samebits is on no page."""
    return kind.__module__.startswith("samebits") and not any(kind in names(it).values() for it in packages())


def _is_own(package: ModuleType, name: str) -> bool:
    if name.startswith("_") or name in {"TYPE_CHECKING", "attach"}:
        return False
    return getattr(getattr(package, name), "__module__", package.__name__).startswith("samebits")


if __name__ == "__main__":
    PAGE.write_text(page())
