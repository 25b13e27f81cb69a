"""What the names in a program's functions say: who draws, who reads a clock, who remembers what it computed."""

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
    """The names in the user's functions, and in the one with the loop."""

    def __init__(self, program: UserFunctions, loop: CodeType) -> None:
        self._program = program
        self._code = loop

    def names(self) -> set[str]:
        """The names and the texts in the user's code."""
        codes = [self._code, *(code for found in self._program.functions.values() for code in found)]
        texts = {one for code in codes for one in code.co_consts if isinstance(one, str)}
        return texts.union(*(code.co_names for code in codes))

    def draws(self, function: str, draws: frozenset[str]) -> bool:
        """Whether the user's function of this name, or one that it calls, mentions a name of `draws`."""
        codes = self._program.functions.get(function, ())
        return any(self._names_before(code, len(instructions(code))) & draws for code in codes)

    def timed(self, name: str) -> bool:
        """Whether all that is assigned to a name in the loop comes from a clock, on the same line."""
        found = False
        for codes in [[self._code], *self._program.functions.values()]:
            for code in codes:
                for line in _lines_storing(code, name):
                    if not line & _CLOCKS:
                        return False
                    found = True
        return found

    def memo(self, container: str, draws: frozenset[str], own: list[CodeType]) -> bool:
        """Whether a dict is only filled by functions that look first (`if k not in cache:`) and draw nothing before.

        `own`: the methods of the class that holds it; without any, every function counts.
        """
        found = False
        for code in own or [code for codes in self._program.functions.values() for code in codes]:
            filled = _fills(code, container)
            if filled is None:
                continue
            if code is self._code or not _looks(code) or self._names_before(code, filled) & draws:
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


def _fills(code: CodeType, container: str) -> int | None:
    """The number of the instruction that stores an item of the container, or calls its `setdefault`."""
    items = instructions(code)
    for at, item in enumerate(items):
        if item.argval == container and item.opname.startswith("LOAD"):
            taken = use(items, at)
            if taken is not None and items[taken.at].opname == "STORE_SUBSCR":
                return at
    return None


def _looks(code: CodeType) -> bool:
    return any(
        item.opname == "CONTAINS_OP" or (item.opname.startswith(ATTRIBUTES) and item.argval == "get")
        for item in instructions(code)
    )


def _lines_storing(code: CodeType, name: str) -> list[set[str]]:
    """The names loaded on each line that stores to `name` something that is no constant."""
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
