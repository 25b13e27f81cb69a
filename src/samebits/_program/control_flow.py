"""The flow of control in a code object: what may run after an instruction, and the loop around it."""

from __future__ import annotations

import bisect
import dis
import functools
import inspect
import sys
from collections.abc import Collection, Iterable, Sequence
from types import CodeType
from typing import Any, NamedTuple

from samebits._inspect.user_code import outwards
from samebits._objects.budget import spend
from samebits._program.bytecode import end_of_for, handlers, instructions, stored_names, successors

UNKNOWN: Any = object()
"""Marks a value that the bytecode does not give away."""

_COUNTERS = {"number", "epoch"}
"""Attributes of a step that `run.steps` counts: they never fall, also over a resume."""
_LOADS = ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW", "LOAD_NAME", "LOAD_DEREF")


def asks_for_a_kind(items: Sequence[dis.Instruction], at: int) -> bool:
    """Returns True if the condition of the jump at `at` is a call of `isinstance` or `hasattr`."""
    return any(item.argval in {"isinstance", "hasattr"} for item in items[max(0, at - 9) : at])


def holds_from_a_step_on(items: Sequence[dis.Instruction], at: int, steps: Collection[str]) -> bool:
    """Returns True if the jump at `at` skips code unless `step.number >= n`, with a constant n."""
    if at < 4 or not (items[at].opname.startswith("POP_JUMP") and items[at].opname.endswith("IF_FALSE")):
        return False
    _, counter, bound, compared = items[at - 4 : at]
    return (
        is_of_step(items, at - 3, steps)
        and counter.argval in _COUNTERS
        and type(bound.argval) is int
        and compared.opname == "COMPARE_OP"
        and compared.argval.removeprefix("bool(").removesuffix(")") in {">", ">="}
    )


def is_of_step(items: Sequence[dis.Instruction], at: int, steps: Collection[str]) -> bool:
    """Returns True if the instruction at `at` loads an attribute of the loop's step, which none can write."""
    return at > 0 and items[at].opname == "LOAD_ATTR" and items[at - 1].argval in steps


def in_last_body(items: Sequence[dis.Instruction], at: int, following: list[int]) -> list[int]:
    """Returns the successors in the last body of a loop that runs to its end: `step.ends_epoch` is true."""
    tested = at - 1 - (items[at - 1].opname == "TO_BOOL")
    if len(following) < 2 or items[tested].argval != "ends_epoch" or items[tested].opname != "LOAD_ATTR":
        return following
    if items[at].opname.endswith("IF_FALSE"):
        return [at + 1]
    return [one for one in following if one != at + 1] if items[at].opname.endswith("IF_TRUE") else following


def takes_jump(items: Sequence[dis.Instruction], at: int) -> bool | None:
    """Returns the truth of the jump's condition if it is a variable just given a constant; else None.

    For example the first test of `done = False; while not done: ...`. Between the two no other code joins.
    """
    kind = items[at].opname.partition("_IF_")[2]
    tested = at - 1
    while tested > 0 and items[tested].opname in {"TO_BOOL", "EXTENDED_ARG"}:
        tested -= 1
    joined = any(item.is_jump_target for item in items[tested + 1 : at + 1])
    if kind not in {"TRUE", "FALSE", "NONE", "NOT_NONE"} or joined or items[tested].opname not in _LOADS:
        return None
    value = _constant_of(items, tested)
    if value is UNKNOWN:
        return None
    return (value is None) == (kind == "NONE") if "NONE" in kind else bool(value) == (kind == "TRUE")


def _constant_of(items: Sequence[dis.Instruction], at: int) -> Any:
    """Returns the constant that the code before gave to the variable read at `at`; else `UNKNOWN`."""
    name = items[at].argval
    ends = ("RETURN", "RAISE", "RERAISE", "JUMP", "DELETE")
    if "FAST" not in items[at].opname:  # a called function may assign the variable, too
        ends += ("CALL",)
    while at > 0 and not items[at].is_jump_target:
        at -= 1
        stored = stored_names(items[at])
        if name in stored:
            return _stored_constant(items, at, len(stored) - 1 - stored[::-1].index(name))
        if items[at].opname.startswith(ends):
            break
    return UNKNOWN


def _stored_constant(items: Sequence[dis.Instruction], at: int, depth: int) -> Any:
    """Returns the constant that the instruction at `at` finds below `depth` others, else `UNKNOWN`."""
    while at > 0 and not items[at].is_jump_target:
        at -= 1
        item = items[at]
        if item.opname in {"LOAD_CONST", "LOAD_SMALL_INT"}:
            if depth == 0:
                return item.argval
            depth -= 1
        elif item.opname == "COPY" and item.arg == 1:
            depth = max(0, depth - 1)
        elif item.opname == "UNPACK_SEQUENCE" and depth < (item.arg or 0):
            packed = _stored_constant(items, at, 0)
            return packed[depth] if isinstance(packed, tuple) else UNKNOWN
        elif stored_names(item) and "LOAD" not in item.opname:
            depth += len(stored_names(item))
        else:
            break
    return UNKNOWN


_TARGETS = 6
"""Instructions behind the head that store the targets: `step, (x, y)` of a `for`, or of the item that a
`while (item := next(steps, None))` has fetched."""


def stored_at_head(items: Sequence[dis.Instruction], head: int, names: Collection[str]) -> frozenset[str]:
    """Returns those of the names that the head of a loop stores as its targets, and nothing else stores."""
    stores = [
        (number, name) for number, item in enumerate(items) for name in stored_names(item) if name in names
    ]
    once = {name for _, name in stores if sum(name == other for _, other in stores) == 1}
    return frozenset(name for number, name in stores if name in once and head < number <= head + _TARGETS)


Edge = tuple[int, int]
"""The numbers of an instruction and of one that may run after it."""


class Ring(NamedTuple):
    """A loop: its first instruction, its next iteration's start, its exits and those of loops around it."""

    top: int
    begins: int
    exits: frozenset[Edge]


class ControlFlow:
    """The instructions of `code`, by number; `head` is that at `offset`; handlers around it are outside."""

    def __init__(self, code: CodeType, offset: int) -> None:
        self.instructions = instructions(code)
        starts = [item.offset for item in self.instructions]
        self.head = bisect.bisect_right(starts, offset) - 1
        self.cells = frozenset(code.co_freevars)
        """Variables of an outer function."""
        self.handlers = _handlers(code, starts, offset)
        """Instruction number to that of its exception handler, for handlers inside one iteration."""
        number = {start: position for position, start in enumerate(starts)}
        items = self.instructions
        self.following = [_possible(items, at, successors(one, at, number)) for at, one in enumerate(items)]
        self._copies: dict[Any, list[int]] = {}
        for position, item in enumerate(self.instructions):
            self._copies.setdefault((item.opname[:8], item.positions), []).append(position)
        self.ring = self._find_ring()

    def _find_ring(self) -> Ring | None:
        """Returns the loop around the head: its own FOR_ITER's, or the innermost that returns to it."""
        if self.instructions[self.head].opname == "FOR_ITER":
            exits = [(self.head, after) for after in self.following[self.head] if after != self.head + 1]
            return Ring(self.head, self.head + 1, frozenset(exits))
        if self.head not in self._reachable(self._next(self.head)):
            twins = [one for one in self.twins(self.head) if one in self._reachable(self._next(one))]
            if not twins:
                return None
            self.head = twins[0]
        inside = self.cycle(self.head)
        exits = [(one, after) for one in inside for after in self._next(one) if after not in inside]
        top = max(after for one in inside for after in self._next(one) if self._closes(one, after))
        # `while next(...):` has the call before the loop and at its end; there the next body begins after it
        calls = {self.head, *self.twins(self.head)}
        begins = top if top in self._reachable([0], calls) else self.head + 1
        return Ring(min(top, self.head), begins, frozenset(exits))

    def twins(self, position: int) -> list[int]:
        """Returns an instruction's copies: a `while`'s condition stands before the loop and at its end."""
        one = self.instructions[position]
        return [other for other in self._copies[one.opname[:8], one.positions] if other != position]

    def cycle(self, position: int, without: Collection[int] = ()) -> set[int]:
        """Returns the instructions of the loops around one, if nothing passes those in `without`."""
        ahead = self._reachable(self._next(position), without)
        if position not in ahead:
            return set()
        before: dict[int, list[int]] = {}
        for one in ahead:
            for after in self._next(one):
                before.setdefault(after, []).append(one)
        waiting, found = [position], set[int]()
        while waiting:
            one = waiting.pop()
            if one not in found:
                found.add(one)
                waiting += before.get(one, ())
        return found

    def _closes(self, position: int, after: int) -> bool:
        """Returns True for a jump back to the top of a loop that the head is in."""
        if not after <= self.head or not after <= position:
            return False
        return after == self.head or position in self._reachable([self.head], {after})

    def _next(self, position: int) -> list[int]:
        handler = [self.handlers[position]] if position in self.handlers else []
        return [after for after in (*self.following[position], *handler) if after < len(self.instructions)]

    def _reachable(self, begin: Iterable[int], without: Collection[int] = ()) -> set[int]:
        waiting, reached = list(begin), set[int]()
        while waiting:
            one = waiting.pop()
            if one not in reached and one not in without:
                reached.add(one)
                waiting += self._next(one)
        spend(1 + len(reached) // 4)
        return reached


def is_outside_of_body(identity: int, code: CodeType, offset: int) -> bool:
    """Returns True if the program has left the body of the `for` at `offset`, as far as is known."""
    end = end_of_for(code, offset)
    if end is None or code.co_flags & inspect.CO_GENERATOR:  # its consumer's body is not in sight
        return False
    frames = (one for one in outwards(sys._getframe(1)) if (id(one), one.f_code) == (identity, code))
    return not any(offset < one.f_lasti < end for one in frames)


def _possible(items: Sequence[dis.Instruction], position: int, after: list[int]) -> list[int]:
    """Returns the successors without the side of a condition that is never taken, or seldom."""
    if len(after) < 2:
        return after
    jumps = False if _suppresses(items, position) else takes_jump(items, position)
    return after if jumps is None else after[:1] if jumps else after[1:]


def _suppresses(items: Sequence[dis.Instruction], position: int) -> bool:
    """Returns True if the jump is taken only when a `with` block swallowed an exception, which is rare."""
    if "JUMP" not in items[position].opname or "IF_TRUE" not in items[position].opname:
        return False
    before = [item.opname for item in items[max(0, position - 2) : position] if item.opname != "TO_BOOL"]
    return before[-1:] == ["WITH_EXCEPT_START"]


def _handlers(code: CodeType, starts: list[int], offset: int) -> dict[int, int]:
    place = functools.partial(bisect.bisect_left, starts)
    spans = ((place(one.start), place(one.stop), place(target)) for one, target in handlers(code, offset))
    return {position: target for start, stop, target in spans for position in range(start, stop)}
