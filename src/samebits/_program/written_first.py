"""Values in objects that the next iteration reads before it writes them: a loop recomputes all others.

This is liveness for attributes, globals and items, which other functions read and write, too: a search over
the bytecode of the loop's body from its head, into the user's functions by the name that calls them (so it
needs no types and calls nothing). A call writes the places that one of these functions writes on each way
through it. A value that no code assigns in the loop is changed in place: it is carried, unless each iteration
overwrites it first (`end_of_reset`).
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Collection, Iterable, Sequence
from types import CodeType
from typing import NamedTuple

import torch

from samebits._inspect.code_names import inner
from samebits._objects.budget import spend
from samebits._program.bytecode import (
    ATTRIBUTES,
    GLOBALS,
    argument_count,
    instructions,
    keyword_names,
    successors,
    use,
)
from samebits._program.carried_locals import liveness_at
from samebits._program.control_flow import (
    asks_for_a_kind,
    holds_from_a_step_on,
    in_last_body,
    is_of_step,
    stored_at_head,
)
from samebits._program.functions import UserFunctions, kept_functions

_CALLED = ("forward", "__call__")
_STORES = {
    "STORE_ATTR": ("attr", "set", "built"),
    "DELETE_ATTR": ("attr", "set", "built"),
    "STORE_GLOBAL": ("name",),
    "STORE_NAME": ("name",),
    "STORE_DEREF": ("name",),
}
_CONTENTS = ("item", "row", "part", "whole")
_SET = ("set", "built")
_BY_TEXT = ("getattr", "attrgetter")
_BEFORE = {"environ": "getenv"}
"""Functions that read an object without mentioning its name."""


class StoredPlace(NamedTuple):
    """The place of a value: an attribute, a global, or the container (by name) that has it as an item."""

    kind: str
    """"attr", "set" (one that each iteration must set), "built" (the same of a module, whose call reads it),
    "name", "item", "row" (an item with a number), "part" (an item of a container in which others stay as they
    are), or "whole" (all that an object holds)."""
    name: str
    key: str | None = None
    """The key of an item, if it is known."""


class _Access(NamedTuple):
    """The effect of a piece of code on a place: it may read it before any write, and write it."""

    reads: bool
    writes: bool
    passes: bool = False
    """The code may end without a write."""


_NOTHING = _Access(reads=False, writes=False, passes=True)
_READ = _Access(reads=True, writes=False, passes=True)


class ReadBeforeWrite:
    """A loop with everything that its body may call.

    Args:
        fetching: code and offset, from the call that fetches a batch up to the loop (a FOR_ITER, or a call).
        calling: the same of the functions around it, which go on when the loop has ended.
        callables: names that hold the user's callable objects (a model): using one may run every `forward`.
        fetches: the methods of the dataset and of the sampler that fetch the next batch before the body runs.
        steps: names that held a step of `run.steps` at the last check.
        samplers: methods of the samplers: the loader calls `set_epoch` before each epoch.
    """

    def __init__(
        self,
        program: UserFunctions,
        fetching: list[tuple[CodeType, int]],
        calling: list[tuple[CodeType, int]],
        callables: set[str],
        fetches: list[CodeType],
        steps: Collection[str],
        *,
        samplers: Iterable[CodeType] = (),
    ) -> None:
        self._program = program
        self._fetching, self._calling = fetching, calling
        self._code, offset = fetching[-1]
        self._items = instructions(self._code)
        steps = steps or {*self._code.co_varnames, *self._code.co_names}  # the first body has not begun
        self._steps = stored_at_head(self._items, _number_at(self._items, offset), steps)
        self._heads = [(instructions(one), _number_at(instructions(one), at)) for one, at in fetching]
        self._callables = callables
        self._fetches = fetches
        self._set_epoch = [code for code in samplers if code.co_name == "set_epoch"]
        codes = [one for same_name in program.functions.values() for one in same_name]
        self._hooks = [hook for one in codes for hook in _registered_hooks(one, program)]
        self._memo: dict[tuple[int, StoredPlace], _Access] = {}
        self._recomputed: dict[StoredPlace, bool] = {}

    def recomputed(self, place: StoredPlace) -> bool:
        """Returns True if the loop, or the code after it, writes the place before it reads it."""
        if place not in self._recomputed:
            self._recomputed[place] = self._is_recomputed(place)
        return self._recomputed[place]

    def is_set_from_a_step_on(self, name: str) -> bool:
        """Returns True for a local variable that each step sets before it reads it, from some step on."""
        return liveness_at(*self._fetching[-1]).is_set_from_a_step_on(name, self._steps)

    def reads(self, place: StoredPlace) -> bool:
        """Returns True if an iteration, or a method that fetches its batch, may read the place."""
        fetched = [self._access_of(code, place) for code in self._fetches]
        found = [*fetched, *(self._search(code, place, offset) for code, offset in self._fetching)]
        return any(one.reads for one in found)

    def _is_recomputed(self, place: StoredPlace) -> bool:
        if any(self._access_of(code, place).writes for code in self._set_epoch):
            return True
        fetched = [self._access_of(code, place) for code in self._fetches if code.co_name != "set_epoch"]
        if any(seen.reads for seen in fetched):
            return False
        once = self._count_stores(place) == 1
        for code, offset in self._fetching:
            seen = self._search(code, place, offset, once=once)
            if seen.reads or seen.writes:
                read = seen.passes and (self._is_read_after(code, place, offset) or self._is_kept(place))
                return not seen.reads and not read
        return any(seen.writes and not seen.passes for seen in fetched) or self._is_never_carried(place)

    def _is_read_after(self, code: CodeType, place: StoredPlace, offset: int) -> bool:
        """Returns True if the code after the loop, or that around it, may read what no body overwrote."""
        last = self._search(code, place, offset, last=True)
        return last.reads or (
            last.passes and any(self._search(code, place, offset).reads for code, offset in self._calling)
        )

    def _is_kept(self, place: StoredPlace) -> bool:
        """Returns True if a function reads the place that an object of a library may keep, and call."""
        return any(self._access_of(code, place).reads for code in self._kept)

    @functools.cached_property
    def _kept(self) -> list[CodeType]:
        return [one for one in kept_functions(self._program) if one is not self._code]

    def _is_never_carried(self, place: StoredPlace) -> bool:
        """Returns True for an attribute of functions that only a library calls, if each sets it first."""
        return (
            place.kind == "attr"
            and not self._program.has_packages
            and self._count_stores(place) > 0
            and not any(self._access_of(code, place).reads for code in self._program.everywhere())
        )

    def read_behind(self, place: StoredPlace) -> bool:
        """Returns True if the code behind a loop that is over may read the place before it writes it."""
        found = [self._search(code, place, offset, behind=True) for code, offset in self._fetching]
        return any(one.reads for one in found)

    def settled(self, place: StoredPlace) -> bool:
        """Returns True if each iteration writes the place on every way, and nothing reads it before.

        A reader is the user's code, or a call of the module that the place is built into. A resumed program
        writes again what an iteration writes from some step on (`if step.number >= 500:`).
        """
        code, offset = self._fetching[-1]
        seen = self._search(code, place, offset, once=self._count_stores(place) == 1)
        return seen.writes and not seen.reads and not seen.passes

    def _count_stores(self, place: StoredPlace) -> int:
        """Returns the number of instructions that store to such a place, without those in constructors."""
        codes = {code for found in self._program.functions.values() for code in found} | {self._code}
        return sum(
            self._is_store(item, place)
            for code in codes
            if code.co_name != "__init__"
            for item in instructions(code)
            if code is not self._code
            or item.offset > self._fetching[-1][1]  # before the loop: the first value
        )

    @staticmethod
    def _is_store(item: dis.Instruction, place: StoredPlace) -> bool:
        return item.argval == place.name and place.kind in _STORES.get(item.opname, ())

    def _access_of(self, code: CodeType, place: StoredPlace) -> _Access:
        key = (id(code), place)
        if key not in self._memo:
            self._memo[key] = _NOTHING  # a function that calls itself
            self._memo[key] = self._search(code, place, None)
        return self._memo[key]

    def _search(
        self,
        code: CodeType,
        place: StoredPlace,
        offset: int | None,
        *,
        once: bool = False,
        last: bool = False,
        behind: bool = False,
    ) -> _Access:
        """Searches the code from the loop's head, or from its beginning.

        For a "set" place, or an item of a known key, an inner `for` runs at least once.
        `once`: only one instruction of the program stores to the place. `last`: in the loop's last body, and
        after it; `behind`: after it alone.
        """
        items = instructions(code)
        number = {item.offset: at for at, item in enumerate(items)}
        head = -1 if offset is None else _number_at(items, offset)
        reads = writes = passes = False
        waiting, seen = [head + 1], {head}
        if behind:
            waiting = [number[items[head].argval]] if items[head].opname == "FOR_ITER" else []
        while waiting:
            at = waiting.pop()
            passes |= at == head
            if last and at == head and items[at].opname == "FOR_ITER":
                waiting.append(number[items[at].argval])
            if at in seen or at >= len(items):
                continue
            seen.add(at)
            spend()
            found = self._access_at(items, at, place)
            reads |= found.reads
            writes |= found.writes
            if found.writes and not found.passes:
                continue
            passes |= head < 0 and items[at].opname.startswith("RETURN_")
            following = successors(items[at], at, number)
            if once and holds_from_a_step_on(items, at, self._steps):
                following = [at + 1]
            if last:
                following = in_last_body(items, at, following)
            if place.key or place.kind in _SET:
                following = _successors_once(following, items, at, head, number)
            waiting += following
        return _Access(reads, writes, passes or not writes)

    def _access_at(self, items: Sequence[dis.Instruction], at: int, place: StoredPlace) -> _Access:
        item = items[at]
        opname, name = item.opname, item.argval
        if opname == "LOAD_CONST" and isinstance(name, CodeType):
            return self._access_of(name, place)._replace(passes=True)  # it need not be called
        if opname == "LOAD_CONST" and name == place.name and place.kind in {"attr", "set"}:
            asked = any(one.argval in _BY_TEXT for one in items[max(0, at - 8) : at])
            return _READ if asked else _NOTHING  # `getattr(x, "n", 0)`
        if not opname.startswith((*ATTRIBUTES, *GLOBALS, "LOAD_FAST")):
            return _Access(reads=False, writes=self._is_store(item, place))
        if items is self._items and is_of_step(items, at, self._steps):
            return _NOTHING
        names = name if isinstance(name, tuple) else (name,)
        if place.kind in _CONTENTS and place.name in names:
            return self._access_to_contents(items, at, place)
        if _BEFORE.get(place.name) in names:
            return _READ
        kind = ("attr", "set", "built") if opname.startswith(ATTRIBUTES) else ("name",)
        if place.name in names and place.kind in kind and not opname.startswith("LOAD_FAST"):
            return _NOTHING if self._is_of_tensors(items, at, place) else _READ
        return self._access_by_calls(names, items, at, place)

    def _access_to_contents(self, items: Sequence[dis.Instruction], at: int, place: StoredPlace) -> _Access:
        """Returns the effect of a mention on an object's contents; a reset reads what it loads first."""
        names = items[at].argval
        end = end_of_reset(items, at, int(isinstance(names, tuple) and names[0] == place.name))
        if end is not None:
            first = at + 1 + items[at + 1].opname.startswith(ATTRIBUTES)  # the method itself overwrites
            reads = any(self._access_at(items, other, place).reads for other in range(first, end))
            return _Access(reads, writes=True)
        if place.key is not None and at + 1 < len(items):
            named = [one.argval for one in items[at + 1 : at + 3] if one.opname == "LOAD_CONST"]
            if named and isinstance(named[0], str) and named[0] != place.key:
                return _NOTHING
        head = next((head for own, head in self._heads if own is items), -1)
        filled = place.kind != "whole" and is_filled(items, at, head, place.kind)
        return _Access(reads=not filled, writes=filled)

    def _is_of_tensors(self, items: Sequence[dis.Instruction], at: int, place: StoredPlace) -> bool:
        """Returns True for a call of a tensor's method: `x.mean()` is no read of a value `self.mean`."""
        is_method = place.kind == "attr" and hasattr(torch.Tensor, place.name)
        taken = use(items, at) if is_method and place.name not in self._program.functions else None
        return taken is not None and taken.is_called(items)

    def _access_by_calls(
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
            if place.kind == "built" and self._may_be_called(items, at, place):
                return _READ
            codes += [code for name in _CALLED for code in self._program.functions.get(name, ())]
            hooks = self._hooks
        found = [self._access_of(code, place) for code in codes]
        found += [_access_of_hooks([self._access_of(hook, place) for hook in hooks])]
        found += [self._access_of(code, place)._replace(writes=False, passes=True) for code in makes]
        return _Access(
            any(one.reads for one in found),
            any(one.writes for one in found),
            all(one.passes for one in found),
        )

    def _may_be_called(self, items: Sequence[dis.Instruction], at: int, place: StoredPlace) -> bool:
        """Returns True if the loaded module may be called, here or by a function that leaves the place."""
        taken = use(items, at)
        while taken is not None and items[taken.at].opname in {"BINARY_SUBSCR", "BINARY_OP"}:
            taken = use(items, taken.at)
        if taken is None:
            return True
        if items[taken.at].opname.startswith((*ATTRIBUTES, "STORE_ATTR", "GET_ITER")):
            return items[taken.at].argval in _CALLED
        known = {str(item.argval) for item in items[max(0, at - 9) : at]} & self._program.functions.keys()
        return taken.is_called(items) or not any(
            self._access_of(code, place).writes for name in known for code in self._program.functions[name]
        )


def _number_at(items: Sequence[dis.Instruction], offset: int) -> int:
    """Returns the number of the instruction at an offset, or of the one before it."""
    return max(at for at, item in enumerate(items) if item.offset <= offset)


def _access_of_hooks(hooks: list[_Access]) -> _Access:
    """Combines hooks, which run in module order: after one that only writes, the others read."""
    writes = any(one.writes and not one.reads for one in hooks)
    passes = all(one.passes or not one.writes for one in hooks)
    return _Access(
        any(one.reads for one in hooks) and not writes, writes or any(one.writes for one in hooks), passes
    )


def _successors_once(
    following: list[int], items: Sequence[dis.Instruction], at: int, head: int, number: dict[int, int]
) -> list[int]:
    """Returns the successors if inner `for` bodies run once and each `isinstance` or `hasattr` is true.

    For example `for layer in model.modules(): if isinstance(layer, nn.Dropout): ...`.
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


def _registered_hooks(code: CodeType, program: UserFunctions) -> list[CodeType]:
    """Returns the functions that a function registers as module hooks, and the functions inside them."""
    items, found = instructions(code), []
    for at, item in enumerate(items):
        name = str(item.argval)
        registers = name.startswith("register_") and name.endswith("hook")
        if not item.opname.startswith(ATTRIBUTES) or not registers:
            continue
        for later in items[at + 1 : at + 8]:
            is_code = isinstance(later.argval, CodeType)
            own = [later.argval] if is_code else program.functions.get(str(later.argval), [])
            found += [code for one in own for code in (one, *inner(one))]
    return found


_ARGUMENTS = {
    **dict.fromkeys(("clear", "zero_"), (0,)),
    **dict.fromkeys(("execute", "executemany"), (1, 2)),
    **dict.fromkeys(("fill_", "fill", "manual_seed", "seed", "set"), (1,)),
    **dict.fromkeys(("normal_", "uniform_"), (0, 1, 2, 3)),
    "copy_": (1, 2),
}
"""Methods that overwrite all that an object (container, tensor, array, generator, context variable) holds.

With their numbers of arguments. `seed()` takes the seed from the machine, so it is none.
"""
_REWINDS = {"seek": "truncate", "truncate": "seek"}
"""Methods that together empty a file in memory: `truncate(0)`, `seek(0)`; or `seek(0)`, `truncate()`."""
_LIBRARIES = {"np", "numpy", "torch"}
"""Libraries whose functions overwrite their argument `out`."""
_LOADS_NAME = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FAST", "LOAD_DEREF")

_STORED = ("STORE_NAME", "STORE_GLOBAL", "STORE_FAST", "STORE_DEREF")
_WHOLE = (None, Ellipsis, slice(None, None, None))


def end_of_reset(items: Sequence[dis.Instruction], at: int, above: int = 0) -> int | None:
    """Returns the number of the instruction that overwrites the object loaded at `at`; else None.

    The values loaded in between are read before the object is overwritten.
    """
    taken = use(items, at, above)
    if taken is None:
        return None
    opname = items[taken.at].opname
    if opname.startswith(ATTRIBUTES):
        return _end_of_method(items, at, taken.at)
    if opname in {"STORE_SUBSCR", "STORE_SLICE"}:
        return taken.at if _is_whole(items[at + 1 : taken.at]) else None
    given = keyword_names(items, taken.at) if taken.keyword(items) == "out" else ("where",)
    return taken.at if "where" not in given and _is_librarys(items, at, taken.at) else None


def _is_whole(key: Sequence[dis.Instruction]) -> bool:
    return all(
        item.opname == "BUILD_SLICE" or (item.opname == "LOAD_CONST" and item.argval in _WHOLE)
        for item in key
    )


def _end_of_method(items: Sequence[dis.Instruction], at: int, attribute: int) -> int | None:
    name, called = items[attribute].argval, use(items, attribute)
    if called is None or not called.is_called(items):
        return None
    given = argument_count(items, called.at)
    if name in _REWINDS:
        return called.at if _is_emptied(items, at, attribute, called.at) else None
    if name == "reset" and "seed" in keyword_names(items, called.at):  # a gymnasium environment
        return called.at
    return called.at if given in _ARGUMENTS.get(name, ()) else None


def _is_emptied(items: Sequence[dis.Instruction], at: int, attribute: int, call: int) -> bool:
    """Returns True for `x.seek(0); x.truncate()`, or `x.truncate(0); x.seek(0)`, as successive uses."""
    other = _REWINDS[items[attribute].argval]
    if argument_count(items, call) != 1 or items[attribute + 1].argval != 0:
        return False
    same = [n for n in range(call, min(call + 8, len(items))) if items[n].argval == items[at].argval]
    after = same[0] + 1 if same else 0
    if not same or after + 1 >= len(items) or items[after].argval != other:
        return False
    called = use(items, after)
    if called is None or not called.is_called(items):
        return False
    given = argument_count(items, called.at)
    return given == 0 if other == "truncate" else given == 1 and items[after + 1].argval == 0


def _is_librarys(items: Sequence[dis.Instruction], at: int, call: int) -> bool:
    """Returns True if the function of a call is one of numpy's or torch's."""
    for number in range(at - 1, max(-1, at - 40), -1):
        if items[number].opname.startswith(_LOADS_NAME) and items[number].argval in _LIBRARIES:
            last = number
            while items[last + 1].opname.startswith(ATTRIBUTES):
                last += 1
            taken = use(items, last)
            return last > number and taken is not None and taken.at == call and taken.is_called(items)
    return False


def is_filled(items: Sequence[dis.Instruction], at: int, head: int, kind: str) -> bool:
    """Returns True for `container[key] = ...`, where `at` loads the container, that each iteration repeats.

    The key is a constant; of a "row" also that of a closure (a hook's) or the variable of a `for` behind the
    loop's `head`; of an "item" also an argument. `kind`: that of the place.
    """
    if at + 2 >= len(items) or items[at + 2].opname != "STORE_SUBSCR":
        return False
    opname, key = items[at + 1].opname, items[at + 1].argval
    if opname.startswith(("LOAD_CONST", "LOAD_SMALL_INT")):
        return True
    stores = [number for number, one in enumerate(items) if one.opname in _STORED and one.argval == key]
    if kind == "part" or not opname.startswith(_LOADS_NAME):
        return False
    if not stores:
        return not opname.startswith("LOAD_FAST") or kind == "item"
    fixed = [one for one in stores if one < head and items[one - 1].opname == "LOAD_CONST"]
    return all(_loop_of(items, one) > head for one in stores if one not in fixed)


def _loop_of(items: Sequence[dis.Instruction], store: int) -> int:
    """Returns the number of the `FOR_ITER` whose target an instruction stores; -1 if there is none."""
    while store and items[store].opname in {*_STORED, "UNPACK_SEQUENCE"}:
        store -= 1
    return store if items[store].opname == "FOR_ITER" else -1
