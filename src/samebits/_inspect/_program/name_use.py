"""The names in a program's functions: they show which functions draw, read a clock, or remember their results."""

from __future__ import annotations

from types import CodeType

from samebits._inspect._program.bytecode import ATTRIBUTES, GLOBALS, instructions
from samebits._inspect._program.stack import use
from samebits._inspect._program.user_functions import UserFunctions

_CLOCKS = frozenset(
    [
        "time",
        "time_ns",
        "perf_counter",
        "perf_counter_ns",
        "monotonic",
        "monotonic_ns",
        "process_time",
        "thread_time",
        "now",
        "utcnow",
        "default_timer",
        "elapsed_time",
    ]
)


class NameUse:
    """The names in the user's functions, and in the function with the loop."""

    def __init__(self, program: UserFunctions, loop: CodeType) -> None:
        self._program = program
        self._code = loop

    def names(self) -> set[str]:
        """Returns the names and the strings in the user's code."""
        codes = [self._code, *(code for found in self._program.functions.values() for code in found)]
        texts = {one for code in codes for one in code.co_consts if isinstance(one, str)}
        return texts.union(*(code.co_names for code in codes))

    def draws(self, function: str, draws: frozenset[str]) -> bool:
        """Returns True if the user's function of this name, or one that it calls, mentions a name of `draws`."""
        codes = self._program.functions.get(function, ())
        return any(self._names_before(code, len(instructions(code))) & draws for code in codes)

    def timed(self, name: str) -> bool:
        """Returns True if all that the program assigns to a name, constants aside, comes from a clock on the same line."""
        found = False
        for codes in [[self._code], *self._program.functions.values()]:
            for code in codes:
                for line in _lines_storing(code, name):
                    if not line & _CLOCKS:
                        return False
                    found = True
        return found

    def memo(self, container: str, draws: frozenset[str], own: list[CodeType]) -> bool:
        """Returns True if only functions that first check for the key (`if k not in cache:`) and draw nothing before fill a dict.

        `own`: the methods of the class that holds the dict; if there are none, every function counts.
        """
        found = False
        for code in own or [code for codes in self._program.functions.values() for code in codes]:
            filled = _position_of_fill(code, container)
            if filled is None:
                continue
            if code is self._code or not _asks_for_key(code) or self._names_before(code, filled) & draws:
                return False
            found = True
        return found

    def _names_before(self, code: CodeType, end: int, depth: int = 0) -> set[str]:
        names = {
            str(item.argval)
            for item in instructions(code)[:end]
            if item.opname.startswith((*ATTRIBUTES, *GLOBALS))
        }
        for name in [*names] if depth < 3 else []:
            for called in self._program.functions.get(name, ()):
                names |= self._names_before(called, len(instructions(called)), depth + 1)
        return names


def _position_of_fill(code: CodeType, container: str) -> int | None:
    """Returns the number of the instruction that loads the container to store an item in it; None if there is none."""
    items = instructions(code)
    for at, item in enumerate(items):
        if item.argval == container and item.opname.startswith("LOAD"):
            taken = use(items, at)
            if taken is not None and items[taken.at].opname == "STORE_SUBSCR":
                return at
    return None


def _asks_for_key(code: CodeType) -> bool:
    """Returns True if the code asks for a key: by `in` or `get`."""
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
