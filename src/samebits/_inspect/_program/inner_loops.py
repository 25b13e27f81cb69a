"""The loops inside a loop's body, by what a variable that only they assign depends on: do they run at all?

`for micro_step in range(n): loss = ...`, and `loss` is read after it. The next iteration would read an old `loss` only if
`n` were 0. So liveness is asked twice: as if an inner loop may run no time, and as if each runs at least once.
"""

from __future__ import annotations

import dis
from collections.abc import Sequence
from typing import NamedTuple

from samebits._inspect._program.control_flow import ControlFlow, Edge


class InnerLoop(NamedTuple):
    """A loop of a body: a `for` statement with its FOR_ITER at `at`, or a `while` statement (`at` is None)."""

    at: int | None
    skips: frozenset[Edge]
    """The steps by which control passes the loop without an iteration."""
    repeats: frozenset[int]
    """The instructions that jump back to the FOR_ITER: after them the loop may end."""


def inner_loops(flow: ControlFlow) -> list[InnerLoop]:
    """Returns the loops that the flow's head is not in. Comprehensions that are part of the code (3.12) are no loops here."""
    found = []
    for at, item in enumerate(flow.instructions):
        if item.opname == "FOR_ITER" and at != flow.head and not is_comprehension(flow.instructions, at):
            end = flow.following[at][0]
            if not at < flow.head < end:
                begins = at
                while flow.instructions[begins - 1].opname == "EXTENDED_ARG":
                    begins -= 1
                repeats = [
                    one for one, after in enumerate(flow.following) if begins in after and one != begins - 1
                ]
                found.append(InnerLoop(at, frozenset({(at, end)}), frozenset(repeats)))
    return found + _while_loops(flow)


def _while_loops(flow: ControlFlow) -> list[InnerLoop]:
    """Returns one entry for each condition of a `while` statement, which stands twice: before the loop, and at its end."""
    conditions = [at for at, item in enumerate(flow.instructions) if "_IF_" in item.opname]
    entries = {at: twin for at in conditions for twin in flow.twins(at)[-1:] if twin > at}
    outside = {flow.head, *entries}
    found = []
    for at, twin in entries.items():
        cycle = flow.cycle(twin, outside)
        ends = {after for one in cycle for after in flow.following[one] if after not in cycle}
        skips = frozenset((at, after) for after in flow.following[at] if after in ends)
        if skips and len(flow.following[at]) > 1:
            found.append(InnerLoop(None, skips, frozenset()))
    return found


def is_comprehension(items: Sequence[dis.Instruction], at: int) -> bool:
    """Returns True if the FOR_ITER at `at` is that of a comprehension that is compiled into the function (Python 3.12)."""
    return bool(saved_names(items, at))


def saved_names(items: Sequence[dis.Instruction], at: int) -> list[str]:
    """Returns the variables of the comprehension with its FOR_ITER at `at`: their old values are put back after it."""
    names = []
    for item in reversed(items[max(0, at - 20) : at]):
        if item.opname == "LOAD_FAST_AND_CLEAR":
            names.append(str(item.argval))
        elif not item.opname.startswith(("SWAP", "BUILD_", "COPY", "MAKE_CELL", "NOP")):
            break
    return names
