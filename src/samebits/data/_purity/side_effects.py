"""The reading of a user's function and of the Python functions it reaches: their draws and lasting side effects."""

from __future__ import annotations

import functools
import inspect
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, MethodWrapperType, ModuleType
from typing import Any

from typing_extensions import override

from samebits.data._purity import known_functions
from samebits.data._purity.abstract_values import (
    GIVEN,
    NOTHING,
    Captured,
    CellValue,
    ClosureValue,
    Made,
    MethodValue,
    Value,
    value,
)
from samebits.data._purity.frames import Frame
from samebits.data._purity.lookups import of_class
from samebits.data._purity.unread_calls import Library

DEPTH, CALLS, PASSES = 24, 400, 4
"""Bounds: calls within calls, calls that are read at all, and readings until nothing new comes up."""


class Reading(Library):
    """Reads calls, and holds what that found."""

    def __init__(self) -> None:
        super().__init__()
        self._results: dict[Any, Value] = {}
        self._calls = 0

    def read(self, function: Any, arguments: list[Value], named: dict[str, Value]) -> None:
        """Reads a call of `function`."""
        self.keep(_name(function), function)
        self.home = known_functions.root(known_functions.module_of(_unwrapped(function)))
        site = Made((0, 0))
        size = -1
        for _ in range(PASSES):
            self._results.clear()
            self._calls = 0
            self.called(value(function, _name(function)), arguments, named, site, 0)
            now = sum(map(len, self.heap.values())) + len(self.findings)
            if now == size or not self.complete:
                break
            size = now
        if not self.complete and known_functions.is_installed(self.home):
            self.findings.clear()  # of a large library, whose memos and locks matter to nobody

    def called(
        self, callee: Value, arguments: list[Value], named: dict[str, Value], site: Made, line: int
    ) -> Value:
        """Returns the possible results of a call."""
        result: Value = NOTHING
        if not callee and line:
            self.draws("a call of what only running it tells", line)
        methods = frozenset(atom for atom in callee if isinstance(atom, MethodValue))
        if any(map(_is_method, methods)):
            callee = methods  # and not what an attribute of this name could hold besides
        for atom in callee:
            self._calls += 1
            if self._calls > CALLS or len(self.running) > DEPTH:
                self.give_up("more code than is read", line)
                return GIVEN
            result |= self.called_one(atom, arguments, named, site, line)
        return result

    @override
    def called_one(
        self, atom: Any, arguments: list[Value], named: dict[str, Value], site: Made, line: int
    ) -> Value:
        if isinstance(atom, ClosureValue):
            return self._closure(atom, arguments, named)
        if isinstance(atom, MethodValue):
            return self._method(atom, arguments, named, site, line)
        if isinstance(atom, Captured) and atom.known:
            return self._object(atom, arguments, named, site, line)
        if isinstance(atom, Made) and atom.kind is not None:
            method = of_class(atom.kind, "__call__")
            if isinstance(method, FunctionType) and not self.is_library(method):
                return self.function_call(method, [frozenset({atom}), *arguments], named, line)
            return frozenset(self.heap.get(atom, ())) | GIVEN
        self.draws("a call of what it is given, or has found inside something", line)
        return GIVEN

    def _closure(self, atom: ClosureValue, arguments: list[Value], named: dict[str, Value]) -> Value:
        own = dict.fromkeys(
            atom.code.co_varnames[: atom.code.co_argcount + atom.code.co_kwonlyargcount], atom.defaults
        )
        return self._run(atom.code, atom.frame.cells, arguments, named, atom.frame.namespace, own)

    def _object(
        self, atom: Captured, arguments: list[Value], named: dict[str, Value], site: Made, line: int
    ) -> Value:
        target = atom.object
        if isinstance(target, functools.partial):
            inner = value(target.func, _name(target.func))
            given = [value(one, f"{atom.name}.args[{n}]") for n, one in enumerate(target.args)]
            by_name = {k: value(one, f"{atom.name}.{k}") for k, one in target.keywords.items()}
            return self.called(inner, given + arguments, by_name | named, site, line)
        if isinstance(target, functools._lru_cache_wrapper):  # what it remembers is no effect
            return self.called(value(target.__wrapped__, atom.name), arguments, named, site, line)
        if isinstance(target, MethodType):
            of = Captured(target.__self__, atom.name.rpartition(".")[0] or "self")
            self.keep(of.name, of.object)
            if not isinstance(target.__func__, FunctionType) or self.is_library(target.__func__):
                return self.library_call(
                    target.__func__, target.__func__.__name__, of, arguments, named, site, line
                )
            own = frozenset({of})
            return self.called(value(target.__func__, atom.name), [own, *arguments], named, site, line)
        if isinstance(target, MethodWrapperType | BuiltinFunctionType) and not isinstance(
            getattr(target, "__self__", None), ModuleType | type | None
        ):
            of = Captured(target.__self__, atom.name.rpartition(".")[0] or "self")
            return self.library_call(target, target.__name__, of, arguments, named, site, line)
        if isinstance(target, FunctionType):
            target = inspect.unwrap(target) if self.is_library(target) else target
            if not self.is_library(target):
                return self.function_call(target, arguments, named, line)
            return self.library_call(target, target.__name__, None, arguments, named, site, line)
        if target is type and len(arguments) == 1:
            kinds = {type(atom.object) for atom in arguments[0] if isinstance(atom, Captured) and atom.known}
            return frozenset(Captured(kind, kind.__name__) for kind in kinds | {tuple})
        if isinstance(target, type):
            return self._class(target, arguments, named, site, line)
        if not isinstance(target, BuiltinFunctionType):
            method = of_class(type(target), "__call__")
            if isinstance(method, FunctionType) and not self.is_library(method):
                return self.function_call(method, [frozenset({atom}), *arguments], named, line)
        return self.library_call(
            target, getattr(target, "__name__", type(target).__name__), None, arguments, named, site, line
        )

    def _class(
        self, kind: type, arguments: list[Value], named: dict[str, Value], site: Made, line: int
    ) -> Value:
        made = frozenset({Made(site.site, kind)})
        beginning = of_class(kind, "__init__")
        if isinstance(beginning, FunctionType) and not self.is_library(beginning):
            self.function_call(beginning, [made, *arguments], named, line)
            return made
        result = self.library_call(kind, kind.__name__, None, arguments, named, site, line)
        self.holds(made, result)
        for argument in [*arguments, *named.values()]:
            self.holds(made, argument | self.inside(argument, line) if not self.is_library(kind) else NOTHING)
        return made | frozenset(atom for atom in result if not isinstance(atom, Made))

    def _method(
        self, atom: MethodValue, arguments: list[Value], named: dict[str, Value], site: Made, line: int
    ) -> Value:
        if isinstance(atom.function, FunctionType) and not self.is_library(atom.function):
            return self.function_call(atom.function, [frozenset({atom.of}), *arguments], named, line)
        return self.library_call(atom.function, atom.name, atom.of, arguments, named, site, line)

    @override
    def function_call(
        self, function: FunctionType, arguments: list[Value], named: dict[str, Value], line: int
    ) -> Value:
        around: dict[str, CellValue] = {}
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                content = cell.cell_contents
            except ValueError:  # not set yet
                content = None
            self.keep(name, content)
            self.cells[name] = cell
            around[name] = CellValue(name, set(value(content, name)), lasting=True, identity=id(cell))
        own = _defaults(function)
        for name, one in own.items():
            self.keep(name, one)
        by_default = {name: value(one, name) for name, one in own.items()}
        namespace = (function.__globals__, function.__module__ or "")
        return self._run(function.__code__, around, arguments, named, namespace, by_default)

    def _run(
        self, code: CodeType, around: dict[str, CellValue], arguments: list[Value], named: dict[str, Value],
        namespace: tuple[dict[str, Any], str], by_default: dict[str, Value],
    ) -> Value:  # fmt: skip
        variables = self._bound(code, arguments, named, by_default)
        key = (
            code,
            tuple(sorted(((k, v) for k, v in variables.items()), key=lambda one: one[0])),
            _identity(around),
        )
        if key in self._results:
            return self._results[key]
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

    def _bound(
        self, code: CodeType, arguments: list[Value], named: dict[str, Value], by_default: dict[str, Value]
    ) -> dict[str, Value]:
        """The parameters of a call."""
        count = code.co_argcount
        names = code.co_varnames[: count + code.co_kwonlyargcount]
        variables: dict[str, Value] = dict(zip(names[:count], arguments, strict=False))
        anywhere = named.get("*", NOTHING) | named.get("**", NOTHING)
        for name in names:
            if name in named:
                variables[name] = variables.get(name, NOTHING) | named[name]
            elif name not in variables:
                variables[name] = by_default.get(name, NOTHING)
            variables[name] |= anywhere
        others = frozenset().union(
            *arguments[count:], *(v for k, v in named.items() if k not in names), anywhere
        )
        behind = len(names)
        for flag in (inspect.CO_VARARGS, inspect.CO_VARKEYWORDS):
            if code.co_flags & flag:
                made: Value = frozenset({Made((id(code), -behind - 2))})
                self.holds(made, others)
                variables[code.co_varnames[behind]] = made
                behind += 1
        return variables


def _is_method(method: MethodValue) -> bool:
    """Returns True if a method of this name is known of an object that may have it."""
    kind = method.of.kind if isinstance(method.of, Made) else None
    return method.name in known_functions.METHODS or method.function is not None or hasattr(kind, method.name)


def _unwrapped(function: Any) -> Any:
    """The function in a partial, a memo or a bound method."""
    while (inner := getattr(function, "func", None) or getattr(function, "__wrapped__", None)) is not None:
        function = inner
    return getattr(function, "__func__", function)


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", None) or type(function).__name__


def _identity(around: dict[str, CellValue]) -> Any:
    return tuple(
        (name, frozenset(cell.holds)) for name, cell in sorted(around.items(), key=lambda one: one[0])
    )


def _defaults(function: FunctionType) -> dict[str, Any]:
    """The default arguments by the parameter's name."""
    names, count = function.__code__.co_varnames, function.__code__.co_argcount
    several = function.__defaults__ or ()
    return dict(zip(names[count - len(several) : count], several, strict=True)) | (
        function.__kwdefaults__ or {}
    )
