"""Is a value that lives in an object read by the next iteration before it is written? Else the loop recomputes it.

What liveness is for local variables, for attributes, globals and items, which other functions read and write: a search
over the bytecode of the loop's body from its head, into the user's functions by the name they are called by (so it
needs no types and calls nothing). A call writes what one of these functions writes on each way through it. A value that
nobody assigns in the loop is changed in place: it is carried, unless each iteration overwrites it first (`resets`).
"""

from __future__ import annotations

import dis
from collections.abc import Collection, Sequence
from types import CodeType
from typing import NamedTuple

from samebits._inspect._program.bytecode import ATTRIBUTES, GLOBALS, inner, instructions, successors
from samebits._inspect._program.conditions import (
    asks_for_a_kind,
    holds_from_a_step_on,
    is_of_step,
    stored_at_head,
)
from samebits._inspect._program.resets import end_of_reset, is_filled
from samebits._inspect._program.stack import use
from samebits._inspect._program.user_functions import UserFunctions

_CALLED = ("forward", "__call__")
_STORES = {
    "STORE_ATTR": ("attr", "set", "built"),
    "DELETE_ATTR": ("attr", "set", "built"),
    "STORE_GLOBAL": ("name",),
    "STORE_NAME": ("name",),
    "STORE_DEREF": ("name",),
}
_CONTENTS = ("item", "whole")
_SET = ("set", "built")
_BEFORE = {"environ": "getenv"}
"""Functions that read an object without its name."""


class StoredPlace(NamedTuple):
    """Where a value is held: the attribute, the global or the container (by its name) that it is an item of."""

    kind: str
    """"attr"; "set" (one that each iteration is to set); "built" (such a one of a module, whose call reads it); "name"; "item";
    "whole" (all that an object holds).
    """
    name: str
    key: str | None = None
    """Of an item, if it is known."""


class _Access(NamedTuple):
    """What running a piece of code may do with a place: read it before any write, and write it."""

    reads: bool
    writes: bool
    passes: bool = False
    """It may end without a write."""


_NOTHING = _Access(reads=False, writes=False, passes=True)
_READ = _Access(reads=True, writes=False, passes=True)


class ReadBeforeWrite:
    """A loop, with everything that its body may call.

    Args:
        asking: code and place in it, from the call that asks for a batch up to the loop (a FOR_ITER, or a call).
        callables: names that hold the user's callable objects (a model): to use one is to run every `forward`.
        fetches: what draws the next batch, before the body runs: methods of the dataset and of the sampler.
        steps: names that held a step of `run.steps` at the last look.
    """

    def __init__(
        self,
        program: UserFunctions,
        asking: list[tuple[CodeType, int]],
        callables: set[str],
        fetches: list[CodeType],
        steps: Collection[str],
    ) -> None:
        self._program = program
        self._asking = asking
        self._code, offset = asking[-1]
        self._items = instructions(self._code)
        self._steps = stored_at_head(self._items, _number(self._items, offset), steps)
        self._callables = callables
        self._fetches = fetches
        self._hooks = [
            hook for codes in program.functions.values() for one in codes for hook in _hooks(one, program)
        ]
        self._memo: dict[tuple[int, StoredPlace], _Access] = {}
        self._recomputed: dict[StoredPlace, bool] = {}

    def recomputed(self, place: StoredPlace) -> bool:
        """Whether each iteration writes the place before it reads it."""
        if place not in self._recomputed:
            self._recomputed[place] = self._is_recomputed(place)
        return self._recomputed[place]

    def _is_recomputed(self, place: StoredPlace) -> bool:
        fetched = [(code.co_name, self._of(code, place)) for code in self._fetches]
        if any(seen.writes for name, seen in fetched if name == "set_epoch"):
            return True  # the loader tells its sampler the epoch
        if any(seen.reads for _, seen in fetched):
            return False
        for code, offset in self._asking:
            seen = self._search(code, place, offset)
            if seen.reads or seen.writes:
                return not seen.reads
        return any(seen.writes and not seen.passes for _, seen in fetched)

    def settled(self, place: StoredPlace) -> bool:
        """Whether each iteration writes the place on every way through it, and nobody reads it before: the user's
        code, or a call of the module that it is built into.

        What an iteration writes from some step on (`if step.number >= 500:`), a resumed program writes again.
        """
        code, offset = self._asking[-1]
        seen = self._search(code, place, offset, once=self._stores(place) == 1)
        return seen.writes and not seen.reads and not seen.passes

    def _stores(self, place: StoredPlace) -> int:
        """How often the program stores to such a place, constructors left out."""
        codes = {code for found in self._program.functions.values() for code in found} | {self._code}
        return sum(
            self._stored(item, place)
            for code in codes
            if code.co_name != "__init__"
            for item in instructions(code)
        )

    @staticmethod
    def _stored(item: dis.Instruction, place: StoredPlace) -> bool:
        return item.argval == place.name and place.kind in _STORES.get(item.opname, ())

    def _of(self, code: CodeType, place: StoredPlace) -> _Access:
        key = (id(code), place)
        if key not in self._memo:
            self._memo[key] = _NOTHING  # a function that calls itself
            self._memo[key] = self._search(code, place, None)
        return self._memo[key]

    def _search(
        self, code: CodeType, place: StoredPlace, offset: int | None, *, once: bool = False
    ) -> _Access:
        """`once`: the place is written in one line only. Of what is set anew every `for` inside runs at least once."""
        items = instructions(code)
        number = {item.offset: at for at, item in enumerate(items)}
        head = -1 if offset is None else _number(items, offset)
        reads = writes = passes = False
        waiting, seen = [head + 1], {head}
        while waiting:
            at = waiting.pop()
            passes |= at == head
            if at in seen or at >= len(items):
                continue
            seen.add(at)
            found = self._event(items, at, place)
            reads |= found.reads
            writes |= found.writes
            if found.writes and not found.passes:
                continue
            passes |= head < 0 and items[at].opname.startswith("RETURN_")
            following = successors(items[at], at, number)
            if once and holds_from_a_step_on(items, at, self._steps):
                following = [at + 1]
            waiting += (
                _once(following, items, at, head, number) if place.key or place.kind in _SET else following
            )
        return _Access(reads, writes, passes or not writes)

    def _event(self, items: Sequence[dis.Instruction], at: int, place: StoredPlace) -> _Access:
        item = items[at]
        opname, name = item.opname, item.argval
        if opname == "LOAD_CONST" and isinstance(name, CodeType):
            return self._of(name, place)._replace(passes=True)  # it need not be called
        if not opname.startswith((*ATTRIBUTES, *GLOBALS, "LOAD_FAST")):
            return _Access(reads=False, writes=self._stored(item, place))
        if items is self._items and is_of_step(items, at, self._steps):
            return _NOTHING
        names = name if isinstance(name, tuple) else (name,)
        if place.kind in _CONTENTS and place.name in names:
            return self._contents(items, at, place)
        if _BEFORE.get(place.name) in names:
            return _READ
        kind = ("attr", "set", "built") if opname.startswith(ATTRIBUTES) else ("name",)
        if place.name in names and place.kind in kind and not opname.startswith("LOAD_FAST"):
            return _READ
        return self._calls(names, items, at, place)

    def _contents(self, items: Sequence[dis.Instruction], at: int, place: StoredPlace) -> _Access:
        """What a mention of an object does with all that it holds; what a reset of it loads is read before."""
        names = items[at].argval
        end = end_of_reset(items, at, int(isinstance(names, tuple) and names[0] == place.name))
        if end is not None:
            reads = any(self._event(items, other, place).reads for other in range(at + 1, end))
            return _Access(reads, writes=True)
        if place.key is not None and at + 1 < len(items):
            named = [one.argval for one in items[at + 1 : at + 3] if one.opname == "LOAD_CONST"]
            if named and isinstance(named[0], str) and named[0] != place.key:
                return _NOTHING
        filled = place.kind == "item" and is_filled(items, at)
        return _Access(reads=not filled, writes=filled)

    def _calls(
        self, names: tuple[str, ...], items: Sequence[dis.Instruction], at: int, place: StoredPlace
    ) -> _Access:
        codes = [
            code for name in names for code in self._program.functions.get(name, ()) if code is not self._code
        ]
        following = items[at + 1].opname if at + 1 < len(items) else ""
        held = following.startswith((*ATTRIBUTES, "STORE_ATTR"))
        makes = [code for name in names for code in self._program.constructors.get(name, ()) if not held]
        hooks: list[CodeType] = []
        if self._callables.intersection(names) and not held:
            if place.kind == "built" and self._runs(items, at, place):
                return _READ
            codes += [code for name in _CALLED for code in self._program.functions.get(name, ())]
            hooks = self._hooks
        found = [self._of(code, place) for code in codes]
        found += [_of_any_order([self._of(hook, place) for hook in hooks])]
        found += [self._of(code, place)._replace(writes=False, passes=True) for code in makes]
        return _Access(
            any(one.reads for one in found),
            any(one.writes for one in found),
            all(one.passes for one in found),
        )

    def _runs(self, items: Sequence[dis.Instruction], at: int, place: StoredPlace) -> bool:
        """Whether the module that is loaded may be called: here, or by a function that does not write the place."""
        taken = use(items, at)
        while taken is not None and items[taken.at].opname in {"BINARY_SUBSCR", "BINARY_OP"}:
            taken = use(items, taken.at)
        if taken is None:
            return True
        if items[taken.at].opname.startswith((*ATTRIBUTES, "STORE_ATTR", "GET_ITER")):
            return items[taken.at].argval in _CALLED
        known = {str(item.argval) for item in items[max(0, at - 9) : at]} & self._program.functions.keys()
        return taken.is_called(items) or not any(
            self._of(code, place).writes for name in known for code in self._program.functions[name]
        )


def _number(items: Sequence[dis.Instruction], offset: int) -> int:
    """The number of the instruction at an offset, or of the one before it."""
    return max(at for at, item in enumerate(items) if item.offset <= offset)


def _of_any_order(hooks: list[_Access]) -> _Access:
    """Of hooks, which run in the order of the modules: what one of them only writes, the others read after it."""
    writes = any(one.writes and not one.reads for one in hooks)
    passes = all(one.passes or not one.writes for one in hooks)
    return _Access(
        any(one.reads for one in hooks) and not writes, writes or any(one.writes for one in hooks), passes
    )


def _once(
    following: list[int], items: Sequence[dis.Instruction], at: int, head: int, number: dict[int, int]
) -> list[int]:
    """What follows where a `for` statement enters its body first and is left after it, and objects are of the kind asked for:
    `for layer in model.modules(): if isinstance(layer, nn.Dropout): ...`.
    """
    item = items[at]
    if item.opname == "FOR_ITER":
        return [at + 1]
    if item.opname.endswith(("IF_FALSE", "IF_TRUE")) and asks_for_a_kind(items, at):
        return [at + 1] if item.opname.endswith("IF_FALSE") else [one for one in following if one != at + 1]
    return [
        number[items[one].argval] if one < at and one != head and items[one].opname == "FOR_ITER" else one
        for one in following
    ]


def _hooks(code: CodeType, program: UserFunctions) -> list[CodeType]:
    """What a function registers as hooks of modules, and functions written inside that."""
    items, found = instructions(code), []
    for at, item in enumerate(items):
        if not item.opname.startswith(ATTRIBUTES) or not _registers(str(item.argval)):
            continue
        for later in items[at + 1 : at + 8]:
            own = (
                [later.argval]
                if isinstance(later.argval, CodeType)
                else program.functions.get(str(later.argval), [])
            )
            found += [code for one in own for code in (one, *inner(one))]
    return found


def _registers(name: str) -> bool:
    return name.startswith("register_") and name.endswith("hook")
