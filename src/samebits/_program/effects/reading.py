"""The reading of a user's function and of the Python functions it reaches: draws and lasting side effects.

The code of libraries is not read: `known_functions` has the effects of their calls.
"""

from __future__ import annotations

import functools
import inspect
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, MethodWrapperType, ModuleType
from typing import Any

import numpy as np
from typing_extensions import override

from samebits._inspect.library_code import module_of, root
from samebits._objects.budget import Budget
from samebits._objects.parts import closure_of, contents, defaults_of
from samebits._objects.rng_states import is_of_process
from samebits._program.effects import known_functions as known
from samebits._program.effects.abstract_values import (
    GIVEN,
    GLOBALS,
    NOTHING,
    CallSite,
    Captured,
    CellValue,
    ClosureValue,
    Given,
    Made,
    MethodValue,
    Text,
    Value,
    in_order,
    items,
    value,
)
from samebits._program.effects.frames import Frame
from samebits._program.effects.lookups import Lookups, of_class

DEPTH, CALLS, PASSES = 24, 400, 4
"""Bounds: calls within calls, calls that are read at all, and readings until nothing new comes up."""
_SYSTEM = frozenset({"builtins", "_io", "io", "os", "posix", "shutil", "pathlib", "nt"})
_CALLABLE = (FunctionType, MethodType, BuiltinFunctionType, functools.partial, functools._lru_cache_wrapper)


class Reading(Lookups):
    """Reads calls, and holds what that found."""

    def __init__(self, budget: Budget) -> None:
        super().__init__(budget)
        self._results: dict[Any, Value] = {}
        self._calls = self._depth = 0

    def read(self, function: Any, arguments: list[Value], named: dict[str, Value]) -> None:
        self.keep(_name(function), function)
        self.home = root(module_of(_unwrapped(function)))
        size = -1
        for _ in range(PASSES):
            self._results.clear()
            self._calls = 0
            self.called(value(function, _name(function)), CallSite(arguments, named, (0, 0), 0))
            now = sum(map(len, self.heap.values())) + len(self.findings)
            if now == size or not self.complete:
                break
            size = now

    @override
    def called(self, callee: Value, call: CallSite) -> Value:
        if not callee and call.line:
            self.draws("a call of what only running it tells", call.line)
        methods = frozenset(atom for atom in callee if isinstance(atom, MethodValue))
        if any(map(_is_method, methods)):
            callee = methods  # and not what an attribute of this name could hold besides
        result: set[Any] = set()
        self._depth += 1
        for atom in in_order(callee):
            self._calls += 1
            if self._calls > CALLS or self._depth > DEPTH:
                self.give_up("more code than is read", call.line)
                result |= GIVEN
                break
            result |= self._called_one(atom, call)
        self._depth -= 1
        return frozenset(result)

    def _called_one(self, atom: Any, call: CallSite) -> Value:
        if isinstance(atom, ClosureValue):
            names = atom.code.co_varnames[: atom.code.co_argcount + atom.code.co_kwonlyargcount]
            own = dict.fromkeys(names, atom.defaults)
            return self._run(atom.code, atom.frame.cells, call, atom.frame.namespace, own)
        if isinstance(atom, MethodValue):
            if self._is_read(atom.function):
                return self.function_call(atom.function, call.of(atom.of))
            return self._library_call(atom.function, atom.name, atom.of, call)
        if isinstance(atom, Captured) and atom.known:
            return self._object(atom, call)
        if isinstance(atom, Made) and atom.kind is not None:
            method = of_class(atom.kind, "__call__")
            if self._is_read(method):
                return self.function_call(method, call.of(atom))
            return frozenset(self.heap.get(atom, ())) | GIVEN
        self.draws("a call of what it is given, or has found inside something", call.line)
        return GIVEN

    def _is_read(self, function: Any) -> bool:
        return isinstance(function, FunctionType) and not self.is_library(function)

    def _object(self, atom: Captured, call: CallSite) -> Value:
        target = atom.object
        if isinstance(target, functools.partial):
            given = [value(one, f"{atom.name}.args[{n}]") for n, one in enumerate(target.args)]
            by_name = {k: value(one, f"{atom.name}.{k}") for k, one in target.keywords.items()}
            inner = call._replace(arguments=given + call.arguments, named=by_name | call.named)
            return self.called(value(target.func, _name(target.func)), inner)
        if isinstance(target, functools._lru_cache_wrapper):  # what it remembers is no effect
            return self.called(value(target.__wrapped__, atom.name), call)
        if isinstance(target, MethodType):
            of = Captured(target.__self__, atom.name.rpartition(".")[0] or "self")
            self.keep(of.name, of.object)
            if self._is_read(target.__func__):
                return self.called(value(target.__func__, atom.name), call.of(of))
            return self._library_call(target.__func__, target.__func__.__name__, of, call)
        if isinstance(target, MethodWrapperType | BuiltinFunctionType) and not isinstance(
            getattr(target, "__self__", None), ModuleType | type | None
        ):
            of = Captured(target.__self__, atom.name.rpartition(".")[0] or "self")
            return self._library_call(target, target.__name__, of, call)
        if isinstance(target, FunctionType):
            target = inspect.unwrap(target) if self.is_library(target) else target
            if not self.is_library(target):
                return self.function_call(target, call)
            return self._library_call(target, target.__name__, None, call)
        if target is type and len(call.arguments) == 1:
            given = call.arguments[0]
            kinds = {type(one.object) for one in given if isinstance(one, Captured) and one.known}
            return frozenset(Captured(kind, kind.__name__) for kind in kinds | {tuple})
        if isinstance(target, type):
            return self._class(target, call)
        if not isinstance(target, BuiltinFunctionType):
            method = of_class(type(target), "__call__")
            if self._is_read(method):
                return self.function_call(method, call.of(atom))
        return self._library_call(target, getattr(target, "__name__", type(target).__name__), None, call)

    def _class(self, kind: type, call: CallSite) -> Value:
        atom = Made(call.site, kind)
        made: Value = frozenset({atom})
        beginning = of_class(kind, "__init__")
        if self._is_read(beginning):
            self.function_call(beginning, call.of(atom))
            return made
        result = self._library_call(kind, kind.__name__, None, call)
        self.holds(made, result)
        if not self.is_library(kind):
            for argument in call.everything:
                self.holds(made, argument | self.inside(argument, call.line))
        return made | frozenset(one for one in result if not isinstance(one, Made))

    @override
    def function_call(self, function: FunctionType, call: CallSite) -> Value:
        around: dict[str, CellValue] = {}
        for name, cell in closure_of(function):
            content = contents(cell)
            self.keep(name, content)
            self.cells[name] = cell
            around[name] = CellValue(name, set(value(content, name)), lasting=True, identity=id(cell))
        own = dict(defaults_of(function))
        for name, one in own.items():
            self.keep(name, one)
        by_default = {name: value(one, name) for name, one in own.items()}
        namespace = (function.__globals__, function.__module__ or "")
        return self._run(function.__code__, around, call, namespace, by_default)

    def _run(
        self, code: CodeType, around: dict[str, CellValue], call: CallSite,
        namespace: tuple[dict[str, Any], str], by_default: dict[str, Value]
    ) -> Value:  # fmt: skip
        variables = self._bound(code, call, by_default)
        cells = ((name, frozenset(cell.holds)) for name, cell in around.items())
        key = code, frozenset(variables.items()), frozenset(cells)
        if key in self._results:
            return self._results[key]
        if len(self.running) > DEPTH:  # properties and special methods come here by another way
            self.give_up("more code than is read", call.line)
            return GIVEN
        self._results[key] = NOTHING
        frame = Frame(code, variables, around, self, namespace)
        self.running.append(frame)
        try:
            result = frame.read()
        finally:
            self.running.pop()
        if code.co_flags & inspect.CO_GENERATOR:  # a generator of what it yields
            made = Made((id(code), -1))
            self.heap.setdefault(made, set()).update(result)
            result = frozenset({made})
        self._results[key] = result
        return result

    def _bound(self, code: CodeType, call: CallSite, by_default: dict[str, Value]) -> dict[str, Value]:
        count, named = code.co_argcount, call.named
        names = code.co_varnames[: count + code.co_kwonlyargcount]
        variables: dict[str, Value] = dict(zip(names[:count], call.arguments, strict=False))
        anywhere = named.get("*", NOTHING) | named.get("**", NOTHING)
        for name in names:
            if name in named:
                variables[name] = variables.get(name, NOTHING) | named[name]
            elif name not in variables:
                variables[name] = by_default.get(name, NOTHING)
            variables[name] |= anywhere
        others = frozenset().union(
            *call.arguments[count:], *(v for k, v in named.items() if k not in names), anywhere
        )
        behind = len(names)
        for flag in (inspect.CO_VARARGS, inspect.CO_VARKEYWORDS):
            if code.co_flags & flag:
                made: Value = frozenset({Made((id(code), -behind - 2))})
                self.holds(made, others)
                variables[code.co_varnames[behind]] = made
                behind += 1
        return variables

    # Calls of libraries: `function`, or the method `name` of `of`

    def _library_call(self, function: Any, name: str, of: Any, call: CallSite) -> Value:
        self._library_draws(function, name, of, call.line)
        self._changes(function, name, of, call)
        for argument in call.everything:
            self.advanced(argument, call.line)
        for argument in [*call.everything, self._parts(function)]:
            for atom in in_order(argument):
                if _may_be_called(atom) or (isinstance(atom, Captured) and self._is_users(atom)):
                    given = [
                        self.inside(one, call.line) | GIVEN for one in call.everything if one is not argument
                    ]
                    self.called(frozenset({atom}), call._replace(arguments=given or [GIVEN], named={}))
        return self._handed_on(name, of, function if isinstance(function, type) else None, call)

    def _parts(self, function: Any) -> Value:
        """Returns the user's functions that a library's object has and may call: `Compose(transforms)`."""
        own = getattr(function, "__dict__", None)
        if isinstance(function, (type, *_CALLABLE)) or not isinstance(own, dict):
            return NOTHING
        self.budget.spend(len(own))
        parts = frozenset().union(*(value(part, name) for name, part in own.items()))
        inside = frozenset().union(*(items(part) for part in parts if isinstance(part, Captured)))
        self.budget.spend(len(inside))
        return frozenset(
            part for part in parts | inside if isinstance(part, Captured) and self._is_users(part)
        )

    def _is_users(self, part: Captured) -> bool:
        found = part.object
        return part.known and callable(found) and not isinstance(found, type) and not self.is_library(found)

    def _changes(self, function: Any, name: str, of: Any, call: CallSite) -> None:
        writes_in_place = name.endswith("_") and not name.endswith("__")
        first = call.arguments[0] if call.arguments else NOTHING
        if of is None:
            if name in known.CHANGING_FIRST or writes_in_place:
                self.changed(first, f"call of {name}", call.line)
            if name in known.LASTING_CALLS and root(module_of(function)) in _SYSTEM:
                self._touches(name, call)
        else:
            if name in known.CHANGING or writes_in_place:
                self.changed(frozenset({of}), f"call of {name}", call.line)
                for one in call.everything:
                    self.holds(frozenset({of}), one | self.inside(one, call.line))
            if name in ("shuffle", "readinto", "permuted"):
                self.changed(first, f"call of {name}", call.line)
        if "out" in call.named:
            self.changed(call.named["out"] | self.inside(call.named["out"], 0), "out=", call.line)
        if "inplace" in call.named:
            self.changed(first, "inplace=", call.line)

    def _touches(self, name: str, call: CallSite) -> None:
        """Notes a call that changes files or folders: it writes, moves or removes them."""
        if name == "open":
            modes = call.named.get("mode") or (call.arguments[1] if len(call.arguments) > 1 else NOTHING)
            if not any(isinstance(atom, Text) and set(str(atom.value)) & set("wax+") for atom in modes):
                return
        self.found(f"{name}()", "file or folder changed", call.line, 0)

    def _handed_on(self, name: str, of: Any, kind: type | None, call: CallSite) -> Value:
        """Returns the possible results: what is made, or what was given and held."""
        arguments = call.arguments
        made: Value = frozenset({Made(call.site, kind)})
        owned = frozenset() if of is None else frozenset({of})
        if name == "globals":
            return frozenset({Captured(self.running[-1].namespace[0], GLOBALS)})
        if name in ("vars", "locals") and arguments:
            return frozenset(
                Captured(atom.object, atom.name) for atom in arguments[0] if isinstance(atom, Captured)
            )
        if name == "getattr" and len(arguments) > 1:
            texts = [atom.value for atom in arguments[1] if isinstance(atom, Text)]
            if not texts:
                return GIVEN | arguments[0]
            found = (self.attribute(arguments[0], text, call.line) for text in texts)
            return frozenset().union(*found, *arguments[2:])
        if name == "default_rng":
            return frozenset({Made(call.site, np.random.Generator)})
        if name == "super":
            return self.running[-1].variables.get("self", GIVEN)
        if name not in known.HANDING_ON and name not in known.CONTAINERS:
            return made | GIVEN if isinstance(of, Given) else made
        if name not in known.CONTAINERS:
            return made.union(owned, *call.everything)
        for one in [owned, *call.everything]:
            self.holds(made, self.inside(one, 0))
        if name in known.TAKING_OUT:
            return self.inside(made, 0).union(*arguments[1 if of is None else 0 :])
        return made

    def _library_draws(self, function: Any, name: str, of: Any, line: int) -> None:
        if self.may_draw is not None:
            return
        if isinstance(of, Captured) and not isinstance(of.object, ModuleType):
            if known.is_keyed(type(of.object)):
                own = not is_of_process(of.object)
            else:
                own = known.has_quiet_methods(type(of.object)) and name not in known.RANDOM_METHODS
        elif isinstance(of, Made) and of.kind is not None:
            is_quiet = known.has_quiet_methods(of.kind) and name not in known.RANDOM_METHODS
            own = known.is_keyed(of.kind) or is_quiet
        elif of is not None:
            own = name in known.METHODS and name not in known.RANDOM_METHODS
        else:
            own = known.is_quiet(function)
        if not own:
            self.draws(f"{name}()", line)


def _may_be_called(atom: Any) -> bool:
    """Returns True if a library that is given this may call it."""
    if isinstance(atom, ClosureValue | MethodValue):
        return True
    return isinstance(atom, Captured) and atom.known and isinstance(atom.object, _CALLABLE)


def _is_method(method: MethodValue) -> bool:
    """Returns True if a method of this name is known of an object that may have it."""
    kind = method.of.kind if isinstance(method.of, Made) else None
    return method.name in known.METHODS or method.function is not None or hasattr(kind, method.name)


def _unwrapped(function: Any) -> Any:
    """Returns the function in a partial, a memo or a bound method."""
    while (inner := getattr(function, "func", None) or getattr(function, "__wrapped__", None)) is not None:
        function = inner
    return getattr(function, "__func__", function)


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", None) or type(function).__name__
