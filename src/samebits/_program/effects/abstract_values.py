"""The possible values on the stack of a user's function: a set of atoms, after Andersen's points-to analysis.

An empty set is a constant or a number: nothing that could be changed, called or looked into.
"""

from __future__ import annotations

from collections.abc import ValuesView
from dataclasses import dataclass, field
from itertools import islice
from types import CodeType
from typing import Any, NamedTuple

from samebits._objects.parts import IMMUTABLE

MANY = 64
"""Items of a captured container that are looked at one by one."""
SEEN = 4096
"""Items of a larger one, spread over it, that tell if all are plain."""


@dataclass(frozen=True, eq=False)
class Captured:
    """An object that the function found and did not make: a global, a closure's variable, an attribute."""

    object: Any
    name: str
    """As the function's code reaches it: `self.counts`."""
    known: bool = True
    """False: it is some part of `object`."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Captured) and self.object is other.object and self.known == other.known

    def __hash__(self) -> int:
        return hash((id(self.object), self.known))


GLOBALS = "globals()"
"""The name of the dict of a module's variables."""


@dataclass(frozen=True)
class Made:
    """An object that the function makes at one place of its code; `kind` is its class where that is known."""

    site: tuple[int, int]
    kind: type | None = None


@dataclass(frozen=True)
class Given:
    """An argument of the function, or an object inside one."""


@dataclass(frozen=True)
class Text:
    """A constant that a call may be named by: a string, or a tuple of strings."""

    value: Any


@dataclass(eq=False)
class CellValue:
    """A closure's variable; `lasting`: it was there before the call, and stays."""

    name: str
    holds: set[Atom] = field(default_factory=set)
    lasting: bool = False
    identity: int = 0


@dataclass(frozen=True)
class ClosureValue:
    """A function that the function makes: its code, and the variables around it."""

    code: CodeType
    frame: Any
    defaults: frozenset[Any] = frozenset()


@dataclass(frozen=True)
class MethodValue:
    """Attribute `name` of `of`; `function` if it is a Python function of its class, else None."""

    of: Captured | Made | Given
    name: str
    function: Any = None


class CallSite(NamedTuple):
    """The arguments of a call, by position and by name, and where it stands in the code."""

    arguments: list[Value]
    named: dict[str, Value]
    site: tuple[int, int]
    line: int

    @property
    def everything(self) -> list[Value]:
        return [*self.arguments, *self.named.values()]

    def of(self, atom: Atom) -> CallSite:
        """Returns the call with `self` before the arguments."""
        return self._replace(arguments=[frozenset({atom}), *self.arguments])


Atom = Captured | Made | Given | Text | ClosureValue | MethodValue
Value = frozenset[Atom]
NOTHING: Value = frozenset()
GIVEN: Value = frozenset({Given()})


def value(found: Any, name: str) -> Value:
    """A captured object; plain ones are nothing."""
    if isinstance(found, str):
        return frozenset({Text(found)})
    if type(found) in IMMUTABLE or (type(found) is tuple and all(type(one) in IMMUTABLE for one in found)):
        return NOTHING
    return frozenset({Captured(found, name)})


def items(of: Captured) -> Value:
    inside = of.object
    if not of.known:
        return frozenset({of})
    if type(inside) is dict:
        inside = inside.values()
    if not isinstance(inside, list | tuple | set | frozenset | ValuesView):
        return frozenset({Captured(of.object, f"{of.name}[...]", known=False)})
    several = list(islice(inside, 0, None, 1 + len(inside) // SEEN))
    if len(inside) <= MANY:
        found = [value(one, f"{of.name}[{number}]") for number, one in enumerate(several)]
        return frozenset().union(*found)
    if all(type(one) in IMMUTABLE for one in several):
        return NOTHING
    return frozenset({Captured(of.object, f"{of.name}[...]", known=False)})


def in_order(atoms: Value) -> list[Atom]:
    """Returns the atoms by name: what is read within a bound is the same in each process."""
    return sorted(atoms, key=lambda atom: (type(atom).__name__, str(getattr(atom, "name", ""))))
