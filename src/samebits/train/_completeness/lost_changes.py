"""The changes of state that a resume would lose."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from types import CodeType
from typing import Any, NamedTuple

import numpy as np
import torch

from samebits import _digest as digest
from samebits._inspect.code_names import assigns_items, attributes_assigned, inner
from samebits._inspect.user_code import is_user_type, may_hold_state
from samebits._objects.hashes import PLAIN, leaf, plain
from samebits._objects.rng_states import of_state
from samebits._objects.structure import ENVIRON, Structure, differences
from samebits._objects.walk import of_ends
from samebits._program import (
    LoopFrames,
    Order,
    OutputFlow,
    Program,
    StoredPlace,
    codes_of,
    fetch_methods,
    methods,
)
from samebits.train._completeness import reachable_state
from samebits.train._completeness.saved_objects import SavedPath

_WHOLE = frozenset({"__dict__", "vars", "asdict", "__getstate__", "getattr", "fields"})
"""Names in a `state_dict` that saves everything that the object holds."""
_READ_BY = {"stream": ("read", "getvalue", "getbuffer"), "rows": ("fetch", "select")}
"""Names and words by which a program reads what it wrote: without them a file or a database is a log."""


class Change(NamedTuple):
    """A value that has changed since the last check."""

    path: str
    before: reachable_state.Leaf
    now: reachable_state.Leaf
    taken: reachable_state.StateSnapshot


def means_saved(change: Change) -> bool:
    """Returns True for a name that means, or meant, an object that the commit holds."""
    return isinstance(change.now.value, SavedPath) or isinstance(change.before.value, SavedPath)


def paths_of(one: reachable_state.Leaf) -> frozenset[str]:
    """Returns the paths of the saved object that a name means; none for another object."""
    return one.value.paths if isinstance(one.value, SavedPath) else frozenset()


def renamed(before: reachable_state.StateSnapshot, now: reachable_state.StateSnapshot) -> list[Change]:
    """Returns the names that mean another object: which of those that it holds, is in no commit."""
    found = []
    for path in {**before.named, **now.named}:
        one, other = before.at(path), now.at(path)
        if one is None or other is None or one.hashed == other.hashed:
            continue
        change = Change(path, one, other, now)
        same = paths_of(one) & paths_of(other) or (one.value is None and one.way[-1] == other.way[-1])
        if same:  # or it changed, or is saved from here on
            continue
        kinds = [taken.named[path].hashed for taken in (before, now) if path in taken.named]
        other_kind = len({*kinds}) == 2
        if means_saved(change) or other_kind or (before.is_second_name(path) and now.is_second_name(path)):
            found.append(change)
    return found


class Late(NamedTuple):
    """A change of a module's structure or of a setting of the process after the program began."""

    path: str
    text: str
    place: StoredPlace


def late_changes(before: Mapping[str, Structure], now: Mapping[str, Structure]) -> list[Late]:
    """Returns the differences in structure of each module and (under "") the process. None: it is new."""
    found = []
    for path in now:
        old = before.get(path, now[path])
        if old != now[path]:
            for name, text in differences(old, now[path]).items():
                if old.get(name, "") is not None:
                    found.append(Late(f"{path}.{name}" if path else name, text, _place(path, name)))
    return found


def _place(path: str, name: str) -> StoredPlace:
    if name.startswith(ENVIRON):
        return StoredPlace("item", "environ", ast.literal_eval(name.removeprefix(ENVIRON)[:-1]))
    return StoredPlace("built" if path else "set", name.rpartition(".")[2])


def appeared(before: reachable_state.StateSnapshot, now: reachable_state.StateSnapshot) -> list[Change]:
    """Returns changes from None to an object or a container, new attributes of the user's objects, and what a
    name holds that meant an object of the commit before, and does not now.
    """
    found = []
    left = [path for path, one in before.named.items() if paths_of(one)]
    left = [path for path in left if path not in now.named or not paths_of(now.named[path])]
    inside = tuple(f"{path}{mark}" for path in left for mark in "[.")
    empty = {path: one for path, one in before.leaves_by_path.items() if one.hashed == reachable_state.NONE}
    for path, one in now.leaves_by_path.items():
        if path in before.leaves_by_path:
            continue
        base = path.removeprefix("len(").removesuffix(")").removesuffix(".keys()")
        while base and base not in empty:
            base = base[: max(base.rfind("."), base.rfind("["), 0)]
        if base and base not in now.leaves_by_path:
            old = empty.pop(base)
            # no length that a commit holds by chance
            made = old._replace(hashed=b"made " + one.hashed, way=old.way[:-1])
            found.append(Change(base, old, made, now))
        elif path.startswith(inside) or (
            one.places[-1].kind == "attr" and one.owners and not one.installed and before.met(one.way[-2])
        ):
            found.append(Change(path, one._replace(hashed=reachable_state.NONE, value=None), one, now))
    return found


@dataclass
class Judged:
    """The changes that no commit holds and that the loop does not compute again."""

    lost: list[Change] = field(default_factory=list)
    """A resumed run would continue with other values."""
    printed: list[Change] = field(default_factory=list)
    """They flow only into output: a resumed run prints other values, and ends with the same weights."""
    unlikely: list[Change] = field(default_factory=list)
    """Variables of an inner loop that the code after it reads: lost only if that loop runs no time."""
    recomputed: list[Change] = field(default_factory=list)
    """A step sets them before it reads them."""


class LostChanges:
    """Separates lost changes from values saved elsewhere, recomputed, made once, memoized, or of a clock."""

    def __init__(self, *, trusts_owners: bool = True) -> None:
        self._trusts_owners = trusts_owners
        """True: what an object's state_dict names is saved. Whether it is restored, a resume sees."""
        self.is_late = False
        """True for changes after the steps in which caches are filled."""
        self._equals: dict[str, set[str]] = {}
        """Path of a value to the paths in the commit that had the same value each time that it changed."""
        self._made: set[str] = set()
        self._changes: dict[str, int] = {}
        """The number of checks at which a value in an object of an installed package had changed."""

    def judge(
        self,
        changed: Mapping[str, Change],
        frames: LoopFrames,
        program: Program,
        clocks: Mapping[str, tuple[float, float]],
        states: Mapping[str, Any],
        committed: Collection[str],
        *,
        over: bool = False,
    ) -> Judged:
        """Returns the changes that no commit holds.

        `states`: what the state_dicts of the run's objects returned, by name, and the values in `run.state`;
        `committed`: the names that hold objects of the run; `over`: the loop will run no step.
        """

        @functools.cache
        def order(*, installed: bool) -> Order:
            return program.order(frames, next(iter(changed.values())).taken, installed=installed)

        def is_read_behind(one: Change) -> bool:
            read_behind = order(installed=one.now.installed).written_first.read_behind
            return any(map(read_behind, _places(one, "item")))

        left = [c for c in changed.values() if not self._is_made_on_demand(c, program)]
        left = self.unsaved(left, program, clocks, states)
        recomputed = [c for c in left if _is_harmless(c, order(installed=c.now.installed), changed)]
        if over:
            recomputed = [c for c in recomputed if not is_read_behind(c)]
        left = [c for c in left if c not in recomputed]
        if not left:
            return Judged(recomputed=recomputed)
        flow = program.only_output(committed)
        codes = {name: one.f_code for one in reversed(frames.user) for name in one.f_locals}
        left = [c for c in left if not _is_memo(c, flow, frames.user[-1].f_code)]
        printed = [c for c in left if _is_only_printed(c, flow, codes)]
        names = frames.carried_if_an_inner_loop_is_empty
        left = [c for c in left if c not in printed and not self._is_cache(c)]
        unlikely = [
            c
            for c in left
            if (c.now.root == "local" and c.now.places[0].name in names)
            or (not over and _is_set_by_inner_loop(c, order(installed=c.now.installed)))
        ]
        return Judged([c for c in left if c not in unlikely], printed, unlikely, recomputed)

    def parted(self, now: reachable_state.StateSnapshot, states: Mapping[str, Any]) -> dict[str, Change]:
        """Returns copies that have not changed, by path, while their originals have: best weights."""
        copies = {path: now.leaves_by_path[path] for path in self._equals if path in now.leaves_by_path}
        copies = {path: one for path, one in copies.items() if self._equals[path]}
        saved = _paths_by_saved_hash(states) if copies else {}
        return {
            path: Change(path, one, one, now)
            for path, one in copies.items()
            if self._equals[path].isdisjoint(saved.get(now.content(path) or one.hashed, ()))
        }

    def unsaved(
        self,
        changes: list[Change],
        program: Program,
        clocks: Mapping[str, tuple[float, float]],
        states: Mapping[str, Any],
    ) -> list[Change]:
        """Returns those that are not of a clock, and that no state has: by its owner, or as a copy."""
        left = [c for c in changes if not _is_clock(c, clocks, program)]
        left = [c for c in left if not (self._trusts_owners and is_saved_by_owner(c))]
        saved = _paths_by_saved_hash(states) if left else {}
        return [c for c in left if means_saved(c) or not self._is_copy(c, saved)]

    def expect(self, changes: Mapping[str, int]) -> None:
        """Takes over how often values have changed before; one that had is neither a cache nor made once."""
        self._changes.update(changes)
        self._made |= {path for path, times in changes.items() if times}

    def _is_cache(self, change: Change) -> bool:
        """Returns True for a value in an object of an installed package until it has changed a second time.

        A cache is filled once, at its first use, and early; a count changes again. A generator has no first
        use.
        """
        late = self.is_late and change.path not in self._changes
        if not change.now.installed or change.now.generator or late:
            return False
        self._changes[change.path] = self._changes.get(change.path, 0) + 1
        return self._changes[change.path] < 2

    def _is_made_on_demand(self, change: Change, program: Program) -> bool:
        """Returns True the first time None becomes a value of shapes and constants: a resumed run remakes it.

        A local does not count, nor a value made from a batch, from random numbers or from what is trained.
        """
        is_local = change.now.root == "local" and len(change.now.places) == 1
        if is_local or change.before.hashed != reachable_state.NONE or change.path in self._made:
            return False
        self._made.add(change.path)
        last = change.now.places[-1]
        if change.now.installed or last.kind not in {"attr", "name"}:
            return True
        depends = program.made_once()
        if last.kind == "name":
            return not depends.variable(last.name)
        return not depends.attribute(last.name, values=change.now.root != "loader")

    def _is_copy(self, change: Change, saved: Mapping[bytes, set[str]]) -> bool:
        """Returns True if the commit has the value at another path; a count or attribute by the same name."""
        paths = saved.get(change.taken.content(change.path) or change.now.hashed, set())
        is_attribute = isinstance(change.now.value, float) and change.now.places[-1].kind == "attr"
        if is_attribute or isinstance(change.now.value, int) or change.path.startswith("len("):
            paths = {path for path in paths if _last_name(path) == _last_name(change.path)}
        equal = paths & self._equals.get(change.path, paths)
        self._equals[change.path] = equal
        return bool(equal)


def _is_set_by_inner_loop(change: Change, order: Order) -> bool:
    """Returns True for an attribute that is set before it is read, unless an inner loop runs no time."""
    last = change.now.places[-1]
    return last.kind == "attr" and order.written_first.recomputed(last._replace(kind="set"))


def _is_memo(change: Change, flow: OutputFlow, code: CodeType) -> bool:
    """Returns True for a dict of the loop's own function that memoizes values of its keys alone."""
    place = change.now.places[0]
    grown = change.path == f"{place.name}.keys()"
    return grown and place.kind == "local" and flow.is_memo(code, place.name)


def _is_only_printed(change: Change, flow: OutputFlow, codes: Mapping[str, CodeType]) -> bool:
    """Returns True if the value flows only into output: its variable does, or else its attribute.

    `codes`: of the innermost function that has each local variable.
    """
    place = change.now.places[0]
    if change.now.root in {"given", "loader"}:
        return change.now.value is not None and _is_printed_attribute(change, flow)
    is_variable = place.kind in {"local", "name"} and change.now.root in {"local", "global"}
    if not is_variable or change.now.generator:
        return False
    is_none = change.now.way[-1:] == (id(None),)  # in a resumed run: all that are None are one object
    aliased = not (means_saved(change) or is_none) and change.taken.has_other_names(change.now)
    if aliased and change.now.value is None:  # a number in an attribute has no second name
        return False
    trains = place.name in change.taken.sees_training
    if trains or any(flow.methods_train(kind.__name__) for kind, _ in change.now.owners):
        return change.now.value is not None and _is_printed_attribute(change, flow)
    role = change.taken.roots[place.name]
    if role.saves and not role.known:  # a scheduler: its walk is its state_dict, and shows no optimizer
        return False
    code = codes.get(place.name) if place.kind == "local" else None
    if means_saved(change):
        return flow.is_shared_output(code, place.name)
    if not aliased and flow.variable(code, place.name):
        return True
    return _is_printed_attribute(change, flow)


def _is_printed_attribute(change: Change, flow: OutputFlow) -> bool:
    """Returns True for an attribute of a user's class that flows only into output and no base reads."""
    last = change.now.places[-1]
    bases = [base for kind, _ in change.now.owners[-1:] for base in kind.__mro__]
    is_second = len(change.now.places) == 2
    of_function = is_second and change.taken.roots[change.now.places[0].name].name == "function"
    own = last.kind == "attr" and (bool(bases) or of_function) and not any(map(may_hold_state, bases))
    if not own or not flow.attribute(last.name):
        return False
    others = [code for base in bases if not is_user_type(base) for code in methods(base)]
    return not any(last.name in code.co_names for code in others)


def _is_harmless(change: Change, order: Order, changed: Mapping[str, Change]) -> bool:
    """Returns True if the loop recomputes the value, or it is a memo without draws, a log, or a time."""
    last, (written_first, uses) = change.now.places[-1], order
    if last.kind == "memo":
        return not uses.draws(change.now.places[-2].name)
    if last.kind == "cursor":
        held = StoredPlace("whole", last.name)
        return written_first.recomputed(held) or not written_first.reads(held)
    if any(written_first.recomputed(place) for place in _places(change, _kind_of_item(change, changed))):
        return True
    is_variable = change.now.root == "local" and len(change.now.places) == 1
    if is_variable and written_first.is_set_from_a_step_on(last.name):
        return True
    if last.kind in _READ_BY:
        return not any(name in text.lower() for text in uses.names() for name in _READ_BY[last.kind])
    is_time = isinstance(change.now.value, float | int | date | timedelta) and last.kind != "item"
    if is_time and uses.timed(last.name):
        return True
    inside = change.path.removesuffix(".keys()") + "["
    if not change.path.endswith(".keys()") or any(path.startswith(inside) for path in changed):
        return False  # items have changed, not only become more
    own = [code for kind, _ in change.now.owners[-1:] for base in kind.__mro__ for code in methods(base)]
    return uses.memo(last.name, own)


def _kind_of_item(change: Change, changed: Mapping[str, Change]) -> str:
    """Returns "part" if others of its container have not changed, so that no step fills all; "row" or "item".

    Where the container has grown, the others may be new.
    """
    container = change.path.removesuffix(".keys()").rpartition("[")[0] or change.path.removesuffix(".keys()")
    items = [path for path in change.taken.leaves_by_path if path.startswith(f"{container}[")]
    has_grown = f"{container}.keys()" in changed or f"len({container})" in changed
    if not has_grown and any(path not in changed for path in items):
        return "part"
    return "item" if all(path[len(container) + 1] in "'\"" for path in items) else "row"


def _places(change: Change, kind: str) -> list[StoredPlace]:
    """Returns where an iteration may write it: the names on the way, and its holder if overwritable."""
    places, last = list(change.now.places), change.now.places[-1]
    if change.path.endswith(".keys()") or change.path.startswith("len("):
        places.append(StoredPlace("item", last.name))
    held = change.now.value is None and change.now.hashed != reachable_state.NONE
    if (held or last.kind in {"item", "stream"}) and not change.taken.is_shared(change.now):
        places.append(StoredPlace("whole", last.name))
    if change.now.installed:  # `env.reset(seed=...)` sets all that is in it
        places.append(StoredPlace("whole", places[0].name))
    places = [one._replace(kind=kind) if one.kind == "item" else one for one in places]
    return [place for place in places if place.kind in {"attr", "name", "item", "row", "part", "whole"}]


def is_fetched(change: Change) -> bool:
    """Returns True for a value in a loader that its own methods write when they fetch a batch."""
    name = change.now.places[-1].name
    codes = [code for code in fetch_methods(change.taken.fetching) if name in code.co_names]
    writes = any(name in attributes_assigned(code) or assigns_items(code) for code in codes)
    return change.now.generator or writes


def is_saved_by_owner(change: Change) -> bool:
    """Returns True if an object of the run saves it: its state changed and names each attribute here."""
    root = change.now.places[0].name if change.now.places else ""
    if change.now.root != "given" or not change.now.owners or not change.taken.state_changed(root):
        return False
    names: set[str] = set()
    for kind, _ in change.now.owners:
        names |= _names_saved(kind)
    return bool(names & _WHOLE) or all(attribute in names for _, attribute in change.now.owners)


def _names_saved(kind: type) -> set[str]:
    """Returns the names that a class's `state_dict` (or `get_extra_state`) mentions, helpers included."""
    waiting, names = ["state_dict", "get_extra_state"], set[str]()
    done: set[str] = set()
    while waiting:
        name = waiting.pop()
        done.add(name)
        owner = next((base for base in kind.__mro__ if name in vars(base)), None)
        if owner is None or owner is torch.nn.Module or owner is torch.optim.Optimizer:
            continue
        for code in codes_of(vars(owner)[name]):
            for part in (code, *inner(code)):
                names.update(part.co_names)
                names.update(constant for constant in part.co_consts if isinstance(constant, str))
                waiting += [other for other in part.co_names if other not in done]
    return names


def _last_name(path: str) -> str:
    return (re.findall(r"[^\W\d]\w*", path) or [""])[-1]


def _is_clock(change: Change, clocks: Mapping[str, tuple[float, float]], program: Program) -> bool:
    """Returns True if the value is a time of a clock between the two checks, in seconds or nanoseconds.

    A clock that starts with process or machine counts only if the program reads it: its times are small.
    """
    value = change.now.value
    if type(value) not in (int, float):
        return False
    spans = clocks.items()
    read = [name for name, (a, b) in spans if a <= value <= b or a <= value / 1e9 <= b]
    if "time" in read or not read:
        return bool(read)
    names = {name for code in program.codes for name in code.co_names}
    return not names.isdisjoint({*read, *(f"{name}_ns" for name in read), "default_timer"})


def _paths_by_saved_hash(values: Mapping[str, Any]) -> dict[bytes, set[str]]:
    """Returns the paths in `run.state` and the states of the user's objects, by the hash of the value."""
    found: dict[bytes, set[str]] = {}
    for path, value, parts in digest.walk(dict(values)):
        for hashed in _hashes(value, container=parts is not None):
            found.setdefault(hashed, set()).add(path)
    return found


def _hashes(value: Any, *, container: bool) -> Iterator[bytes]:
    """Yields the hashes under which a walk may meet a value: a tensor as array, a generator's state."""
    state = of_state(value)
    if state is not None:
        yield state
    if not container:
        yield leaf(value)
        if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
            yield leaf(torch.from_numpy(np.ascontiguousarray(value)))
        elif isinstance(value, torch.Tensor):
            yield leaf(digest.array_of(value))
        return
    if not isinstance(value, Collection):  # an instance of a dataclass
        return
    yield plain(len(value))
    items = list(value.values() if isinstance(value, Mapping) else value)
    pairs = value.items() if isinstance(value, Mapping) else None
    if {*map(type, items)} <= PLAIN:
        yield of_ends(items if pairs is None else [one for pair in pairs for one in pair])
    if pairs is not None:
        yield plain(sorted(leaf(key) for key in value))
