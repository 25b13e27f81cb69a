"""The locals that a loop carries from one iteration into the next: liveness at the loop head, from bytecode.

Backward data-flow analysis (Aho, Sethi, Ullman: Compilers, 10.5) over the instructions of one code object,
CPython 3.11 to 3.14. A variable is carried if the next iteration's body, or the code after it, reads it
before it writes it. Paths by an exception that the loop does not handle itself do not count. What only the
code after the loop reads is a group of its own; a variable that each body writes anew is in neither.

The values: live locals, the script's globals, and the attributes of the user's objects, in the frames around
the loop.
"""

from __future__ import annotations

import dis
import inspect
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from types import CodeType

from samebits._inspect import code_names
from samebits._objects.budget import spend
from samebits._program import bytecode
from samebits._program.control_flow import ControlFlow, Edge, holds_from_a_step_on, in_last_body
from samebits._program.inner_loops import InnerLoop, inner_loops, saved_names

_VARIABLE = re.compile(r"(LOAD|STORE|DELETE)_(FAST|DEREF|NAME|CLOSURE)")
_Names = tuple[tuple[str, ...], tuple[str, ...]]
_Action = tuple[str, str]
"""The effect of an instruction on a variable (LOAD, STORE or DELETE), and the variable's name."""


class Liveness:
    """The variables that a loop carries past a fetch of a batch, for each set of inner loops that run."""

    def __init__(self, code: CodeType, offset: int) -> None:
        self.code = code
        self.flow = ControlFlow(code, offset)
        self.inner_loops = frozenset(inner_loops(self.flow))
        self._actions = _actions(self.flow.instructions, code)
        self._bits: dict[str, int] = {}
        """A bit of its own for each variable."""
        self._effects = [self._effect(actions) for actions in self._actions]
        self._stores = _stores_in_loop(self.flow, self._actions)
        self.assigned = frozenset(self._stores)
        """The variables that the loop's body assigns."""
        self._carried: dict[frozenset[InnerLoop], _Names] = {}

    def _effect(self, actions: list[_Action]) -> tuple[int, int]:
        """Returns the variables that an instruction reads before it writes them, and those it writes."""
        loads = stores = 0
        for action, name in reversed(actions):
            bit = self._bits.setdefault(name, 1 << len(self._bits))
            loads = loads | bit if action == "LOAD" else loads & ~bit
            stores |= 0 if action == "LOAD" else bit
        return loads, stores

    def carried(self, running: Collection[InnerLoop] = ()) -> _Names:
        """Returns the names that are live when a FOR_ITER, or a call that fetches a batch, begins a body.

        Returns two groups: those that a following body may read, and those that only the code after the loop
        reads (which count when the loop ends: until then a body may write them again). Cells count where a
        closure may read them: captured before the loop, or owned by an outer function. Where a call fetches
        the batch, what the loop computes before it is computed again by a resumed program; a call in no loop
        carries nothing but such cells.

        Args:
            running: the inner loops that are known to run at least once each time.
        """
        key = frozenset(running)
        if key not in self._carried:
            self._carried[key] = self._names(key)
        return self._carried[key]

    def after(self) -> tuple[str, ...]:
        """Returns the names that are live after the call at the offset, in a loop or not."""
        return _sorted_names(self._live(self.flow.following, frozenset(), self.flow.head + 1))

    def left(self) -> frozenset[str]:
        """Returns the names that the body assigns and the code behind the loop, once it is over, may read."""
        ring = self.flow.ring
        ends = [] if ring is None else [to for at, to in ring.exits if at == self.flow.head]
        return frozenset[str]().union(
            *(self._live(self.flow.following, frozenset(), to) & self.assigned for to in ends)
        )

    def is_set_from_a_step_on(self, name: str, steps: Collection[str]) -> bool:
        """Returns True if a body reads the variable only after `if step.number >= n:` has set it, if at all.

        Nothing else sets it; `steps`: the names of steps.
        """
        flow, ring = self.flow, self.flow.ring
        if ring is None or self._stores[name] != 1 or name in flow.cells:
            return False
        skipped = [holds_from_a_step_on(flow.instructions, at, steps) for at in range(len(flow.following))]
        following = [[at + 1] if skipped[at] else after for at, after in enumerate(flow.following)]
        captured = _captured_cells(self.code, flow.instructions[: ring.top])
        return name not in captured | self._live(following, frozenset(), ring.begins)

    def _names(self, running: frozenset[InnerLoop]) -> _Names:
        flow, ring = self.flow, self.flow.ring
        top = flow.head if ring is None else ring.top
        inside = _captured_cells(self.code, flow.instructions[:top]) | flow.cells
        everything = frozenset[str]()
        if ring is not None:
            following = _following(flow, running)
            again = _fetched_before(flow.instructions, flow.head, ring.top)
            inside |= self._live(following, ring.exits, ring.begins) - again
            following = [in_last_body(flow.instructions, at, after) for at, after in enumerate(following)]
            everything = self._live(following, frozenset(), ring.begins) - again
        return _sorted_names(inside), _sorted_names(everything - inside)

    def _live(self, following: list[list[int]], closed: frozenset[Edge], at: int) -> frozenset[str]:
        """Returns the names live before the instruction `at`; the `closed` edges are not taken."""
        live, changed = [0] * (len(following) + 1), True  # sets of names would take gigabytes
        while changed:
            changed = False
            spend(1 + len(following) // 8)
            for position in range(len(following) - 1, -1, -1):
                before = 0
                for one in following[position]:
                    if (position, one) not in closed:
                        before |= live[one]
                loads, stores = self._effects[position]
                if loads or stores:
                    before = before & ~stores | loads
                handler = self.flow.handlers.get(position)
                if handler is not None and (position, handler) not in closed:
                    before |= live[handler]
                if before != live[position]:
                    live[position], changed = before, True
        return frozenset(name for name, bit in self._bits.items() if live[at] & bit)


_LOADS_OF_CELLS = ("LOAD_CLOSURE", "LOAD_FAST", "LOAD_FAST_BORROW")
_FOUND: dict[tuple[int, int], Liveness] = {}
"""By the identity of the code object (kept alive here): hashing it costs more than the search."""


def liveness_at(code: CodeType, offset: int) -> Liveness:
    """Returns the analysis for the instruction at `offset`, cached."""
    key = (id(code), offset)
    if key not in _FOUND:
        _FOUND[key] = Liveness(code, offset)
    return _FOUND[key]


def is_in_loop(code: CodeType, offset: int) -> bool:
    return liveness_at(code, offset).flow.ring is not None


def _sorted_names(names: frozenset[str]) -> tuple[str, ...]:
    """Returns the sorted names, without those that the compiler made up (`.0`)."""
    return tuple(sorted(name for name in names if not name.startswith(".")))


def _stores_in_loop(flow: ControlFlow, actions: Sequence[list[_Action]]) -> Counter[str]:
    if flow.instructions[flow.head].opname == "FOR_ITER":
        inside: Iterable[int] = range(flow.head + 1, flow.following[flow.head][0])
    else:
        inside = flow.cycle(flow.head)
    return Counter(name for at in inside for kind, name in actions[at] if kind == "STORE")


def _following(flow: ControlFlow, running: Iterable[InnerLoop]) -> list[list[int]]:
    """Returns the successors of each instruction if each of the `running` loops runs at least once."""
    following = list(flow.following)
    for loop in running:
        for position, end in loop.skips:
            following[position] = [one for one in following[position] if one != end]
            for again in loop.repeats:
                following[again] = [*following[again], end]
    return following


def _actions(items: Sequence[dis.Instruction], code: CodeType) -> list[list[_Action]]:
    """Returns what each instruction does to variables, in order, but for those of comprehensions."""
    found = [_actions_of(item) for item in items]
    if not code.co_flags & inspect.CO_OPTIMIZED:  # a module: such instructions are of comprehensions only
        return [[] if "_FAST" in item.opname else actions for item, actions in zip(items, found, strict=True)]
    for position, item in enumerate(items):
        names = saved_names(items, position) if item.opname == "FOR_ITER" else []
        if names:
            _leave_out(found, items, position, names)
    return found


def _leave_out(
    found: list[list[_Action]], items: Sequence[dis.Instruction], position: int, names: list[str]
) -> None:
    """Removes the actions on a comprehension's own variables, until their old values are put back."""
    end = next(number for number, item in enumerate(items) if item.offset == items[position].argval)
    first = max(at for at in range(position) if items[at].opname == "GET_ITER")
    for number in range(first, end):
        found[number] = [one for one in found[number] if one[1] not in names]
    waiting = list(names)
    for number in range(end, len(items)):
        if not waiting:
            return
        for one in list(found[number]):
            if one[0] == "STORE" and one[1] in waiting:
                waiting.remove(one[1])
                found[number].remove(one)


def _actions_of(item: dis.Instruction) -> list[_Action]:
    kinds = [kind for kind, _ in _VARIABLE.findall(item.opname)]
    names = item.argval if isinstance(item.argval, tuple) else (item.argval,) * len(kinds)
    return list(zip(kinds, names, strict=False)) if len(names) == len(kinds) else []


_READ: dict[int, tuple[CodeType, frozenset[str]]] = {}


def names_read(code: CodeType) -> frozenset[str]:
    """Returns the global names that functions defined in `code` (at any depth) read or write, cached."""
    if id(code) not in _READ:
        functions = [one for function in code_names.inner(code) for one in code_names.whole(function)]
        found = (code_names.globals_read(one) | code_names.globals_written(one) for one in functions)
        _READ[id(code)] = (code, frozenset().union(*found))
    return _READ[id(code)][1]


def _fetched_before(items: Sequence[dis.Instruction], head: int, top: int) -> frozenset[str]:
    """Returns the variables that the call at `head` assigns, as such a call before the loop does.

    `item = next(steps)` stands before the loop and at its end: a resumed program fetches the item again.
    """
    names = bytecode.stored_next(items, head)
    if not names or items[head].opname == "FOR_ITER":
        return frozenset()
    called = _loaded_for(items, head)
    before = (at for at in range(top) if items[at].opname == items[head].opname)
    fetched = any(
        bytecode.stored_next(items, at) == names and _loaded_for(items, at) == called for at in before
    )
    return frozenset(names if fetched else ())


def _loaded_for(items: Sequence[dis.Instruction], call: int) -> list[str]:
    """Returns the names of the function of a call and of its first argument."""
    loads = [
        str(i.argval) for i in bytecode.expression_before(items, call + 1) if i.opname.startswith("LOAD")
    ]
    return loads[:2]


def _captured_cells(code: CodeType, before_the_loop: Sequence[dis.Instruction]) -> frozenset[str]:
    """Returns the cells of the functions that are made before the loop: a call in the body may read them.

    Only a new function's closure takes the cell itself: by LOAD_CLOSURE, or (3.13) by LOAD_FAST, for
    LOAD_DEREF reads the value in it.
    """
    cells = {*code.co_cellvars, *code.co_freevars}
    loads = (item.argval for item in before_the_loop if item.opname in _LOADS_OF_CELLS)
    return frozenset(name for name in loads if name in cells)
