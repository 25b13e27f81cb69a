"""Conditions in bytecode with only one side that counts for the question if each iteration writes a value."""

from __future__ import annotations

import dis
from collections.abc import Collection, Sequence
from typing import Any

from samebits._inspect._program.bytecode import stored_names

UNKNOWN: Any = object()
"""Marks a value that the bytecode does not give away."""

_COUNTERS = {"number", "epoch"}
"""The attributes of a step that `run.steps` counts: they never fall, and a resumed run continues the count."""


def asks_for_a_kind(items: Sequence[dis.Instruction], at: int) -> bool:
    """Returns True if the condition of the jump at `at` is a call of `isinstance` or `hasattr`."""
    return any(item.argval in {"isinstance", "hasattr"} for item in items[max(0, at - 9) : at])


def holds_from_a_step_on(items: Sequence[dis.Instruction], at: int, steps: Collection[str]) -> bool:
    """Returns True if the jump at `at` skips the code after it unless `step.number >= n`: `step` in `steps`, `n` a constant."""
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
    """Returns True if the instruction at `at` loads an attribute of the loop's step: nobody can write those."""
    return at > 0 and items[at].opname == "LOAD_ATTR" and items[at - 1].argval in steps


def takes_jump(items: Sequence[dis.Instruction], at: int) -> bool | None:
    """Returns True or False if the condition of the jump at `at` is a variable that was just given a constant; else None.

    For example the first test of `done = False; while not done: ...`. Between the two no other code joins.
    """
    kind = items[at].opname.partition("_IF_")[2]
    tested = at - 1
    while tested > 0 and items[tested].opname in {"TO_BOOL", "EXTENDED_ARG"}:
        tested -= 1
    joined = any(item.is_jump_target for item in items[tested + 1 : at + 1])
    if kind not in {"TRUE", "FALSE", "NONE", "NOT_NONE"} or joined or not _loads_variable(items[tested]):
        return None
    value = _constant_of(items, tested)
    if value is UNKNOWN:
        return None
    return (value is None) == (kind == "NONE") if "NONE" in kind else bool(value) == (kind == "TRUE")


def _loads_variable(item: dis.Instruction) -> bool:
    kinds = ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW", "LOAD_NAME", "LOAD_DEREF")
    return item.opname in kinds


def _constant_of(items: Sequence[dis.Instruction], at: int) -> Any:
    """Returns the constant that the variable read at `at` has by the straight line of code before; else `UNKNOWN`."""
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
    """Returns the constant that the instruction at `at` finds below `depth` others on the stack; else `UNKNOWN`."""
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


def stored_at_head(items: Sequence[dis.Instruction], head: int, names: Collection[str]) -> frozenset[str]:
    """Returns those of the names that the head of a loop stores, as its targets, and that nothing else stores."""
    stores = [
        (number, name) for number, item in enumerate(items) for name in stored_names(item) if name in names
    ]
    once = {name for _, name in stores if sum(name == other for _, other in stores) == 1}
    return frozenset(name for number, name in stores if name in once and head < number <= head + 6)
