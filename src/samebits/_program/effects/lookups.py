"""The findings of reading a function, and the results of attributes, items, elements and operators in it."""

from __future__ import annotations

import functools
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from samebits._inspect.library_code import is_library_code
from samebits._objects.budget import Budget
from samebits._objects.parts import IMMUTABLE
from samebits._program.effects.abstract_values import (
    GIVEN,
    GLOBALS,
    NOTHING,
    Atom,
    CallSite,
    Captured,
    CellValue,
    ClosureValue,
    Given,
    Made,
    MethodValue,
    Text,
    Value,
    items,
    value,
)

_CODE = (ModuleType, type, FunctionType, BuiltinFunctionType, MethodType)
"""Objects that are captured as code, without a state of their own."""


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


class Lookups(ABC):
    """Records the findings, and looks into what may be on a stack.

    Properties and special methods of the user's classes are called.
    """

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.findings: dict[tuple[str, str, int], Finding] = {}
        self.may_draw: str | None = None
        """Why it may draw from the process's generators; None: it cannot."""
        self.state: dict[str, Any] = {}
        """Captured objects that could be changed, by the name by which they are reached."""
        self.globals: dict[str, dict[str, Any]] = {}
        """Namespaces of the global variables that it reads, by the variable's name."""
        self.cells: dict[str, Any] = {}
        self.once: set[str] = set()
        """Attributes and globals of lazy initialisations: set where None, to what depends on no element."""
        self.complete = True
        self.heap: dict[Made, set[Any]] = {}
        self.running: list[Any] = []
        """The calls that are being read, each a `Frame`."""
        self.home = ""
        """The package that is read even where it is installed: that of the user's function."""

    def is_library(self, found: Any) -> bool:
        """Returns True if the code of this function or class is not read."""
        return is_library_code(found, self.home)

    def reaches(self) -> set[int]:
        """The identities of the objects and variables that a call looks at, one level into containers."""
        found = {id(one) for one in self.state.values()} | {id(cell) for cell in self.cells.values()}
        found |= {hash((id(namespace), name)) for name, namespace in self.globals.items()}
        for one in self.state.values():
            found |= {id(atom.object) for atom in items(Captured(one, "")) if isinstance(atom, Captured)}
        return found

    def changed(self, of: Value, how: str, line: int, part: str = "") -> None:
        for atom in of:
            if isinstance(atom, Captured):
                self.found(f"{atom.name}.{part}" if part else atom.name, how, line, id(atom.object))

    def advanced(self, of: Value, line: int) -> None:
        for atom in of:
            if (
                isinstance(atom, Captured) and atom.known and not isinstance(atom.object, type)
                and hasattr(type(atom.object), "__next__")
            ):  # fmt: skip
                self.found(atom.name, "iterator advanced", line, id(atom.object))

    def stored(self, cell: CellValue, line: int) -> None:
        self.found(cell.name, "closure variable set", line, cell.identity)

    def stored_global(self, name: str, line: int) -> None:
        self.found(name, "global variable set", line, hash((id(self.running[-1].namespace[0]), name)))

    def keep(self, name: str, found: Any) -> None:
        """Notes what could be changed."""
        if not isinstance(found, (*_CODE, *IMMUTABLE)):
            self.state[name] = found

    def found(self, variable: str, kind: str, line: int, target: int) -> None:
        """Notes a side effect."""
        file = self.running[-1].code.co_filename if self.running else ""
        self.findings.setdefault((variable, kind, line), Finding(variable, kind, line, file, target))

    def draws(self, reason: str, line: int) -> None:
        """Notes why it may draw; the first reason counts."""
        if self.may_draw is None:
            self.may_draw = f"{reason} at line {line}" if line else reason

    def give_up(self, reason: str, line: int = 0) -> None:
        """Notes that not all of it has been read."""
        self.complete = False
        self.draws(reason, line)

    @abstractmethod
    def called(self, callee: Value, call: CallSite) -> Value:
        """Returns the possible results of a call."""

    @abstractmethod
    def function_call(self, function: FunctionType, call: CallSite) -> Value:
        """Returns the possible results of a call of a Python function."""

    def attribute(self, of: Value, name: str, line: int) -> Value:
        self.budget.spend(len(of))
        result: set[Atom] = set()
        for atom in of:
            if isinstance(atom, Captured) and atom.known:
                result |= self._captured_attribute(atom, name, line)
            elif isinstance(atom, Made) and atom.kind is not None and not self.is_library(atom.kind):
                result |= self._from_class(atom, atom.kind, name, line) | frozenset(self.heap.get(atom, ()))
            elif isinstance(atom, Made):
                result |= {MethodValue(atom, name), *self.heap.get(atom, ())}
            elif isinstance(atom, Given | Captured):
                result |= {MethodValue(atom, name), atom}
            elif isinstance(atom, Text):
                result.add(MethodValue(Made((0, 1), str), name))
            else:
                result.add(atom)
        return frozenset(result or {MethodValue(Made((0, 2), int), name)})

    def _captured_attribute(self, atom: Captured, name: str, line: int) -> Value:
        target, path = atom.object, f"{atom.name}.{name}"
        if name == "__dict__":
            return frozenset({atom})
        if isinstance(target, ModuleType):
            found = getattr(target, name, None)
            if not self.is_library(target):
                self.keep(path, found)
                self.globals.setdefault(path, vars(target))
            return value(found, path)
        own = getattr(target, "__dict__", {})
        if isinstance(target, type):
            found = of_class(target, name)
            found = found.__func__ if isinstance(found, staticmethod | classmethod) else found
            if found is None:
                found = getattr(target, name, None) if self.is_library(target) else None
            self.keep(path, found)
            return value(found, path)
        if isinstance(own, dict) and name in own:
            self.keep(path, own[name])
            return value(own[name], path)
        if self.is_library(type(target)):
            parts = NOTHING if isinstance(target, IMMUTABLE) else frozenset({atom})
            inside = _torch_module_part(target, name, path)
            return frozenset({MethodValue(atom, name)}) | (inside if inside is not None else parts)
        return self._from_class(atom, type(target), name, line)

    def _from_class(self, atom: Captured | Made, kind: type, name: str, line: int) -> Value:
        found = of_class(kind, name)
        if isinstance(found, FunctionType):
            return frozenset({MethodValue(atom, name, found)})
        if isinstance(found, staticmethod):
            return value(found.__func__, name)
        if isinstance(found, classmethod):
            return frozenset({MethodValue(Captured(kind, kind.__name__), name, found.__func__)})
        if isinstance(found, property):
            return self._call_with(atom, found.fget) if isinstance(found.fget, FunctionType) else GIVEN
        if isinstance(found, functools.cached_property):  # what it remembers is no effect
            return self._call_with(atom, found.func)  # type: ignore[arg-type]
        if found is None and isinstance(atom, Captured):
            if of_class(kind, "__getattr__") is not None:
                self.draws(f"__getattr__ of {kind.__name__}", line)
            return _torch_module_part(atom.object, name, f"{atom.name}.{name}") or frozenset(
                {Captured(atom.object, f"{atom.name}.{name}", known=False)}
            )
        if found is not None and type(found).__name__ == "member_descriptor" and isinstance(atom, Captured):
            held = getattr(atom.object, name, None)
            self.keep(f"{atom.name}.{name}", held)
            return value(held, f"{atom.name}.{name}")
        if callable(found):
            return frozenset({MethodValue(atom, name, found)})
        if found is not None:
            self.keep(f"{kind.__name__}.{name}", found)
            return value(found, f"{kind.__name__}.{name}")
        return NOTHING

    def item(self, of: Value, index: Value, line: int) -> Value:
        self.budget.spend(len(of))
        result: set[Atom] = set()
        for atom in of:
            special = self.special(atom, "__getitem__", index)
            if special is not None:
                result |= special
            elif isinstance(atom, Captured):
                result |= self._captured_item(atom, index, line)
            else:
                result |= self.inside(frozenset({atom}), 0)
        return frozenset(result)

    def _captured_item(self, atom: Captured, index: Value, line: int) -> Value:
        target = atom.object
        if isinstance(target, dict) and hasattr(type(target), "__missing__"):
            if type(target).__module__ == "collections" and hasattr(target, "default_factory"):
                self.changed(frozenset({atom}), "item read from a defaultdict, which makes it", line)
            return self.inside(frozenset({atom}), line)
        has_slice = Given() in index or any(isinstance(one, Made) and one.kind is slice for one in index)
        if isinstance(target, np.ndarray | torch.Tensor) and target.ndim == 1 and not has_slice:
            return NOTHING  # a number of an array
        if atom.name == GLOBALS:
            texts = (str(text.value) for text in index if isinstance(text, Text))
            return frozenset().union(*(self.named_global(text) for text in texts))
        return self.inside(frozenset({atom}), 0)

    def inside(self, of: Value, line: int) -> Value:
        """Returns the values that a loop over `of` may yield."""
        result: set[Atom] = set()
        if line:
            self.advanced(of, line)
        for atom in of:
            if isinstance(atom, Captured):
                special = self.special(atom, "__iter__") if line else None
                result |= special if special is not None else items(atom)
            elif isinstance(atom, Made):
                result |= self.heap.get(atom, set())
                if atom.kind is not None and not self.is_library(atom.kind) and line:
                    result |= self.special(atom, "__iter__") or NOTHING
            elif isinstance(atom, Given):
                result |= GIVEN
        self.budget.spend(len(of) + len(result))
        return frozenset(result)

    def holds(self, made: Value, more: Value) -> None:
        self.budget.spend(len(made) + len(more))
        kept = frozenset(atom for atom in more if not isinstance(atom, Text))
        for atom in made:
            if isinstance(atom, Made) and kept:
                self.heap.setdefault(atom, set()).update(kept - {atom})

    def combined(self, left: Value, right: Value, *, writes_in_place: bool, line: int) -> Value:
        """Returns the possible results of an operator."""
        for atom in left | right:
            if (
                isinstance(atom, Captured)
                and atom.known
                and not self.is_library(type(atom.object))
                and _has_own_operators(type(atom.object))
            ):
                self.draws(f"an operator of {type(atom.object).__name__}", line)
        if not writes_in_place:
            held = frozenset(atom for atom in left | right if isinstance(atom, Made))
            inside = self.inside(held, 0)
            if any(isinstance(atom, Captured | ClosureValue) for atom in inside):
                return held  # [a] + [b]
            return frozenset({Made((0, 3))}) | (GIVEN if Given() in left | right else NOTHING)
        changing = (atom for atom in left if not isinstance(atom, Captured) or _changes_in_place(atom))
        self.changed(frozenset(changing), "in place", line)
        self.holds(left, self.inside(right, 0))
        return left

    def entered(self, of: Value) -> Value:
        result: Value = of
        for atom in of:
            result |= self.special(atom, "__enter__") or NOTHING
            self.special(atom, "__exit__", NOTHING, NOTHING, NOTHING)
        return result

    def special(self, atom: Any, name: str, *arguments: Value) -> Value | None:
        """Calls a method that syntax calls, where a class of the user's has it; else returns None."""
        kind = type(atom.object) if isinstance(atom, Captured) and atom.known else getattr(atom, "kind", None)
        if kind is None or self.is_library(kind):
            return None
        method = of_class(kind, name)
        if not isinstance(method, FunctionType):
            return None
        return self._call_with(atom, method, *arguments)

    def _call_with(self, atom: Atom, method: FunctionType, *arguments: Value) -> Value:
        return self.function_call(method, CallSite([frozenset({atom}), *arguments], {}, (0, 0), 0))

    def named_global(self, name: str) -> Value:
        namespace, _ = self.running[-1].namespace
        if name in namespace:
            self.globals[name] = namespace
            self.keep(name, namespace[name])
            return value(namespace[name], name)
        builtins = namespace.get("__builtins__", {})
        found = (builtins if isinstance(builtins, dict) else vars(builtins)).get(name)
        return value(found, name) if found is not None else NOTHING

    def imported(self, name: str) -> Value:
        """Returns the possible results of an import."""
        found = sys.modules.get(name.partition(".")[0])
        return value(found, name.partition(".")[0]) if found is not None else GIVEN


def of_class(kind: type, name: str) -> Any:
    """Returns the attribute of the class under this name, not bound to anything; None if it has none."""
    for base in kind.__mro__:
        if name in vars(base):
            return vars(base)[name]
    return None


def _torch_module_part(target: Any, name: str, path: str) -> Value | None:
    for part in ("_parameters", "_buffers", "_modules"):
        kept = getattr(target, "__dict__", {}).get(part)
        if isinstance(kept, dict) and name in kept:
            return value(kept[name], path)
    return None


def _changes_in_place(atom: Captured) -> bool:
    if not atom.known and isinstance(atom.object, list | tuple | dict):
        return True
    names = ("__iadd__", "__ior__", "__imul__", "__setitem__")
    return any(hasattr(type(atom.object), name) for name in names)


def _has_own_operators(kind: type) -> bool:
    names = ("__add__", "__mul__", "__radd__", "__sub__", "__or__")
    return any(isinstance(of_class(kind, name), FunctionType) for name in names)
