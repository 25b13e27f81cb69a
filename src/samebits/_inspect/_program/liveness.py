"""The local variables that a loop carries from one iteration into the next: liveness at the loop head, from bytecode.

Backward data-flow analysis (Aho, Sethi, Ullman: Compilers, 10.5) over the instructions of one code object, CPython 3.11
to 3.14. A variable is carried if the next iteration's body, or the code after it, reads it before it writes it. Paths
that leave the loop before another body, or by an exception that the loop does not handle itself, do not count: a loop
variable that is only printed after the loop is written again by the next body.
"""

from __future__ import annotations

import dis
import re
from collections.abc import Sequence
from types import CodeType

from samebits._inspect._program import bytecode
from samebits._inspect._program.control_flow import ControlFlow, Edge, Ring

_VARIABLE = re.compile(r"(LOAD|STORE|DELETE)_(FAST|DEREF|NAME|CLOSURE)")
_Names = tuple[tuple[str, ...], tuple[str, ...]]

_FOUND: dict[tuple[int, int], tuple[CodeType, _Names, bool]] = {}
"""The results by the identity of the code object (kept alive here): hashing it costs more than the walk over the locals."""


def carried(code: CodeType, offset: int) -> _Names:
    """Returns `carried_names`, cached."""
    return _cached(code, offset)[1]


def is_in_loop(code: CodeType, offset: int) -> bool:
    """Returns True if the instruction at `offset` is in a loop."""
    return _cached(code, offset)[2]


def _cached(code: CodeType, offset: int) -> tuple[CodeType, _Names, bool]:
    key = (id(code), offset)
    if key not in _FOUND:
        flow = ControlFlow(code, offset)
        ring = flow.ring()
        _FOUND[key] = (code, carried_names(flow, ring), ring is not None)
    return _FOUND[key]


def carried_names(flow: ControlFlow, ring: Ring | None) -> _Names:
    """Returns the names that are live when a FOR_ITER, or a call that fetches a batch, continues with a body.

    Returns two groups: those that a following body may read, and those that only the code after the loop reads
    (which count when the loop ends: until then a body may write them again). Cells count where a closure may read
    them: captured before the loop, or owned by an outer function. Where a call fetches the batch, what the loop
    computes before it is computed again by a resumed program; a call in no loop carries nothing but such cells.
    """
    inside = _captured_cells(flow.instructions[: flow.head]) | flow.cells
    everything = frozenset[str]()
    if ring is not None:
        everything = _live(flow, frozenset())[ring.begins]
        inside |= _live(flow, ring.exits)[ring.begins]
    return _sorted_names(inside), _sorted_names(everything - inside)


def _sorted_names(names: frozenset[str]) -> tuple[str, ...]:
    """Returns the sorted names, without those that the compiler made up (`.0`)."""
    return tuple(sorted(name for name in names if not name.startswith(".")))


def _live(flow: ControlFlow, closed: frozenset[Edge]) -> list[frozenset[str]]:
    """Returns the names live before each instruction; the `closed` edges are not taken."""
    live: list[frozenset[str]] = [frozenset()] * (len(flow.instructions) + 1)
    changed = True
    while changed:
        changed = False
        for position in range(len(flow.instructions) - 1, -1, -1):
            after = [live[one] for one in flow.following[position] if (position, one) not in closed]
            before = _live_before(flow.instructions[position], frozenset().union(*after))
            handler = flow.handlers.get(position)
            if handler is not None and (position, handler) not in closed:
                before |= live[handler]
            if before != live[position]:
                live[position], changed = before, True
    return live


_READ: dict[int, tuple[CodeType, frozenset[str]]] = {}


def names_read(code: CodeType) -> frozenset[str]:
    """Returns `names_used`, cached."""
    if id(code) not in _READ:
        _READ[id(code)] = (code, names_used(code))
    return _READ[id(code)][1]


def names_used(code: CodeType) -> frozenset[str]:
    """Returns the global names that functions defined in `code` (at any depth) read or write."""
    functions = [one for function in bytecode.inner(code) for one in bytecode.whole(function)]
    found = (bytecode.globals_read(one) | bytecode.globals_written(one) for one in functions)
    return frozenset().union(*found)


def _live_before(item: dis.Instruction, after: frozenset[str]) -> frozenset[str]:
    """Returns the names live before `item`, given those live after it; two-variable instructions act left to right."""
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


def _captured_cells(before_the_loop: Sequence[dis.Instruction]) -> frozenset[str]:
    """Returns the cells of the functions that are made before the loop: a call in the body may read them."""
    names: set[str] = set()
    for position, item in enumerate(before_the_loop):
        closure = item.opname == "LOAD_CLOSURE"
        # 3.13: LOAD_CLOSURE became LOAD_FAST of a cell
        if not closure and item.opname.startswith("LOAD_FAST"):
            following = before_the_loop[position + 1 : position + 40]
            closure = isinstance(item.argval, str) and _feeds_closure(item, following)
        if closure:
            names.add(str(item.argval))
    return frozenset(names)


def _feeds_closure(item: dis.Instruction, following: Sequence[dis.Instruction]) -> bool:
    """Returns True if the loaded cell becomes a part of the closure of a new function."""
    for later in following:
        if later.opname == "BUILD_TUPLE":
            continue
        if later.opname.startswith("LOAD_FAST"):
            continue
        return later.opname in {"LOAD_CONST", "MAKE_FUNCTION"} and any(
            far.opname == "SET_FUNCTION_ATTRIBUTE" for far in following[:12]
        )
    return False
