"""The findings of reading a function, recorded as they are made."""

from __future__ import annotations

from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from samebits.data._purity import known_functions
from samebits.data._purity.abstract_values import PLAIN, Captured, CellValue, Made, Value, items
from samebits.data._purity.frames import Frame

_CODE = (ModuleType, type, FunctionType, BuiltinFunctionType, MethodType)
"""What is captured as code, and no state of its own."""


@dataclass(frozen=True)
class Finding:
    """A side effect that lasts longer than the call."""

    variable: str
    """As the code reaches it: `seen`, `self.count`."""
    kind: str
    line: int
    file: str = ""
    target: int = 0
    """The identity of the object that is changed; of a variable the one in `Reading.reaches`."""

    def __str__(self) -> str:
        return f"{self.variable} ({self.kind}, line {self.line})"


class PurityRecord:
    """The findings of reading a function."""

    def __init__(self) -> None:
        self.findings: dict[tuple[str, str, int], Finding] = {}
        self.may_draw: str | None = None
        """Why it may draw from the process's generators; None: it cannot."""
        self.state: dict[str, Any] = {}
        """Captured objects that could be changed, by the name by which they are reached."""
        self.globals: dict[str, dict[str, Any]] = {}
        """Namespaces of the global variables that it reads, by the variable's name."""
        self.cells: dict[str, Any] = {}
        self.once: set[str] = set()
        """Attributes and global variables of lazy initialisations: set where they are None, to a value that depends on no element."""
        self.complete = True
        self.heap: dict[Made, set[Any]] = {}
        self.running: list[Frame] = []
        self.home = ""
        """The package that is read even where it is installed: that of the user's function."""

    def is_library(self, found: Any) -> bool:
        """Returns True if the code of this function or class is not read."""
        return known_functions.is_library(found, self.home)

    def reaches(self) -> set[int]:
        """The identities of the objects and variables that a call looks at, one level into containers."""
        found = {id(one) for one in self.state.values()} | {id(cell) for cell in self.cells.values()}
        found |= {hash((id(namespace), name)) for name, namespace in self.globals.items()}
        for one in self.state.values():
            found |= {id(atom.object) for atom in items(Captured(one, "")) if isinstance(atom, Captured)}
        return found

    def changed(self, of: Value, how: str, line: int, part: str = "") -> None:
        """An object is changed."""
        for atom in of:
            if isinstance(atom, Captured):
                self.found(f"{atom.name}.{part}" if part else atom.name, how, line, id(atom.object))

    def initialised(self, of: Value, name: str) -> None:
        """Notes a lazy initialisation, `if x is None: x = f()`, whose value depends on no element."""
        self.once.add(name)

    def advanced(self, of: Value, line: int) -> None:
        """Notes iterators that are moved on."""
        for atom in of:
            if (
                isinstance(atom, Captured) and atom.known and not isinstance(atom.object, type)
                and hasattr(type(atom.object), "__next__")
            ):  # fmt: skip
                self.found(atom.name, "iterator advanced", line, id(atom.object))

    def stored(self, cell: CellValue, line: int) -> None:
        """A variable that outlives the call is set."""
        self.found(cell.name, "closure variable set", line, cell.identity)

    def stored_global(self, name: str, line: int) -> None:
        """A global variable is set."""
        self.found(name, "global variable set", line, hash((id(self.running[-1].namespace[0]), name)))

    def keep(self, name: str, found: Any) -> None:
        """Notes what could be changed."""
        if not isinstance(found, (*_CODE, *PLAIN)):
            self.state[name] = found

    def found(self, variable: str, kind: str, line: int, target: int) -> None:
        """Notes a side effect."""
        file = self.running[-1].code.co_filename if self.running else ""
        self.findings.setdefault((variable, kind, line), Finding(variable, kind, line, file, target))

    def draws(self, reason: str, line: int) -> None:
        """Notes why it may draw; the first reason counts."""
        if self.may_draw is None:
            self.may_draw = f"{reason} at line {line}"

    def give_up(self, reason: str, line: int) -> None:
        """Notes that not all of it has been read."""
        self.complete = False
        self.draws(reason, line)
