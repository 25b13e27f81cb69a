"""The use of a value on the interpreter's stack: the instruction that takes it, and as which operand. CPython 3.11 to 3.14."""

from __future__ import annotations

import dis
import sys
from collections.abc import Sequence
from typing import NamedTuple

_FAR = 60
"""The number of instructions after which a search ends."""
_CALLS = ("PRECALL", "CALL", "CALL_KW")
_TAKEN = {
    "BINARY_OP": 2, "BINARY_SUBSCR": 2, "BINARY_SLICE": 3, "COMPARE_OP": 2, "CONTAINS_OP": 2, "IS_OP": 2,
    "STORE_SUBSCR": 3, "STORE_SLICE": 4, "STORE_ATTR": 2, "DELETE_SUBSCR": 2, "BUILD_CONST_KEY_MAP": 1,
    "LOAD_ATTR": 1, "LOAD_METHOD": 1, "LOAD_SUPER_ATTR": 3, "LOAD_SPECIAL": 1, "LOAD_FROM_DICT_OR_GLOBALS": 1,
    "LOAD_FROM_DICT_OR_DEREF": 1, "POP_TOP": 1, "RETURN_VALUE": 1, "GET_ITER": 1, "FORMAT_VALUE": 1,
    "PUSH_NULL": 0, "KW_NAMES": 0, "NOP": 0, "EXTENDED_ARG": 0, "RESUME": 0,
}  # fmt: skip
_BUILDS = ("BUILD_LIST", "BUILD_TUPLE", "BUILD_SET", "BUILD_SLICE", "BUILD_STRING", "BUILD_CONST_KEY_MAP")
_STARTS = {"LOAD": 0, "UNARY": 1, "STORE_FAST": 1, "STORE_NAME": 1, "STORE_GLOBAL": 1, "STORE_DEREF": 1}
"""The number of values that an instruction takes, by the beginning of its name, unless the table above has it."""
_JUMPS = frozenset(dis.hasjrel) | frozenset(dis.hasjabs)


class Use(NamedTuple):
    """The instruction that takes a value from the stack."""

    at: int
    """The number of the instruction that takes it."""
    above: int
    """The number of values above it on the stack: for a call, the arguments after it."""

    def is_called(self, items: Sequence[dis.Instruction]) -> bool:
        """Returns True if the value is the function of a call, or the object whose method is called."""
        return is_call(items[self.at]) and self.above >= count(items, self.at)

    def keyword(self, items: Sequence[dis.Instruction]) -> str | None:
        """Returns the name of the argument, if the value is a keyword argument of a call."""
        given = keywords(items, self.at) if is_call(items[self.at]) else ()
        return given[-1 - self.above] if self.above < len(given) else None


def use(items: Sequence[dis.Instruction], at: int, above: int = 0) -> Use | None:
    """Returns the use of the value that the instruction at `at` leaves below `above` others; None if it is not known.

    A condition inside the expression ends the search, and so does an unknown instruction.
    """
    for number in range(at + 1, min(at + _FAR, len(items))):
        item = items[number]
        taken = _count_popped(item)
        if taken is None or item.opcode in _JUMPS or item.is_jump_target:
            return None
        if taken > above:
            return Use(number, above - (item.opname == "CALL_KW"))
        above += dis.stack_effect(item.opcode, item.arg if item.opcode >= dis.HAVE_ARGUMENT else None)
    return None


def is_call(item: dis.Instruction) -> bool:
    """Returns True if an instruction takes the arguments of a call."""
    return item.opname in _CALLS


def count(items: Sequence[dis.Instruction], at: int) -> int:
    """Returns the number of arguments of the call at `at`."""
    return items[at].arg or 0


def keywords(items: Sequence[dis.Instruction], at: int) -> tuple[str, ...]:
    """Returns the names of the keyword arguments of the call at `at`; they are the last arguments."""
    before = items[at - 1]
    named = items[at].opname == "CALL_KW" or before.opname == "KW_NAMES"
    return before.argval if named and isinstance(before.argval, tuple) else ()


def _count_popped(item: dis.Instruction) -> int | None:
    name, given = item.opname, item.arg or 0
    if name in _CALLS:
        prepared = name == "CALL" and sys.version_info < (3, 12)  # PRECALL took the arguments
        return 2 if prepared else given + (3 if name == "CALL_KW" else 2)
    if name in _BUILDS:
        return given + _TAKEN.get(name, 0)
    if name == "MAKE_FUNCTION":
        return 1 + given.bit_count()
    if name in _TAKEN:
        return _TAKEN[name]
    return next((taken for start, taken in _STARTS.items() if name.startswith(start)), None)
