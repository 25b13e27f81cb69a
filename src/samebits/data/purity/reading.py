"""Reading a user's function, and the Python functions that it reaches: what it draws from, what it leaves changed."""

from __future__ import annotations

import functools
import inspect
import sys
from dataclasses import dataclass
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, MethodWrapperType, ModuleType
from typing import Any

from samebits.data.purity import known
from samebits.data.purity.frames import Frame
from samebits.data.purity.values import (
    GIVEN,
    NOTHING,
    PLAIN,
    Captured,
    Cell,
    Closure,
    Given,
    Made,
    Method,
    Text,
    Value,
    items,
    value,
)

DEPTH, CALLS, PASSES = 24, 3000, 4
"""Bounds: calls within calls, calls that are read at all, and readings until nothing new comes up."""
_SHARED = (ModuleType, type, FunctionType, BuiltinFunctionType)
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


class Reading:
    """What reading a function found."""

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
        """Attributes and global variables that are set where they are None, to what no element decides."""
        self.complete = True
        self._heap: dict[Made, set[Any]] = {}
        self._results: dict[Any, Value] = {}
        self._running: list[Frame] = []
        self._calls = 0

    def read(self, function: Any, arguments: list[Value], named: dict[str, Value]) -> None:
        """Reads a call of `function`."""
        self._keep(_name(function), function)
        site = Made((0, 0))
        size = -1
        for _ in range(PASSES):
            self._results.clear()
            self._calls = 0
            self.called(value(function, _name(function)), arguments, named, site, 0)
            now = sum(map(len, self._heap.values())) + len(self.findings)
            if now == size:
                break
            size = now

    def reaches(self) -> set[int]:
        """The identities of the objects and variables that a call looks at, one level into containers."""
        found = {id(one) for one in self.state.values()} | {id(cell) for cell in self.cells.values()}
        found |= {hash((id(namespace), name)) for name, namespace in self.globals.items()}
        for one in self.state.values():
            found |= {id(atom.object) for atom in items(Captured(one, "")) if isinstance(atom, Captured)}
        return found

    # What calls do

    def called(
        self, callee: Value, arguments: list[Value], named: dict[str, Value], site: Made, line: int
    ) -> Value:
        """What a call returns."""
        result: Value = NOTHING
        if not callee and line:
            self._draws("a call of what only running it tells", line)
        methods = frozenset(atom for atom in callee if isinstance(atom, Method))
        if any(method.name in known.METHODS or method.function for method in methods):
            callee = methods  # and not what an attribute of this name could hold besides
        for atom in callee:
            self._calls += 1
            if self._calls > CALLS or len(self._running) > DEPTH:
                self._give_up("more code than is read", line)
                return GIVEN
            result |= self._called_one(atom, arguments, named, site, line)
        return result

    def _called_one(
        self, atom: Any, arguments: list[Value], named: dict[str, Value], site: Made, line: int
    ) -> Value:
        if isinstance(atom, Closure):
            return self._closure(atom, arguments, named)
        if isinstance(atom, Method):
            return self._method(atom, arguments, named, site, line)
        if isinstance(atom, Captured) and atom.known:
            return self._object(atom, arguments, named, site, line)
        if isinstance(atom, Made) and atom.kind is not None:
            method = _of_class(atom.kind, "__call__")
            if isinstance(method, FunctionType) and not known.is_library(method):
                return self._function(method, [frozenset({atom}), *arguments], named, line)
            return frozenset(self._heap.get(atom, ())) | GIVEN
        self._draws("a call of what it is given, or has found inside something", line)
        return GIVEN

    def _closure(self, atom: Closure, arguments: list[Value], named: dict[str, Value]) -> Value:
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
            self._keep(of.name, of.object)
            if not isinstance(target.__func__, FunctionType) or known.is_library(target.__func__):
                return self._library(
                    target.__func__, target.__func__.__name__, of, arguments, named, site, line
                )
            own = frozenset({of})
            return self.called(value(target.__func__, atom.name), [own, *arguments], named, site, line)
        if isinstance(target, MethodWrapperType | BuiltinFunctionType) and not isinstance(
            getattr(target, "__self__", None), ModuleType | type | None
        ):
            of = Captured(target.__self__, atom.name.rpartition(".")[0] or "self")
            return self._library(target, target.__name__, of, arguments, named, site, line)
        if isinstance(target, FunctionType):
            target = inspect.unwrap(target) if known.is_library(target) else target
            if not known.is_library(target):
                return self._function(target, arguments, named, line)
            return self._library(target, target.__name__, None, arguments, named, site, line)
        if target is type and len(arguments) == 1:
            kinds = {type(atom.object) for atom in arguments[0] if isinstance(atom, Captured) and atom.known}
            return frozenset(Captured(kind, kind.__name__) for kind in kinds | {tuple})
        if isinstance(target, type):
            return self._class(target, arguments, named, site, line)
        if not isinstance(target, BuiltinFunctionType):
            method = _of_class(type(target), "__call__")
            if isinstance(method, FunctionType) and not known.is_library(method):
                return self._function(method, [frozenset({atom}), *arguments], named, line)
        return self._library(
            target, getattr(target, "__name__", type(target).__name__), None, arguments, named, site, line
        )

    def _class(
        self, kind: type, arguments: list[Value], named: dict[str, Value], site: Made, line: int
    ) -> Value:
        made = frozenset({Made(site.site, kind)})
        beginning = _of_class(kind, "__init__")
        if isinstance(beginning, FunctionType) and not known.is_library(beginning):
            self._function(beginning, [made, *arguments], named, line)
            return made
        result = self._library(kind, kind.__name__, None, arguments, named, site, line)
        self.holds(made, result)
        for argument in [*arguments, *named.values()]:
            self.holds(
                made, argument | self.inside(argument, line) if not known.is_library(kind) else NOTHING
            )
        return made | frozenset(atom for atom in result if not isinstance(atom, Made))

    def _method(
        self, atom: Method, arguments: list[Value], named: dict[str, Value], site: Made, line: int
    ) -> Value:
        if isinstance(atom.function, FunctionType) and not known.is_library(atom.function):
            return self._function(atom.function, [frozenset({atom.of}), *arguments], named, line)
        return self._library(atom.function, atom.name, atom.of, arguments, named, site, line)

    def _function(
        self, function: FunctionType, arguments: list[Value], named: dict[str, Value], line: int
    ) -> Value:
        around: dict[str, Cell] = {}
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                content = cell.cell_contents
            except ValueError:  # not set yet
                content = None
            self._keep(name, content)
            self.cells[name] = cell
            around[name] = Cell(name, set(value(content, name)), lasting=True, identity=id(cell))
        own = _defaults(function)
        for name, one in own.items():
            self._keep(name, one)
        by_default = {name: value(one, name) for name, one in own.items()}
        namespace = (function.__globals__, function.__module__ or "")
        return self._run(function.__code__, around, arguments, named, namespace, by_default)

    def _run(
        self, code: CodeType, around: dict[str, Cell], arguments: list[Value], named: dict[str, Value],
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
        self._running.append(frame)
        try:
            result = frame.read()
        finally:
            self._running.pop()
        if code.co_flags & inspect.CO_GENERATOR:  # a generator of what it yields
            made = Made((id(code), -1))
            self._heap.setdefault(made, set()).update(result)
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

    def _library(
        self, function: Any, name: str, of: Any, arguments: list[Value], named: dict[str, Value], site: Made, line: int
    ) -> Value:  # fmt: skip
        """A call of code that is not read: `function`, or the method `name` of `of`."""
        self._library_draws(function, name, of, line)
        everything = [*arguments, *named.values()]
        if of is not None and (name in known.CHANGING or (name.endswith("_") and not name.endswith("__"))):
            self.changed(frozenset({of}), f"call of {name}", line)
            for one in everything:
                self.holds(frozenset({of}), one | self.inside(one, line))
        if (
            isinstance(of, Captured)
            and isinstance(of.object, known.GENERATORS)
            and not known.is_of_process(of.object)
        ):
            self.changed(frozenset({of}), "random generator advanced", line)
        if (
            arguments
            and of is None
            and (name in known.CHANGING_FIRST or (name.endswith("_") and not name.endswith("__")))
        ):
            self.changed(arguments[0], f"call of {name}", line)
        if arguments and name in ("shuffle", "readinto", "permuted") and of is not None:
            self.changed(arguments[0], f"call of {name}", line)
        if "out" in named:
            outs = named["out"]
            self.changed(
                outs | frozenset(a for o in outs if isinstance(o, Made) for a in self._heap.get(o, ())),
                "out=",
                line,
            )
        if "inplace" in named and arguments:
            self.changed(arguments[0], "inplace=", line)
        if of is None and name in known.LASTING_CALLS and known.root(known.module_of(function)) in _SYSTEM:
            self._touches(name, arguments, named, line)
        for argument in everything:
            self._advanced(argument, line)
            for atom in argument:
                if isinstance(atom, Closure | Method) or (
                    isinstance(atom, Captured) and atom.known and isinstance(atom.object, _CALLABLE)
                    and not isinstance(atom.object, type)
                ):  # fmt: skip
                    given = [self.inside(one, line) | GIVEN for one in everything if one is not argument]
                    self._called_one(atom, given or [GIVEN], {}, site, line)
        return self._handed_on(function, name, of, arguments, named, site, line)

    def _handed_on(
        self, function: Any, name: str, of: Any, arguments: list[Value], named: dict[str, Value], site: Made, line: int
    ) -> Value:  # fmt: skip
        made: Value = frozenset({Made(site.site, function if isinstance(function, type) else None)})
        owned = frozenset() if of is None else frozenset({of})
        if name == "globals":
            return frozenset({Captured(self._running[-1].namespace[0], "globals()")})
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
            return frozenset({Made(site.site, known.np.random.Generator)})
        if name == "super":
            return self._running[-1].variables.get("self", GIVEN)
        if name not in known.HANDING_ON and name not in known.CONTAINERS:
            return (
                made
                if of is None or isinstance(of, Captured)
                else made | GIVEN
                if isinstance(of, Given)
                else made
            )
        handed: Value = owned.union(*arguments, *named.values())
        if name not in known.CONTAINERS:
            return made | handed
        for one in [owned, *arguments, *named.values()]:
            self.holds(made, self.inside(one, 0))
        if name in (
            "get",
            "pop",
            "setdefault",
            "popitem",
            "popleft",
            "__getitem__",
            "max",
            "min",
            "next",
            "reduce",
        ):
            return self.inside(made, 0) | frozenset().union(*arguments[1 if of is None else 0 :])
        return made

    def _touches(self, name: str, arguments: list[Value], named: dict[str, Value], line: int) -> None:
        """What the system keeps: files that are written, moved, removed."""
        if name == "open":
            modes = named.get("mode") or (arguments[1] if len(arguments) > 1 else NOTHING)
            if not any(isinstance(atom, Text) and set(str(atom.value)) & set("wax+") for atom in modes):
                return
        self._found(f"{name}()", "file or folder changed", line, 0)

    def _library_draws(self, function: Any, name: str, of: Any, line: int) -> None:
        if self.may_draw is not None:
            return
        if isinstance(of, Captured) and not isinstance(of.object, ModuleType):
            kind = type(of.object)
            generator = isinstance(of.object, known.GENERATORS)
            own = (
                not known.is_of_process(of.object)
                if generator
                else known.is_library(kind) and name not in known.RANDOM_METHODS
            )
        elif isinstance(of, Made) and of.kind is not None:
            own = issubclass(of.kind, known.GENERATORS) or (
                known.is_library(of.kind) and name not in known.RANDOM_METHODS
            )
        elif of is not None:
            own = name in known.METHODS and name not in known.RANDOM_METHODS
        else:
            own = known.is_quiet(function)
        if not own:
            self._draws(f"{name}()", line)

    # What looking into things gives

    def attribute(self, of: Value, name: str, line: int) -> Value:
        """What `of.name` may be."""
        result: Value = NOTHING
        for atom in of:
            if isinstance(atom, Captured) and atom.known:
                result |= self._captured_attribute(atom, name, line)
            elif isinstance(atom, Made) and atom.kind is not None and not known.is_library(atom.kind):
                result |= self._from_class(atom, atom.kind, name, line) | frozenset(self._heap.get(atom, ()))
            elif isinstance(atom, Given | Made | Captured):
                result |= frozenset({Method(atom, name), *((atom,) if not isinstance(atom, Made) else ())})
                if isinstance(atom, Made):
                    result |= frozenset(self._heap.get(atom, ()))
            elif isinstance(atom, Text):
                result |= frozenset({Method(Made((0, 1), str), name)})
            else:
                result |= frozenset({atom})
        return result or frozenset({Method(Made((0, 2), int), name)})

    def _captured_attribute(self, atom: Captured, name: str, line: int) -> Value:
        target, path = atom.object, f"{atom.name}.{name}"
        if name == "__dict__":
            return frozenset({atom})
        if isinstance(target, ModuleType):
            found = getattr(target, name, None)
            if not known.is_library(target):
                self._keep(path, found)
                self.globals.setdefault(path, vars(target))
            return value(found, path)
        own = getattr(target, "__dict__", {})
        if isinstance(target, type):
            found = _of_class(target, name)
            found = found.__func__ if isinstance(found, staticmethod | classmethod) else found
            if found is None:
                found = getattr(target, name, None) if known.is_library(target) else None
            self._keep(path, found)
            return value(found, path)
        if isinstance(own, dict) and name in own:
            self._keep(path, own[name])
            return value(own[name], path)
        if known.is_library(type(target)):
            parts = NOTHING if isinstance(target, PLAIN) else frozenset({atom})
            inside = self._torch_module_part(target, name, path)
            return frozenset({Method(atom, name)}) | (inside if inside is not None else parts)
        return self._from_class(atom, type(target), name, line)

    def _torch_module_part(self, target: Any, name: str, path: str) -> Value | None:
        for part in ("_parameters", "_buffers", "_modules"):
            kept = getattr(target, "__dict__", {}).get(part)
            if isinstance(kept, dict) and name in kept:
                return value(kept[name], path)
        return None

    def _from_class(self, atom: Captured | Made, kind: type, name: str, line: int) -> Value:
        found = _of_class(kind, name)
        if isinstance(found, FunctionType):
            return frozenset({Method(atom, name, found)})
        if isinstance(found, staticmethod):
            return value(found.__func__, name)
        if isinstance(found, classmethod):
            return frozenset({Method(Captured(kind, kind.__name__), name, found.__func__)})
        if isinstance(found, property):
            return (
                self._function(found.fget, [frozenset({atom})], {}, line)
                if isinstance(found.fget, FunctionType)
                else GIVEN
            )
        if isinstance(found, functools.cached_property):  # what it remembers is no effect
            return self._function(found.func, [frozenset({atom})], {}, line)  # type: ignore[arg-type]
        if found is None and isinstance(atom, Captured):
            if _of_class(kind, "__getattr__") is not None:
                self._draws(f"__getattr__ of {kind.__name__}", line)
            return self._torch_module_part(atom.object, name, f"{atom.name}.{name}") or frozenset(
                {Captured(atom.object, f"{atom.name}.{name}", known=False)}
            )
        if found is not None and type(found).__name__ == "member_descriptor" and isinstance(atom, Captured):
            held = getattr(atom.object, name, None)
            self._keep(f"{atom.name}.{name}", held)
            return value(held, f"{atom.name}.{name}")
        if callable(found):
            return frozenset({Method(atom, name, found)})
        if found is not None:
            self._keep(f"{kind.__name__}.{name}", found)
            return value(found, f"{kind.__name__}.{name}")
        return NOTHING

    def item(self, of: Value, index: Value, line: int) -> Value:
        """What `of[index]` may be."""
        result: Value = NOTHING
        for atom in of:
            special = self._special(atom, "__getitem__", [index], line)
            if special is not None:
                result |= special
            elif (
                isinstance(atom, Captured)
                and isinstance(atom.object, dict)
                and hasattr(type(atom.object), "__missing__")
            ):
                if type(atom.object).__module__ == "collections" and hasattr(atom.object, "default_factory"):
                    self.changed(frozenset({atom}), "item read from a defaultdict, which makes it", line)
                result |= self.inside(frozenset({atom}), line)
            elif isinstance(atom, Captured) and _is_vector(atom.object) and not _is_slice(index):
                continue  # a number of an array
            else:
                result |= self.inside(frozenset({atom}), 0)
        return result

    def inside(self, of: Value, line: int) -> Value:
        """What a loop over `of` gives."""
        result: Value = NOTHING
        if line:
            self._advanced(of, line)
        for atom in of:
            if isinstance(atom, Captured):
                special = self._special(atom, "__iter__", [], line) if line else None
                result |= special if special is not None else items(atom)
            elif isinstance(atom, Made):
                result |= frozenset(self._heap.get(atom, ()))
                if atom.kind is not None and not known.is_library(atom.kind) and line:
                    result |= self._special(atom, "__iter__", [], line) or NOTHING
            elif isinstance(atom, Given):
                result |= GIVEN
        return result

    def holds(self, made: Value, more: Value) -> None:
        """Something is put into what was made."""
        kept = frozenset(
            atom for atom in more if not isinstance(atom, Text | Given) or isinstance(atom, Given)
        )
        for atom in made:
            if isinstance(atom, Made) and kept:
                self._heap.setdefault(atom, set()).update(kept - {atom})

    def combined(self, left: Value, right: Value, *, in_place: bool, line: int) -> Value:
        """What an operator gives."""
        for atom in left | right:
            if isinstance(atom, Captured) and atom.known and _has_own_operators(type(atom.object)):
                self._draws(f"an operator of {type(atom.object).__name__}", line)
        if not in_place:
            held = frozenset(atom for atom in left | right if isinstance(atom, Made))
            inside = self.inside(held, 0)
            if any(isinstance(atom, Captured | Closure) for atom in inside):
                return held  # [a] + [b]
            return frozenset({Made((0, 3))}) | (GIVEN if Given() in left | right else NOTHING)
        self.changed(
            frozenset(atom for atom in left if not isinstance(atom, Captured) or _changes_in_place(atom)),
            "in place",
            line,
        )
        self.holds(left, self.inside(right, 0))
        return left

    def entered(self, of: Value, line: int) -> Value:
        """What `with of` gives."""
        result: Value = of
        for atom in of:
            result |= self._special(atom, "__enter__", [], line) or NOTHING
            self._special(atom, "__exit__", [NOTHING] * 3, line)
        return result

    def _special(self, atom: Any, name: str, arguments: list[Value], line: int) -> Value | None:
        """The call of a method that syntax calls, where a class of the user's has it."""
        kind = type(atom.object) if isinstance(atom, Captured) and atom.known else getattr(atom, "kind", None)
        if kind is None or known.is_library(kind):
            return None
        method = _of_class(kind, name)
        if not isinstance(method, FunctionType):
            return None
        return self._function(method, [frozenset({atom}), *arguments], {}, line)

    # What is set and changed

    def changed(self, of: Value, how: str, line: int, part: str = "") -> None:
        """An object is changed."""
        for atom in of:
            if isinstance(atom, Captured):
                self._found(f"{atom.name}.{part}" if part else atom.name, how, line, id(atom.object))

    def initialised(self, of: Value, name: str) -> None:
        """An attribute that was None, or a global variable, is set to what no element decides."""
        self.once.add(name)

    def _advanced(self, of: Value, line: int) -> None:
        for atom in of:
            if (
                isinstance(atom, Captured) and atom.known and not isinstance(atom.object, type)
                and hasattr(type(atom.object), "__next__")
            ):  # fmt: skip
                self._found(atom.name, "iterator advanced", line, id(atom.object))

    def stored(self, cell: Cell, line: int) -> None:
        """A variable that outlives the call is set."""
        self._found(cell.name, "closure variable set", line, cell.identity)

    def stored_global(self, name: str, line: int) -> None:
        """A global variable is set."""
        self._found(name, "global variable set", line, hash((id(self._running[-1].namespace[0]), name)))

    def named_global(self, name: str, line: int) -> Value:
        """What a global variable holds."""
        namespace, _ = self._running[-1].namespace
        if name in namespace:
            self.globals[name] = namespace
            self._keep(name, namespace[name])
            return value(namespace[name], name)
        builtins = namespace.get("__builtins__", {})
        found = (builtins if isinstance(builtins, dict) else vars(builtins)).get(name)
        return value(found, name) if found is not None else NOTHING

    def imported(self, name: str) -> Value:
        """What an import gives."""
        found = sys.modules.get(name.partition(".")[0])
        return value(found, name.partition(".")[0]) if found is not None else GIVEN

    def _keep(self, name: str, found: Any) -> None:
        if not isinstance(found, (*_SHARED, MethodType, *PLAIN)):
            self.state[name] = found

    def _found(self, variable: str, kind: str, line: int, target: int) -> None:
        file = self._running[-1].code.co_filename if self._running else ""
        self.findings.setdefault((variable, kind, line), Finding(variable, kind, line, file, target))

    def _draws(self, reason: str, line: int) -> None:
        if self.may_draw is None:
            self.may_draw = f"{reason} at line {line}"

    def _give_up(self, reason: str, line: int) -> None:
        self.complete = False
        self._draws(reason, line)


_SYSTEM = frozenset({"builtins", "_io", "io", "os", "posix", "shutil", "pathlib", "nt"})
_CALLABLE = (FunctionType, MethodType, BuiltinFunctionType, functools.partial, functools._lru_cache_wrapper)


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", None) or type(function).__name__


def _of_class(kind: type, name: str) -> Any:
    for base in kind.__mro__:
        if name in vars(base):
            return vars(base)[name]
    return None


def _identity(around: dict[str, Cell]) -> Any:
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


def _is_vector(found: Any) -> bool:
    return isinstance(found, known.np.ndarray | known.torch.Tensor) and found.ndim == 1


def _is_slice(index: Value) -> bool:
    return any(isinstance(atom, Made) and atom.kind is slice for atom in index) or Given() in index


def _changes_in_place(atom: Captured) -> bool:
    if not atom.known and isinstance(atom.object, list | tuple | dict):
        return True
    return any(
        hasattr(type(atom.object), name) for name in ("__iadd__", "__ior__", "__imul__", "__setitem__")
    )


def _has_own_operators(kind: type) -> bool:
    if known.is_library(kind):
        return False
    return any(
        isinstance(_of_class(kind, name), FunctionType)
        for name in ("__add__", "__mul__", "__radd__", "__sub__", "__or__")
    )
