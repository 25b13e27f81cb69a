"""Is a value that lives in an object read by the next iteration before it is written? Else the loop recomputes it.

What liveness is for local variables, for attributes, globals and items, which other functions read and write: a search
over the bytecode of the loop's body from its head, into the user's functions by the name they are called by (so it
needs no types and calls nothing). A call that may write counts as a write: `model.features`, which `forward` assigns
and the body reads afterwards, is recomputed. A value that nobody assigns in the loop is changed in place: it is carried.
"""

from __future__ import annotations

import dis
from collections.abc import Sequence
from types import CodeType
from typing import NamedTuple

from samebits._inspect.bytecode import inner, instructions, successors
from samebits._inspect.user_functions import UserFunctions

_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR")
_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF")
_CALLED = ("forward", "__call__")
_SIMPLE = ("LOAD_CONST", "LOAD_FAST", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_SMALL_INT")
_CLOCKS = frozenset(
    [
        "time",
        "time_ns",
        "perf_counter",
        "perf_counter_ns",
        "monotonic",
        "monotonic_ns",
        "process_time",
        "thread_time",
        "now",
        "utcnow",
        "default_timer",
        "elapsed_time",
    ]
)


class StoredPlace(NamedTuple):
    """Where a value is held: the attribute, the global or the container (by its name) that it is an item of."""

    kind: str
    """"attr", "name", or "item"."""
    name: str


class _Access(NamedTuple):
    """What running a piece of code may do with a place: read it before any write, and write it."""

    reads: bool
    writes: bool
    passes: bool = False
    """Of a loop: an iteration may end without a write."""


class ReadBeforeWrite:
    """A loop, with everything that its body may call.

    Args:
        asking: code and place in it, from the call that asks for a batch up to the loop (a FOR_ITER, or a call).
        callables: names that hold the user's callable objects (a model): to use one is to run every `forward`.
        fetches: what draws the next batch, before the body runs: methods of the dataset and of the sampler.
    """

    def __init__(
        self,
        program: UserFunctions,
        asking: list[tuple[CodeType, int]],
        callables: set[str],
        fetches: list[CodeType],
    ) -> None:
        self._program = program
        self._asking = asking
        self._code = asking[-1][0]
        self._callables = callables
        self._fetches = fetches
        self._hooks = [
            hook for codes in program.functions.values() for one in codes for hook in _hooks(one, program)
        ]
        self._memo: dict[tuple[int, StoredPlace], _Access] = {}

    def recomputed(self, place: StoredPlace) -> bool:
        """Whether each iteration writes the place before it reads it."""
        told = [self._of(code, place) for code in self._fetches if code.co_name == "set_epoch"]
        if any(seen.writes for seen in told):
            return True  # the loader tells its sampler the epoch
        if any(self._of(code, place).reads for code in self._fetches):
            return False
        for code, offset in self._asking:
            seen = self._search(code, place, offset)
            if seen.reads or seen.writes:
                return not seen.reads
        return False

    def settled(self, place: StoredPlace) -> bool:
        """Whether each iteration writes the place on every way through it, and the user's code does not read it before.

        So it is with what is read where no bytecode shows it: torch reads the `p` of its Dropout.
        """
        code, offset = self._asking[-1]
        seen = self._search(code, place, offset, loops_run=True)
        return seen.writes and not seen.reads and not seen.passes

    def names(self) -> set[str]:
        """The names and the texts in the user's code."""
        codes = [self._code, *(code for found in self._program.functions.values() for code in found)]
        texts = {one for code in codes for one in code.co_consts if isinstance(one, str)}
        return texts.union(*(code.co_names for code in codes))

    def draws(self, function: str, draws: frozenset[str]) -> bool:
        """Whether the user's function of this name, or one that it calls, mentions a name of `draws`."""
        codes = self._program.functions.get(function, ())
        return any(self._names_before(code, len(instructions(code))) & draws for code in codes)

    def timed(self, name: str) -> bool:
        """Whether all that is assigned to a name in the loop comes from a clock, on the same line."""
        found = False
        for codes in [[self._code], *self._program.functions.values()]:
            for code in codes:
                for line in _lines_storing(code, name):
                    if not line & _CLOCKS:
                        return False
                    found = True
        return found

    def memo(self, container: str, draws: frozenset[str], own: list[CodeType]) -> bool:
        """Whether a dict is only filled by functions that look first (`if k not in cache:`) and draw nothing before.

        `own`: the methods of the class that holds it; without any, every function counts.
        """
        found = False
        for code in own or [code for codes in self._program.functions.values() for code in codes]:
            filled = _fills(code, container)
            if filled is None:
                continue
            if code is self._code or not _looks(code) or self._names_before(code, filled) & draws:
                return False
            found = True
        return found

    def _names_before(self, code: CodeType, end: int, depth: int = 0) -> set[str]:
        names = {
            str(item.argval)
            for item in instructions(code)[:end]
            if item.opname.startswith((*_ATTRIBUTE, *_GLOBAL))
        }
        for name in [*names] if depth < 3 else []:
            for called in self._program.functions.get(name, ()):
                names |= self._names_before(called, len(instructions(called)), depth + 1)
        return names

    def _of(self, code: CodeType, place: StoredPlace) -> _Access:
        key = (id(code), place)
        if key not in self._memo:
            self._memo[key] = _Access(reads=False, writes=False)  # a function that calls itself
            self._memo[key] = self._search(code, place, None)
        return self._memo[key]

    def _search(
        self, code: CodeType, place: StoredPlace, offset: int | None, *, loops_run: bool = False
    ) -> _Access:
        """`loops_run`: every `for` inside runs its body at least once."""
        items = instructions(code)
        number = {item.offset: at for at, item in enumerate(items)}
        head = -1 if offset is None else max(at for at, item in enumerate(items) if item.offset <= offset)
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
            if not found.writes:
                following = successors(items[at], at, number)
                waiting += _once(following, items, at, head, number) if loops_run else following
        return _Access(reads, writes, passes)

    def _event(self, items: Sequence[dis.Instruction], at: int, place: StoredPlace) -> _Access:
        item = items[at]
        opname, name = item.opname, item.argval
        if opname == "LOAD_CONST" and isinstance(name, CodeType):
            return self._of(name, place)
        attribute = opname.startswith(_ATTRIBUTE)
        if not attribute and not opname.startswith(_GLOBAL) and not opname.startswith("LOAD_FAST"):
            kind = {
                "STORE_ATTR": "attr",
                "DELETE_ATTR": "attr",
                "STORE_GLOBAL": "name",
                "STORE_NAME": "name",
            }.get(opname, "name" if opname == "STORE_DEREF" else "")
            return _Access(reads=False, writes=bool(kind) and (kind, name) == tuple(place))
        names = name if isinstance(name, tuple) else (name,)
        if place.kind == "item" and place.name in names:
            filled = _is_filled(items, at) or _is_cleared(items, at)
            return _Access(reads=not filled, writes=filled)
        if (
            place.name in names
            and place.kind == ("attr" if attribute else "name")
            and not opname.startswith("LOAD_FAST")
        ):
            return _Access(reads=True, writes=False)
        return self._calls(names, items, at, place)

    def _calls(
        self, names: tuple[str, ...], items: Sequence[dis.Instruction], at: int, place: StoredPlace
    ) -> _Access:
        codes = [
            code for name in names for code in self._program.functions.get(name, ()) if code is not self._code
        ]
        following = items[at + 1].opname if at + 1 < len(items) else ""
        hooks: list[CodeType] = []
        if self._callables.intersection(names) and not following.startswith((*_ATTRIBUTE, "STORE_ATTR")):
            codes += [code for name in _CALLED for code in self._program.functions.get(name, ())]
            hooks = self._hooks
        found = [self._of(code, place) for code in codes] + [
            _of_any_order([self._of(h, place) for h in hooks])
        ]
        return _Access(any(one.reads for one in found), any(one.writes for one in found))


def _of_any_order(hooks: list[_Access]) -> _Access:
    """Of hooks, which run in the order of the modules: what one of them only writes, the others read after it."""
    writes = any(one.writes and not one.reads for one in hooks)
    return _Access(any(one.reads for one in hooks) and not writes, writes or any(one.writes for one in hooks))


def _once(
    following: list[int], items: Sequence[dis.Instruction], at: int, head: int, number: dict[int, int]
) -> list[int]:
    """What follows where a `for` statement enters its body first and is left after it, and objects are of the kind asked for:
    `for layer in model.modules(): if isinstance(layer, nn.Dropout): ...`.
    """
    item = items[at]
    if item.opname == "FOR_ITER":
        return [at + 1]
    if item.opname.endswith(("IF_FALSE", "IF_TRUE")) and _asks_for_a_kind(items, at):
        return [at + 1] if item.opname.endswith("IF_FALSE") else [one for one in following if one != at + 1]
    return [
        number[items[one].argval] if one < at and one != head and items[one].opname == "FOR_ITER" else one
        for one in following
    ]


def _asks_for_a_kind(items: Sequence[dis.Instruction], at: int) -> bool:
    """Whether the condition of this jump is a call of `isinstance` or `hasattr`."""
    return any(item.argval in {"isinstance", "hasattr"} for item in items[max(0, at - 9) : at])


def _is_filled(items: Sequence[dis.Instruction], at: int) -> bool:
    """`container[key] = ...`: the container is loaded, a simple key, and the item is stored."""
    if at + 2 >= len(items):
        return False
    return items[at + 1].opname.startswith(_SIMPLE) and items[at + 2].opname == "STORE_SUBSCR"


def _is_cleared(items: Sequence[dis.Instruction], at: int) -> bool:
    """`container.clear()`."""
    following = items[at + 1] if at + 1 < len(items) else items[at]
    return following.opname.startswith(_ATTRIBUTE) and following.argval == "clear"


def _fills(code: CodeType, container: str) -> int | None:
    """The number of the instruction that stores an item of the container, or calls its `setdefault`."""
    items = instructions(code)
    for at, item in enumerate(items):
        if item.argval == container and item.opname.startswith("LOAD") and _is_filled(items, at):
            return at
    return None


def _looks(code: CodeType) -> bool:
    return any(
        item.opname == "CONTAINS_OP" or (item.opname.startswith(_ATTRIBUTE) and item.argval == "get")
        for item in instructions(code)
    )


def _lines_storing(code: CodeType, name: str) -> list[set[str]]:
    """The names loaded on each line that stores to `name` something that is no constant."""
    lines: dict[int, set[str]] = {}
    stored: set[int] = set()
    constant = True
    for item in instructions(code):
        line = item.positions.lineno if item.positions is not None else None
        if line is None:
            continue
        if item.opname.startswith("STORE") and item.argval == name and not constant:
            stored.add(line)
        elif item.opname.startswith((*_ATTRIBUTE, *_GLOBAL)):
            lines.setdefault(line, set()).add(str(item.argval))
        constant = item.opname == "LOAD_CONST" or (
            constant and item.opname.startswith(("COPY", "LOAD_FAST", *_GLOBAL))
        )
    return [lines.get(line, set()) for line in stored]


def _hooks(code: CodeType, program: UserFunctions) -> list[CodeType]:
    """What a function registers as hooks of modules, and functions written inside that."""
    items, found = instructions(code), []
    for at, item in enumerate(items):
        if not item.opname.startswith(_ATTRIBUTE) or not _registers(str(item.argval)):
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
