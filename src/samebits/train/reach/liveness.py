"""Which local variables a loop carries from one iteration into the next: liveness at the loop head, from bytecode.

Backward data-flow analysis (Aho, Sethi, Ullman: Compilers, 10.5) over the instructions of one code object, CPython
3.11 to 3.14. A variable is carried if the next iteration's body, or what runs after it, reads it before it
writes it. Paths that leave the loop before another body, or by an exception that the loop does not handle itself,
do not count: a loop variable that is only printed after the loop is written again by the next body.
"""

from __future__ import annotations

import bisect
import dis
import re
from types import CodeType

_VARIABLE = re.compile(r"(LOAD|STORE|DELETE)_(FAST|DEREF|NAME|CLOSURE)")
_ENDS = {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"}
_JUMPS = frozenset(dis.hasjrel) | frozenset(dis.hasjabs)


_CARRIED: dict[tuple[int, int], tuple[CodeType, tuple[tuple[str, ...], tuple[str, ...]]]] = {}
"""By identity of the code object (kept alive here): to hash one costs more than the walk over the locals."""


def carried(code: CodeType, offset: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """`carried_names`, remembered."""
    key = (id(code), offset)
    if key not in _CARRIED:
        _CARRIED[key] = (code, carried_names(code, offset))
    return _CARRIED[key][1]


def carried_names(code: CodeType, offset: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names that are live when the instruction at `offset` (a FOR_ITER, or a call of `next`) goes on to a body.

    Returns two groups: those that a following body may read, and those that only the code behind the loop reads
    (which count when the loop ends: until then a body may write them again). Cells count where a closure may read
    them: captured before the loop, or owned by an outer function.
    """
    instructions = [item for item in dis.get_instructions(code) if item.opname != "CACHE"]
    starts = [item.offset for item in instructions]
    head = bisect.bisect_right(starts, offset) - 1
    handlers = _handlers(code, starts, offset)
    everything = _live(instructions, handlers, None)[head + 1]
    inside = _live(instructions, handlers, head)[head + 1]
    inside |= _captured(instructions[:head]) | set(code.co_freevars)
    return _named(inside), _named(everything - inside)


def _named(names: frozenset[str]) -> tuple[str, ...]:
    return tuple(sorted(name for name in names if not name.startswith(".")))


def _live(
    instructions: list[dis.Instruction], handlers: dict[int, int], closed: int | None
) -> list[frozenset[str]]:
    """Names live before each instruction; the jump out of the loop at `closed` is not taken."""
    number = {item.offset: position for position, item in enumerate(instructions)}
    live: list[frozenset[str]] = [frozenset()] * (len(instructions) + 1)
    changed = True
    while changed:
        changed = False
        for position in range(len(instructions) - 1, -1, -1):
            item = instructions[position]
            followers = _followers(item, position, number)
            if (position == closed and item.opname == "FOR_ITER") or _suppresses(instructions, position):
                followers = [position + 1]
            before = _before(item, frozenset().union(*(live[follower] for follower in followers)))
            if position in handlers:
                before |= live[handlers[position]]
            if before != live[position]:
                live[position], changed = before, True
    return live


_READ: dict[int, tuple[CodeType, frozenset[str]]] = {}


def names_read(code: CodeType) -> frozenset[str]:
    """`names_used`, remembered."""
    if id(code) not in _READ:
        _READ[id(code)] = (code, names_used(code))
    return _READ[id(code)][1]


def names_used(code: CodeType) -> frozenset[str]:
    """Global names that functions defined in `code` (at any depth) read or write."""
    names: set[str] = set()
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    while inner:
        function = inner.pop()
        inner += [constant for constant in function.co_consts if isinstance(constant, CodeType)]
        names.update(
            str(item.argval)
            for item in dis.get_instructions(function)
            if item.opname in {"LOAD_GLOBAL", "STORE_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}
        )
    return frozenset(names)


def _followers(item: dis.Instruction, position: int, number: dict[int, int]) -> list[int]:
    followers = [number[item.argval]] if item.opcode in _JUMPS and item.argval in number else []
    always = item.opname.startswith("JUMP") and "IF" not in item.opname
    if item.opname not in _ENDS and not always:
        followers.append(position + 1)
    return followers


def _suppresses(instructions: list[dis.Instruction], position: int) -> bool:
    """Whether this jump is taken only when a `with` block swallowed an exception: left out, it hardly ever does."""
    if "JUMP" not in instructions[position].opname or "IF_TRUE" not in instructions[position].opname:
        return False
    return any(item.opname == "WITH_EXCEPT_START" for item in instructions[max(0, position - 2) : position])


def _before(item: dis.Instruction, after: frozenset[str]) -> frozenset[str]:
    """Live before `item`, given what is live after it; two-variable instructions act left to right."""
    kinds = _VARIABLE.findall(item.opname)
    if not kinds:
        return after
    names = item.argval if isinstance(item.argval, tuple) else (item.argval,) * len(kinds)
    actions = list(zip((kind for kind, _ in kinds), names, strict=False))
    if item.opname == "STORE_FAST_LOAD_FAST" or len(names) == len(kinds):
        for action, name in reversed(actions):
            after = after | {name} if action == "LOAD" else after - {name}
        return after
    return after


def _handlers(code: CodeType, starts: list[int], offset: int) -> dict[int, int]:
    """Instruction number to the number of its exception handler, for handlers inside one iteration only."""
    entries = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]
    outside = {entry.target for entry in entries if entry.start <= offset < entry.end}
    return {
        position: starts.index(entry.target)
        for entry in entries
        if entry.target not in outside
        for position, start in enumerate(starts)
        if entry.start <= start < entry.end
    }


def _captured(before_the_loop: list[dis.Instruction]) -> frozenset[str]:
    """Cells that functions made before the loop hold: a call in the body may read them."""
    names: set[str] = set()
    for position, item in enumerate(before_the_loop):
        closure = item.opname == "LOAD_CLOSURE"
        if not closure and item.opname.startswith(
            "LOAD_FAST"
        ):  # 3.13: LOAD_CLOSURE became LOAD_FAST of a cell
            following = before_the_loop[position + 1 : position + 40]
            closure = isinstance(item.argval, str) and _feeds_closure(item, following)
        if closure:
            names.add(str(item.argval))
    return frozenset(names)


def _feeds_closure(item: dis.Instruction, following: list[dis.Instruction]) -> bool:
    for later in following:
        if later.opname == "BUILD_TUPLE":
            continue
        if later.opname.startswith("LOAD_FAST"):
            continue
        return later.opname in {"LOAD_CONST", "MAKE_FUNCTION"} and any(
            far.opname == "SET_FUNCTION_ATTRIBUTE" for far in following[:12]
        )
    return False
