"""Conditions in bytecode of which only one side counts for the question if each iteration writes a value."""

from __future__ import annotations

import dis
from collections.abc import Collection, Sequence

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


def stored_at_head(items: Sequence[dis.Instruction], head: int, names: Collection[str]) -> frozenset[str]:
    """Returns those of the names that the head of a loop stores, as its targets, and that nothing else stores."""
    stores = [
        (number, name) for number, item in enumerate(items) for name in _stored_names(item) if name in names
    ]
    once = {name for _, name in stores if sum(name == other for _, other in stores) == 1}
    return frozenset(name for number, name in stores if name in once and head < number <= head + 6)


def _stored_names(item: dis.Instruction) -> tuple[str, ...]:
    if not item.opname.startswith("STORE") or item.opname == "STORE_ATTR":
        return ()
    return item.argval if isinstance(item.argval, tuple) else (item.argval,)
