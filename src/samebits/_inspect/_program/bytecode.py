"""The instructions of code objects, CPython 3.11 to 3.14, and the names in them. Nothing is called."""

from __future__ import annotations

import dis
import functools
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType
from typing import Any

_ENDS = {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"}
_JUMPS = frozenset(dis.hasjrel) | frozenset(dis.hasjabs)
ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR")
GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF")
"""The beginnings of the names of instructions that look up an attribute, or a variable of an outer scope."""
_READS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})


@functools.lru_cache(maxsize=2048)
def instructions(code: CodeType) -> tuple[dis.Instruction, ...]:
    """Returns the instructions of a code object, without inline caches."""
    return tuple(
        _with_keyword_names(item, code) for item in dis.get_instructions(code) if item.opname != "CACHE"
    )


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
    """Yields the exception handlers of `code` that are not around `offset`: the offsets that each protects, and its offset."""
    entries = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]
    outside = {entry.target for entry in entries if entry.start <= offset < entry.end}
    return ((range(entry.start, entry.end), entry.target) for entry in entries if entry.target not in outside)


def inner(code: CodeType) -> Iterator[CodeType]:
    """Yields the functions, lambdas and comprehensions written directly inside a function."""
    return (constant for constant in code.co_consts if isinstance(constant, CodeType))


def whole(code: CodeType) -> Iterator[CodeType]:
    """Yields a function and the functions written inside it, at any depth."""
    yield code
    for one in inner(code):
        yield from whole(one)


def names(code: CodeType) -> Iterator[str]:
    """Yields the names of outer variables and of attributes that a function, or one inside it, may look up."""
    return (name for one in whole(code) for name in one.co_names)


def stored_names(item: dis.Instruction) -> tuple[str, ...]:
    """Returns the variables that an instruction assigns."""
    if not item.opname.startswith("STORE") or item.opname in {"STORE_ATTR", "STORE_SUBSCR", "STORE_SLICE"}:
        return ()
    if item.opname == "STORE_FAST_LOAD_FAST":
        return item.argval[:1]
    return item.argval if isinstance(item.argval, tuple) else (item.argval,)


@functools.lru_cache(maxsize=1024)
def globals_read(code: CodeType) -> frozenset[str]:
    """Returns the names that a code object reads as global variables; `co_names` also has attributes."""
    return frozenset(str(item.argval) for item in instructions(code) if item.opname in _READS)


def globals_written(code: CodeType) -> frozenset[str]:
    """Returns the names that a code object assigns as global variables."""
    return frozenset(str(item.argval) for item in instructions(code) if item.opname == "STORE_GLOBAL")


@functools.cache
def end_of_for(code: CodeType, offset: int) -> int | None:
    """Returns the offset at which the `for` statement at `offset` ends when it is exhausted; None for another instruction."""
    return next((i.argval for i in instructions(code) if i.offset == offset and i.opname == "FOR_ITER"), None)


def stored_in_for(code: CodeType, offset: int) -> frozenset[str]:
    """Returns the names that the body of the `for` statement at `offset` assigns; none for another instruction."""
    end = end_of_for(code, offset)
    inside = [item for item in instructions(code) if end is not None and offset < item.offset < end]
    return frozenset(name for item in inside for name in stored_names(item))


def expression_before(items: Sequence[dis.Instruction], at: int) -> Sequence[dis.Instruction]:
    """Returns the instructions of the expression whose value the one at `at` takes, by their place in the source."""
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
    """Returns the variables to which the value of the instruction at `at` is assigned at once, unpacked or not."""
    if at + 1 < len(items) and items[at + 1].opname == "UNPACK_SEQUENCE":
        return sum((stored_names(item) for item in items[at + 2 : at + 2 + (items[at + 1].arg or 0)]), ())
    return stored_names(items[at + 1]) if at + 1 < len(items) else ()


def begins_for(frame: FrameType) -> bool:
    """Returns True if the instruction that runs in `frame` gets the iterator of a `for` statement."""
    return dis.opname[frame.f_code.co_code[frame.f_lasti]] == "GET_ITER"
