"""The user's functions by name, and the names in them: which draw, read a clock, or remember."""

from __future__ import annotations

import copy
import dis
import functools
import inspect
import itertools
import sys
import types
from collections.abc import Collection, Iterable, Iterator, Sequence
from types import CodeType
from typing import Any

from samebits._inspect import code_names
from samebits._inspect.user_code import cell_of, is_library, is_user_type, keeps_attributes, owner_of_module
from samebits._program.bytecode import ATTRIBUTES, GLOBALS, instructions, use
from samebits._program.vocabulary import AMBIGUOUS, CLOCKS, is_draw

_FUNCTIONS = (types.FunctionType, functools._lru_cache_wrapper)
_MAKES = ("__init__", "__new__", "__post_init__")


class UserFunctions:
    """The functions of the modules that a loop's module uses, and of its objects' classes.

    Functions are found by name alone: `x.update()` may call any user's function called `update`. If the
    frame's module is of a package of samebits (`Trainer`), the order of the calls of the user's functions is
    read from that package's code, too; `driver`: the package below it, whose loops call them.
    """

    def __init__(self, frame: types.FrameType, driver: str) -> None:
        self.functions: dict[str, list[types.CodeType]] = {}
        self.constructors: dict[str, list[types.CodeType]] = {}
        """The functions that a call of a class runs, by the name of the class."""
        self._codes: set[types.CodeType] = set()
        self._kinds: set[type] = set()
        self._assigned: tuple[int, frozenset[str]] = (0, frozenset())
        self.modules: list[types.ModuleType] = []
        self.has_packages = False
        """True with methods of installed packages: not all of theirs are known."""
        for name in (frame.f_globals.get("__name__"), "__main__"):
            self._add_module(sys.modules.get(str(name)))
        root, *inner = str(frame.f_globals.get("__name__")).split(".")
        if root == "samebits" and inner:
            drivers = (f"{root}.{inner[0]}.", f"{driver}.")
            for name in sorted(one for one in sys.modules if one.startswith(drivers)):
                self._add_members(sys.modules[name])
        self.add(frame.f_code)

    @property
    def codes(self) -> frozenset[types.CodeType]:
        return frozenset(self._codes)

    def everywhere(self) -> frozenset[types.CodeType]:
        """Returns the code of all functions, and of those in all modules of the user's that are imported."""
        users = [module for name, module in list(sys.modules.items()) if owner_of_module(name) == "user"]
        items = [item for module in users for item in list(vars(module).values())]
        found = [
            code for item in items for code in (methods(item) if isinstance(item, type) else codes_of(item))
        ]
        return self.codes.union(*map(code_names.whole, found))

    def with_classes(self, kinds: Collection[type]) -> UserFunctions:
        """Returns these functions with the methods of classes of installed packages."""
        other = copy.copy(self)
        other.functions = {name: list(codes) for name, codes in self.functions.items()}
        other.constructors = {name: list(codes) for name, codes in self.constructors.items()}
        other._codes, other.has_packages = set(self._codes), bool(kinds)
        for kind in kinds:
            for base in filter(keeps_attributes, kind.__mro__):
                for code in methods(base):
                    other.add(code)
        return other

    @property
    def attributes_assigned(self) -> frozenset[str]:
        """The names of attributes that the functions assign, by a text (`setattr`), too."""
        if self._assigned[0] != self.size:
            texts = {one for code in self._codes for one in code.co_consts if isinstance(one, str)}
            named = map(code_names.attributes_assigned, self._codes)
            self._assigned = self.size, frozenset(texts).union(*named)
        return self._assigned[1]

    @property
    def size(self) -> int:
        """The number of functions that are known."""
        return len(self._codes)

    def _add_module(self, module: types.ModuleType | None) -> None:
        if module is None or module in self.modules:
            return
        file = getattr(module, "__file__", None)
        # a notebook's __main__ has no file: each cell is one
        if is_library(file) if file is not None else module.__name__ != "__main__":
            return
        if module.__name__.split(".")[0] == "samebits":
            return
        self.modules.append(module)
        self._add_members(module)
        for item in list(vars(module).values()):
            other = item if isinstance(item, types.ModuleType) else sys.modules.get(_module_of(item))
            self._add_module(other)

    def _add_members(self, module: types.ModuleType) -> None:
        for item in list(vars(module).values()):
            if _module_of(item) == module.__name__:
                if isinstance(item, type):
                    self.add_class(item)
                for code in codes_of(item):
                    self.add(code)

    def add_class(self, kind: type) -> None:
        if kind in self._kinds:
            return
        for base in filter(is_user_type, kind.__mro__):
            own = methods(base)
            made = [code for code in own if code.co_name in _MAKES]
            self.constructors.setdefault(kind.__name__, []).extend(made)
            for code in own:
                self.add(code)
        self._kinds.add(kind)

    def add(self, code: types.CodeType) -> None:
        for one in code_names.whole(code):
            if one not in self._codes:
                self._codes.add(one)
                if one.co_flags & inspect.CO_OPTIMIZED or one.co_name == "<module>":
                    self.functions.setdefault(one.co_name, []).append(one)
                else:  # the body of a class
                    made = [part for part in code_names.inner(one) if part.co_name in _MAKES]
                    self.constructors.setdefault(one.co_name, []).extend(made)

    def of_modules(self, codes: Iterable[CodeType]) -> Iterator[tuple[CodeType, types.ModuleType]]:
        """Yields functions with their modules; those of a notebook's cells are of `__main__`."""
        main = sys.modules["__main__"]
        modules = {getattr(one, "__file__", None): one for one in (main, *self.modules)}
        for code in codes:
            file = None if cell_of(code.co_filename) else code.co_filename
            if file in modules:
                yield code, modules[file]

    def global_names(self, module: types.ModuleType) -> set[str]:
        """Returns the names that the functions of a module read as globals."""
        found = self.of_modules(code for code in self._codes if code.co_name != "<module>")
        return set().union(*(code_names.globals_read(code) for code, of in found if of is module))


_OF_STATE = {"state_dict", "load_state_dict", "get_extra_state", "set_extra_state"}
_SHOWS = {"__repr__", "__str__", "__format__", "__getstate__", "__setstate__", "__reduce__", "__del__"}


def kept_functions(program: UserFunctions) -> list[CodeType]:
    """Returns the functions that a library may keep and call: lambdas, arguments, methods that none names."""
    codes = [
        code for code in program.codes if code.co_flags & inspect.CO_OPTIMIZED or code.co_name == "<module>"
    ]
    passed = frozenset().union(*map(_passed_names, codes))
    named = {name for code in codes for name in code.co_names} | _OF_STATE | _SHOWS | {*_MAKES}
    return [
        code
        for code in codes
        if code.co_name in passed | {"<lambda>"}
        or (code.co_name not in named and code.co_varnames[:1] == ("self",))
    ]


@functools.lru_cache(maxsize=4096)
def _passed_names(code: CodeType) -> frozenset[str]:
    """Returns the names whose values a function uses without calling them or looking into them."""
    items, found = instructions(code), set[str]()
    for at, item in enumerate(items):
        if isinstance(item.argval, str) and item.opname.startswith((*ATTRIBUTES, *GLOBALS, "LOAD_FAST")):
            taken = use(items, at)
            inner = taken is not None and items[taken.at].opname.startswith(ATTRIBUTES)
            if not inner and (taken is None or not taken.is_called(items)):
                found.add(item.argval)
    return frozenset(found)


def methods(kind: type) -> list[types.CodeType]:
    """Returns the functions of one class, properties included."""
    return [code for item in vars(kind).values() for code in codes_of(item)]


@functools.cache
def names_of_library(kind: type) -> frozenset[str]:
    """Returns the attributes that the methods of a class set, without those that only the program's set."""
    theirs = (base for base in kind.__mro__ if owner_of_module(base.__module__) != "user")
    return frozenset().union(*map(names_set_by, theirs))


def names_set_by(kind: type) -> set[str]:
    """Returns the attributes that the methods of one class set: of `self`, and in `__new__` of any object."""
    return {
        str(item.argval)
        for method in methods(kind)
        for code in code_names.whole(method)
        for before, item in itertools.pairwise(instructions(code))
        if item.opname == "STORE_ATTR" and (code.co_name == "__new__" or _loads_self(before))
    }


def _loads_self(item: dis.Instruction) -> bool:
    names = item.argval if isinstance(item.argval, tuple) else (item.argval,)
    return names[-1:] == ("self",)


def codes_of(item: Any) -> list[types.CodeType]:
    """Returns the code of a function, of the one it wraps, of a method or a property."""
    if isinstance(item, staticmethod | classmethod):
        return codes_of(item.__func__)
    if isinstance(item, property):
        return [code for part in (item.fget, item.fset) for code in codes_of(part)]
    if not isinstance(item, _FUNCTIONS):
        return []
    inner = vars(item).get("__wrapped__")
    own = [item.__code__] if isinstance(item, types.FunctionType) else []
    return [*own, *(codes_of(inner) if inner is not None else [])]


def _module_of(item: Any) -> str:
    return str(item.__module__) if isinstance(item, (type, *_FUNCTIONS)) else ""


class NameUse:
    """The names in the user's functions, and in the function with the loop."""

    def __init__(self, program: UserFunctions, loop: CodeType) -> None:
        self._program = program
        self._code = loop
        self._drawing: dict[tuple[CodeType, int, int], bool] = {}

    def names(self) -> set[str]:
        codes = [self._code, *(code for found in self._program.functions.values() for code in found)]
        texts = {one for code in codes for one in code.co_consts if isinstance(one, str)}
        return texts.union(*(code.co_names for code in codes))

    def draws(self, function: str) -> bool:
        """Returns True if the user's function of this name, or one it calls, mentions one that draws."""
        codes = self._program.functions.get(function, ())
        return any(self._draws_before(code, len(instructions(code))) for code in codes)

    def timed(self, name: str) -> bool:
        """Returns True if all that is assigned to a name is constants, or a clock's on the same line."""
        found = False
        for codes in [[self._code], *self._program.functions.values()]:
            for code in codes:
                for line in _lines_storing(code, name):
                    if not line & CLOCKS:
                        return False
                    found = True
        return found

    def memo(self, container: str, own: list[CodeType]) -> bool:
        """Returns True if only functions that check for the key first, and draw nothing before, fill a dict.

        `own`: the methods of the class that holds the dict; if there are none, every function counts.
        """
        found = False
        for code in own or [code for codes in self._program.functions.values() for code in codes]:
            filled = _position_of_fill(code, container)
            if filled is None:
                continue
            if code is self._code or not _asks_for_key(code) or self._draws_before(code, filled):
                return False
            found = True
        return found

    def _draws_before(self, code: CodeType, end: int, depth: int = 0) -> bool:
        """Returns True if the code names a function that draws, before the instruction of number `end`."""
        known = self._drawing.get((code, end, depth))
        if known is None:  # each function once for a depth: its callers are many
            known = self._drawing[code, end, depth] = self._may_draw_before(code, end, depth)
        return known

    def _may_draw_before(self, code: CodeType, end: int, depth: int) -> bool:
        names = list[str]()
        items = instructions(code)
        for at, item in enumerate(items[:end]):
            if not item.opname.startswith((*ATTRIBUTES, *GLOBALS)):
                continue
            names.append(str(item.argval))
            owner = str(items[at - 1].argval) if item.opname.startswith(ATTRIBUTES) else ""
            if is_draw(names[-1], owner if names[-1] not in AMBIGUOUS or _is_called(items, at) else ""):
                return True
        called = (one for name in dict.fromkeys(names) for one in self._program.functions.get(name, ()))
        return depth < 3 and any(self._draws_before(one, len(instructions(one)), depth + 1) for one in called)


def _is_called(items: Sequence[dis.Instruction], at: int) -> bool:
    taken = use(items, at)
    return taken is not None and taken.is_called(items)


def _position_of_fill(code: CodeType, container: str) -> int | None:
    """Returns the number of the instruction that loads the container to store an item in it, or None."""
    items = instructions(code)
    for at, item in enumerate(items):
        if item.argval == container and item.opname.startswith("LOAD"):
            taken = use(items, at)
            if taken is not None and items[taken.at].opname == "STORE_SUBSCR":
                return at
    return None


def _asks_for_key(code: CodeType) -> bool:
    return any(
        item.opname == "CONTAINS_OP" or (item.opname.startswith(ATTRIBUTES) and item.argval == "get")
        for item in instructions(code)
    )


def _lines_storing(code: CodeType, name: str) -> list[set[str]]:
    """Returns the names loaded on each line that stores a value other than a constant to `name`."""
    lines: dict[int, set[str]] = {}
    stored: set[int] = set()
    constant = True
    for item in instructions(code):
        line = item.positions.lineno if item.positions is not None else None
        if line is None:
            continue
        if item.opname.startswith("STORE") and item.argval == name and not constant:
            stored.add(line)
        elif item.opname.startswith((*ATTRIBUTES, *GLOBALS)):
            lines.setdefault(line, set()).add(str(item.argval))
        constant = item.opname == "LOAD_CONST" or (
            constant and item.opname.startswith(("COPY", "LOAD_FAST", *GLOBALS))
        )
    return [lines.get(line, set()) for line in stored]
