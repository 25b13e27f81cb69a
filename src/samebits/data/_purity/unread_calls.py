"""Calls of code that is not read: their effects as `known` has them."""

from __future__ import annotations

import functools
from abc import abstractmethod
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from samebits.data._purity import known_functions
from samebits.data._purity.abstract_values import (
    GIVEN,
    GLOBALS,
    NOTHING,
    Captured,
    ClosureValue,
    Given,
    Made,
    MethodValue,
    Text,
    Value,
    items,
    value,
)
from samebits.data._purity.lookups import Looking

_SYSTEM = frozenset({"builtins", "_io", "io", "os", "posix", "shutil", "pathlib", "nt"})
_CALLABLE = (FunctionType, MethodType, BuiltinFunctionType, functools.partial, functools._lru_cache_wrapper)


class Library(Looking):
    """Calls functions and methods of libraries."""

    @abstractmethod
    def called_one(
        self, atom: Any, arguments: list[Value], named: dict[str, Value], site: Made, line: int
    ) -> Value:
        """Returns the possible results of a call of one of the possible callees."""

    def library_call(
        self, function: Any, name: str, of: Any, arguments: list[Value], named: dict[str, Value], site: Made, line: int
    ) -> Value:  # fmt: skip
        """A call of code that is not read: `function`, or the method `name` of `of`."""
        self._library_draws(function, name, of, line)
        self._changes(function, name, of, arguments, named, line)
        everything = [*arguments, *named.values()]
        for argument in everything:
            self.advanced(argument, line)
        for argument in [*everything, self._parts(function)]:
            for atom in argument:
                if _may_be_called(atom) or (isinstance(atom, Captured) and self._is_users(atom)):
                    given = [self.inside(one, line) | GIVEN for one in everything if one is not argument]
                    self.called_one(atom, given or [GIVEN], {}, site, line)
        return self._handed_on(function, name, of, arguments, named, site, line)

    def _parts(self, function: Any) -> Value:
        """The functions of the user's that an object of a library has, and may call: `Compose(transforms)`."""
        own = getattr(function, "__dict__", None)
        if isinstance(function, (type, *_CALLABLE)) or not isinstance(own, dict):
            return NOTHING
        parts = frozenset().union(*(value(part, name) for name, part in own.items()))
        inside = frozenset().union(*(items(part) for part in parts if isinstance(part, Captured)))
        return frozenset(
            part for part in parts | inside if isinstance(part, Captured) and self._is_users(part)
        )

    def _is_users(self, part: Captured) -> bool:
        found = part.object
        return part.known and callable(found) and not isinstance(found, type) and not self.is_library(found)

    def _changes(
        self, function: Any, name: str, of: Any, arguments: list[Value], named: dict[str, Value], line: int
    ) -> None:
        writes_in_place = name.endswith("_") and not name.endswith("__")
        first = arguments[0] if arguments else NOTHING
        if of is None:
            if name in known_functions.CHANGING_FIRST or writes_in_place:
                self.changed(first, f"call of {name}", line)
            if (
                name in known_functions.LASTING_CALLS
                and known_functions.root(known_functions.module_of(function)) in _SYSTEM
            ):
                self._touches(name, arguments, named, line)
        else:
            if name in known_functions.CHANGING or writes_in_place:
                self.changed(frozenset({of}), f"call of {name}", line)
                for one in [*arguments, *named.values()]:
                    self.holds(frozenset({of}), one | self.inside(one, line))
            if name in ("shuffle", "readinto", "permuted"):
                self.changed(first, f"call of {name}", line)
        if "out" in named:
            self.changed(named["out"] | self.inside(named["out"], 0), "out=", line)
        if "inplace" in named:
            self.changed(first, "inplace=", line)

    def _handed_on(
        self, function: Any, name: str, of: Any, arguments: list[Value], named: dict[str, Value], site: Made, line: int
    ) -> Value:  # fmt: skip
        made: Value = frozenset({Made(site.site, function if isinstance(function, type) else None)})
        owned = frozenset() if of is None else frozenset({of})
        if name == "globals":
            return frozenset({Captured(self.running[-1].namespace[0], GLOBALS)})
        if name in ("vars", "locals") and arguments:
            return frozenset(
                Captured(atom.object, atom.name) for atom in arguments[0] if isinstance(atom, Captured)
            )
        if name == "getattr" and len(arguments) > 1:
            texts = [atom.value for atom in arguments[1] if isinstance(atom, Text)]
            if texts:
                return frozenset().union(
                    *(self.attribute(arguments[0], text, line) for text in texts), *arguments[2:]
                )
            return GIVEN | arguments[0]
        if name == "default_rng":
            return frozenset({Made(site.site, known_functions.np.random.Generator)})
        if name == "super":
            return self.running[-1].variables.get("self", GIVEN)
        if name not in known_functions.HANDING_ON and name not in known_functions.CONTAINERS:
            return made | GIVEN if isinstance(of, Given) else made
        handed: Value = owned.union(*arguments, *named.values())
        if name not in known_functions.CONTAINERS:
            return made | handed
        for one in [owned, *arguments, *named.values()]:
            self.holds(made, self.inside(one, 0))
        if name in known_functions.TAKING_OUT:
            return self.inside(made, 0) | frozenset().union(*arguments[1 if of is None else 0 :])
        return made

    def _touches(self, name: str, arguments: list[Value], named: dict[str, Value], line: int) -> None:
        """Notes a call that changes files or folders: it writes, moves or removes them."""
        if name == "open":
            modes = named.get("mode") or (arguments[1] if len(arguments) > 1 else NOTHING)
            if not any(isinstance(atom, Text) and set(str(atom.value)) & set("wax+") for atom in modes):
                return
        self.found(f"{name}()", "file or folder changed", line, 0)

    def _library_draws(self, function: Any, name: str, of: Any, line: int) -> None:
        if self.may_draw is not None:
            return
        if isinstance(of, Captured) and not isinstance(of.object, ModuleType):
            kind = type(of.object)
            generator = isinstance(of.object, known_functions.GENERATORS)
            own = (
                not known_functions.is_of_process(of.object)
                if generator
                else known_functions.has_quiet_methods(kind) and name not in known_functions.RANDOM_METHODS
            )
        elif isinstance(of, Made) and of.kind is not None:
            own = issubclass(of.kind, known_functions.GENERATORS) or (
                known_functions.has_quiet_methods(of.kind) and name not in known_functions.RANDOM_METHODS
            )
        elif of is not None:
            own = name in known_functions.METHODS and name not in known_functions.RANDOM_METHODS
        else:
            own = known_functions.is_quiet(function)
        if not own:
            self.draws(f"{name}()", line)


def _may_be_called(atom: Any) -> bool:
    """Returns True if a library that is given this may call it."""
    if isinstance(atom, ClosureValue | MethodValue):
        return True
    return isinstance(atom, Captured) and atom.known and isinstance(atom.object, _CALLABLE)
