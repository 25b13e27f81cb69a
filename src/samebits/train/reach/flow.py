"""The flow of control in a code object, around one instruction of it: what may follow what, and the loop that it is in."""

from __future__ import annotations

import bisect
import dis
from collections.abc import Collection, Iterable
from types import CodeType
from typing import NamedTuple

_ENDS = {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"}
_JUMPS = frozenset(dis.hasjrel) | frozenset(dis.hasjabs)

Edge = tuple[int, int]
"""From an instruction, by number, to one that may run next."""


class Ring(NamedTuple):
    """A loop: where its next iteration begins, and the ways out of it (and of the loops around it)."""

    begins: int
    exits: frozenset[Edge]


class Flow:
    """The instructions of `code`, by number; `head` is that at `offset`. Handlers around it lie outside of an iteration."""

    def __init__(self, code: CodeType, offset: int) -> None:
        self.instructions = [item for item in dis.get_instructions(code) if item.opname != "CACHE"]
        starts = [item.offset for item in self.instructions]
        self.head = bisect.bisect_right(starts, offset) - 1
        self.cells = frozenset(code.co_freevars)
        """Variables of an outer function."""
        self.handlers = _handlers(code, starts, offset)
        """Instruction number to the number of its exception handler, for handlers inside one iteration only."""
        number = {start: position for position, start in enumerate(starts)}
        self.following = [
            [position + 1] if _suppresses(self.instructions, position) else followers(item, position, number)
            for position, item in enumerate(self.instructions)
        ]

    def ring(self) -> Ring | None:
        """The loop around the head: the `for` statement whose FOR_ITER it is, or the innermost that comes by it again."""
        if self.instructions[self.head].opname == "FOR_ITER":
            exits = [(self.head, after) for after in self.following[self.head] if after != self.head + 1]
            return Ring(self.head + 1, frozenset(exits))
        ahead = self._reached(self._next(self.head))
        if self.head not in ahead:
            return None
        inside = {one for one in ahead if self.head in self._reached([one])}
        exits = [(one, after) for one in inside for after in self._next(one) if after not in inside]
        top = max(after for one in inside for after in self._next(one) if self._closes(one, after))
        # `while next(...):` has the call twice: before the loop, and at its end; there the next body begins behind it
        called = self.instructions[self.head].positions
        calls = {one for one, item in enumerate(self.instructions) if item.positions == called}
        return Ring(top if top in self._reached([0], calls) else self.head + 1, frozenset(exits))

    def _closes(self, one: int, after: int) -> bool:
        """Whether that is a jump back to the top of a loop that the head is in."""
        if not after <= self.head or not after <= one:
            return False
        return after == self.head or one in self._reached([self.head], {after})

    def _next(self, one: int) -> list[int]:
        handler = [self.handlers[one]] if one in self.handlers else []
        return [after for after in (*self.following[one], *handler) if after < len(self.instructions)]

    def _reached(self, begin: Iterable[int], without: Collection[int] = ()) -> set[int]:
        waiting, reached = list(begin), set[int]()
        while waiting:
            one = waiting.pop()
            if one not in reached and one not in without:
                reached.add(one)
                waiting += self._next(one)
        return reached


def followers(item: dis.Instruction, position: int, number: dict[int, int]) -> list[int]:
    """The numbers of the instructions that may run after `item`, without those of handlers."""
    found = [number[item.argval]] if item.opcode in _JUMPS and item.argval in number else []
    always = item.opname.startswith("JUMP") and "IF" not in item.opname
    if item.opname not in _ENDS and not always:
        found.append(position + 1)
    return found


def _suppresses(instructions: list[dis.Instruction], position: int) -> bool:
    """Whether this jump is taken only when a `with` block swallowed an exception: left out, it hardly ever does."""
    if "JUMP" not in instructions[position].opname or "IF_TRUE" not in instructions[position].opname:
        return False
    return any(item.opname == "WITH_EXCEPT_START" for item in instructions[max(0, position - 2) : position])


def _handlers(code: CodeType, starts: list[int], offset: int) -> dict[int, int]:
    entries = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]
    outside = {entry.target for entry in entries if entry.start <= offset < entry.end}
    return {
        position: starts.index(entry.target)
        for entry in entries
        if entry.target not in outside
        for position, start in enumerate(starts)
        if entry.start <= start < entry.end
    }
