"""The instructions of code objects (CPython 3.11 to 3.14), their names, and the use of stack values."""

from __future__ import annotations

import dis
import functools
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

from samebits._objects.budget import spend

_ENDS = {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"}
_JUMPS = frozenset(dis.hasjrel) | frozenset(dis.hasjabs)
ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR")
GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF")
"""The beginnings of the names of instructions that look up an attribute, or a variable of an outer scope."""
_NO_TARGET: dict[str, Any] = {"label" if "label" in dis.Instruction._fields else "is_jump_target": None}


def _linear_dis() -> Any:
    """Returns a copy of `dis` that takes each offset for a target of jumps: its search is quadratic."""
    spec = importlib.util.find_spec("dis")
    assert spec is not None
    assert spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    vars(copy)["findlabels"] = lambda code: range(0, len(code) + 2, 2)
    return copy


_DIS = _linear_dis()


def instructions(code: CodeType) -> tuple[dis.Instruction, ...]:
    """Returns the instructions of a code object, without inline caches. Whoever asks goes through all."""
    items = _instructions(code)
    spend(1 + len(items) // 8)
    return items


@functools.lru_cache(maxsize=16384)
def _instructions(code: CodeType) -> tuple[dis.Instruction, ...]:
    items = [item for item in _DIS.get_instructions(code) if item.opname != "CACHE"]
    targets = {item.argval for item in items if item.opcode in _JUMPS}
    exact = (item if item.offset in targets else item._replace(**_NO_TARGET) for item in items)
    return tuple(_with_keyword_names(item, code) for item in exact)


def _with_keyword_names(item: dis.Instruction, code: CodeType) -> dis.Instruction:
    """Adds the names of keyword arguments, which `dis` does not know before Python 3.12."""
    return item._replace(argval=code.co_consts[item.arg or 0]) if item.opname == "KW_NAMES" else item


def successors(item: dis.Instruction, position: int, number: dict[int, int]) -> list[int]:
    """Returns the numbers of the instructions that may run after `item`, without those of handlers.

    `position`: the number of `item`. `number`: offset to the number of the instruction there.
    """
    found = [number[item.argval]] if item.opcode in _JUMPS and item.argval in number else []
    always = item.opname.startswith("JUMP") and "IF" not in item.opname
    if item.opname not in _ENDS and not always:
        found.append(position + 1)
    return found


def handlers(code: CodeType, offset: int) -> Iterator[tuple[range, int]]:
    """Yields the exception handlers not around `offset`: the offsets that each protects, and its own."""
    entries = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]
    outside = {entry.target for entry in entries if entry.start <= offset < entry.end}
    return ((range(entry.start, entry.end), entry.target) for entry in entries if entry.target not in outside)


def stored_names(item: dis.Instruction) -> tuple[str, ...]:
    """Returns the variables that an instruction assigns."""
    if not item.opname.startswith("STORE") or item.opname in {"STORE_ATTR", "STORE_SUBSCR", "STORE_SLICE"}:
        return ()
    if item.opname == "STORE_FAST_LOAD_FAST":
        return item.argval[:1]
    return item.argval if isinstance(item.argval, tuple) else (item.argval,)


@functools.cache
def end_of_for(code: CodeType, offset: int) -> int | None:
    """Returns the offset where the `for` statement at `offset` ends; None for another instruction."""
    return next((i.argval for i in instructions(code) if i.offset == offset and i.opname == "FOR_ITER"), None)


def expression_before(items: Sequence[dis.Instruction], at: int) -> Sequence[dis.Instruction]:
    """Returns the instructions of the expression whose value the one at `at` takes, by source place."""
    whole = _span(items[at - 1])
    begin = at
    while begin > 0 and whole is not None and _is_within(_span(items[begin - 1]), whole):
        begin -= 1
    return items[begin:at]


def _span(item: dis.Instruction) -> Any:
    place = item.positions
    if place is None or None in place:
        return None
    return (place.lineno, place.col_offset), (place.end_lineno, place.end_col_offset)


def _is_within(span: Any, whole: Any) -> bool:
    return span is not None and whole[0] <= span[0] and span[1] <= whole[1]


def stored_next(items: Sequence[dis.Instruction], at: int) -> tuple[str, ...]:
    """Returns the variables that get the value of the instruction at `at` at once, unpacked or not."""
    if at + 1 < len(items) and items[at + 1].opname == "UNPACK_SEQUENCE":
        return sum((stored_names(item) for item in items[at + 2 : at + 2 + (items[at + 1].arg or 0)]), ())
    return stored_names(items[at + 1]) if at + 1 < len(items) else ()


def begins_for(frame: FrameType) -> bool:
    """Returns True if the instruction that runs in `frame` gets the iterator of a `for` statement."""
    return dis.opname[frame.f_code.co_code[frame.f_lasti]] == "GET_ITER"


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
"""The number of values that an instruction takes, by the beginning of its name, if not in the table."""


class Use(NamedTuple):
    """The instruction that takes a value from the stack."""

    at: int
    """The number of the instruction that takes it."""
    above: int
    """The number of values above it on the stack: for a call, the arguments after it."""

    def is_called(self, items: Sequence[dis.Instruction]) -> bool:
        """Returns True if the value is the function of a call, or the object whose method is called."""
        return is_call(items[self.at]) and self.above >= argument_count(items, self.at)

    def keyword(self, items: Sequence[dis.Instruction]) -> str | None:
        """Returns the name of the argument, if the value is a keyword argument of a call."""
        given = keyword_names(items, self.at) if is_call(items[self.at]) else ()
        return given[-1 - self.above] if self.above < len(given) else None


def use(items: Sequence[dis.Instruction], at: int, above: int = 0) -> Use | None:
    """Returns the use of the value that the instruction at `at` leaves below `above` others, or None.

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
    return item.opname in _CALLS


def argument_count(items: Sequence[dis.Instruction], at: int) -> int:
    """Returns the number of arguments of the call at `at`."""
    return items[at].arg or 0


def keyword_names(items: Sequence[dis.Instruction], at: int) -> tuple[str, ...]:
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
