"""Which changes are lost by a resume, and how to say so."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch

from samebits._context import Position
from samebits._inspect import bytecode, loop_locals, user_functions
from samebits._inspect.read_before_write import ReadBeforeWrite, StoredPlace
from samebits._inspect.structure import Structure, differences
from samebits.train._completeness import reachable_state

_DRAWS = frozenset(
    [
        "rand",
        "randn",
        "random",
        "randint",
        "random_",
        "normal",
        "normal_",
        "uniform",
        "uniform_",
        "choice",
        "choices",
        "sample",
        "shuffle",
        "permutation",
        "randperm",
        "bernoulli",
        "bernoulli_",
        "multinomial",
        "dropout",
        "integers",
        "standard_normal",
        "gauss",
        "rand_like",
        "randn_like",
        "beta",
        "gamma",
        "exponential",
        "poisson",
    ]
)
_WHOLE = frozenset({"__dict__", "vars", "asdict", "__getstate__", "getattr", "fields"})
"""Names in a `state_dict` that saves whatever the object holds."""
_FETCHES = frozenset(
    {"__getitem__", "__getitems__", "__iter__", "__next__", "__call__", "__len__", "set_epoch"}
)
_READ_BY = {"stream": ("read", "getvalue", "getbuffer"), "rows": ("fetch", "select")}
"""Names and words by which a program reads what it has written: without them it is a log."""
_SHOWN = 6


class Change(NamedTuple):
    """A value that is another one than at the last look."""

    path: str
    before: reachable_state.Leaf
    now: reachable_state.Leaf
    taken: reachable_state.StateSnapshot


class Late(NamedTuple):
    """What a program was built with or set to, and is no longer."""

    path: str
    text: str
    place: StoredPlace


def late_changes(before: Mapping[str, Structure], now: Mapping[str, Structure]) -> list[Late]:
    """What is otherwise: of each module, and (under "") of the process. What was None was not made yet."""
    found = []
    for path in now:
        old = before.get(path, now[path])
        if old != now[path]:
            for name, text in differences(old, now[path]).items():
                if old.get(name, "") is not None:
                    last = name.rpartition(".")[2]
                    found.append(Late(f"{path}.{name}" if path else name, text, StoredPlace("attr", last)))
    return found


class LostChanges:
    """Tells what is lost from what is saved elsewhere, recomputed, made once, remembered, or a reading of a clock."""

    def __init__(self) -> None:
        self._equals: dict[str, set[str]] = {}
        """Path to the paths in the commit that had the same value each time that it changed."""
        self._made: set[str] = set()
        self._order: ReadBeforeWrite | None = None

    def lost(
        self,
        changed: Mapping[str, Change],
        frame: FrameType,
        own: user_functions.UserFunctions,
        clocks: list[tuple[float, float]],
        states: Mapping[str, Any],
    ) -> list[Change]:
        """The changes that a resume would lose."""
        left = [
            c
            for c in changed.values()
            if not _is_clock(c, clocks) and not _is_state(c) and not self._is_first(c)
        ]
        if not left:
            return []
        saved = reachable_state.of_saved(states)
        left = [c for c in left if not self._is_copy(c, saved)]
        if not left:
            return []
        order = _order(loop_locals.fetching_frames(frame), own, left[0].taken)
        return [c for c in left if not self._is_harmless(c, order, changed)]

    def unsettled(
        self,
        late: list[Late],
        frame: FrameType,
        own: user_functions.UserFunctions,
        taken: reachable_state.StateSnapshot,
    ) -> list[Late]:
        """Those that no iteration sets anew, and that are no readings of a clock."""
        if not late:
            return []
        order = _order(loop_locals.fetching_frames(frame), own, taken)
        return [one for one in late if not order.settled(one.place) and not order.timed(one.place.name)]

    def _is_first(self, change: Change) -> bool:
        """None before: made when it was first needed, as a resumed run will make it. A local is no such cache."""
        if (
            change.before.hashed != reachable_state.NONE
            or (change.now.root == "local" and len(change.now.places) == 1)
            or change.path in self._made
        ):
            return False
        self._made.add(change.path)
        return True

    def _is_copy(self, change: Change, saved: Mapping[bytes, set[str]]) -> bool:
        """Whether the commit has it under another path, of a count one with the same name: counts are equal by chance."""
        paths = saved.get(change.now.hashed, set())
        if isinstance(change.now.value, int):
            paths = {path for path in paths if _last_name(path) == _last_name(change.path)}
        equal = paths & self._equals.get(change.path, paths)
        self._equals[change.path] = equal
        return bool(equal)

    def _is_harmless(self, change: Change, order: ReadBeforeWrite, changed: Mapping[str, Change]) -> bool:
        last = change.now.places[-1]
        if last.kind == "memo":
            return not order.draws(change.now.places[-2].name, _DRAWS)
        if last.kind in _READ_BY:
            return not any(name in text.lower() for text in order.names() for name in _READ_BY[last.kind])
        filled = change.path.endswith(".keys()")
        held = filled or change.path.startswith("len(")
        places = [*change.now.places, *([StoredPlace("item", last.name)] if held else [])]
        if any(order.recomputed(place) for place in places if place.kind in {"attr", "name", "item"}):
            return True
        if isinstance(change.now.value, float | int) and last.kind != "item" and order.timed(last.name):
            return True
        if not filled or _entries_changed(change, changed):
            return False
        own = [
            code
            for kind, _ in change.now.owners[-1:]
            for base in kind.__mro__
            for code in user_functions.methods(base)
        ]
        return order.memo(last.name, _DRAWS, own)


def message(changes: list[Change], late: list[Late], position: Position) -> str:
    """What is lost, each with its cure."""
    grouped: dict[str, list[Change]] = {}
    for change in changes:
        grouped.setdefault(_subject(change), []).append(change)
    lines = {subject: _line(subject, group) for subject, group in grouped.items()}
    lines |= {
        one.path: f"{one.path} {one.text}: a resumed program begins with what it was built with. Make this change before the "
        "loop, by a value in run.state, or set it in every step, from step.number."
        for one in late
    }
    paths, shown = list(lines), list(lines.values())[:_SHOWN]
    if len(paths) > _SHOWN:
        shown.append(f"and {len(paths) - _SHOWN} more: {', '.join(paths[_SHOWN : _SHOWN + 10])}")
    named = ", ".join(f'"{path}"' for path in paths[:_SHOWN])
    return (
        f"Run, loop {position.loop!r}, before step {position.step}: what follows changes from step to step and is in no commit, so "
        "that a resumed run would go on with other values:\n  - "
        + "\n  - ".join(shown)
        + f'\nIf that does no harm (a log, a cache of what is computed again): run.ignore("{paths[0]}") before the loop, or '
        f"Run(ignore=[{named}]), Trainer.fit(ignore=[{named}]); a path stands for all below it. check_complete=False turns the check off."
    )


def _line(subject: str, group: list[Change]) -> str:
    change = group[0]
    kind, name, saves, generator = change.taken.roots[change.now.places[0].name]
    root = change.now.places[0].name
    where = (
        "a local variable that the next iteration reads"
        if change.now.root == "local"
        else "a global variable"
    )
    if any(place.kind == "hook" for place in change.now.places):
        return (
            f"{subject}: a hook holds it, which no state_dict saves. Keep it in run.state, or in an object with a state_dict "
            "that is given to the run."
        )
    if change.now.root == "given":
        owner = change.now.owners[0][0].__name__ if change.now.owners else name
        return f"{subject}: {owner} was given to Run, and its state_dict leaves this out. Save and load it there."
    if change.now.root == "loader":
        return (
            f"{subject}: a commit holds the loader's position, nothing of what its dataset or sampler counts or draws. Compute it "
            "from the index, or from the epoch in set_epoch(epoch); the global generators are set for each element."
        )
    if generator:
        return (
            f"{subject} ({name}, {where}): keep its state in run.state, or make it anew from step.number, or draw from the "
            "global generators, which Run sets at each step."
        )
    if len(change.now.places) == 1 and not saves and kind in {"plain", "container"}:
        value = "" if change.now.value is None else f", now {change.now.value!r:.40}"
        return f"{subject} ({where}{value}): use run.state.{root} for it, with run.state.setdefault({root!r}, ...) before the loop."
    if kind == "iterator":
        return (
            f"{subject} (an iterator, {where}): give its loader to the run, Run({root}=loader), which resumes it where it stood; "
            "or index by step.number."
        )
    inside = "" if group[0].path == subject else f" ({_shown(group[0].path)})"
    if saves:
        return f'{subject}{inside}, a {name}: run.add("{root}", {root}) before the loop, or Run({root}={root}, ...).'
    if kind in {"plain", "container"}:
        return f"{subject}{inside} ({where}): use run.state.{root} for it, with run.state.setdefault({root!r}, ...) before the loop."
    if kind == "library":
        return f"{subject}{inside} (a {name}, {where}): keep what it holds in run.state.{root}, and put it back before the loop."
    return (
        f'{subject}{inside}: give {name} a state_dict and a load_state_dict, and it to the run: run.add("{root}", {root}); or keep '
        "the value in run.state."
    )


def _subject(change: Change) -> str:
    """The name to save, or the attribute of an object that leaves it out."""
    if change.now.root in {"local", "global"} and not change.now.owners:
        return change.now.places[0].name
    return _shown(change.path).split("[")[0]


def _shown(path: str) -> str:
    return (
        path.removeprefix("len(").removesuffix(".keys()").removesuffix(")")
        if path.startswith("len(")
        else path.removesuffix(".keys()")
    )


def _order(
    asking: list[tuple[CodeType, int]],
    own: user_functions.UserFunctions,
    taken: reachable_state.StateSnapshot,
) -> ReadBeforeWrite:
    for kind in taken.kinds:
        own.add_class(kind)
    fetches: list[CodeType] = [
        code
        for kind in taken.fetching
        for base in kind.__mro__
        for code in user_functions.methods(base)
        if code.co_name in _FETCHES
    ]
    return ReadBeforeWrite(own, asking, taken.callables, fetches)


def _is_state(change: Change) -> bool:
    """Whether an object of the run saves this: the state_dict around it names every attribute on the way."""
    if change.now.root != "given" or not change.now.owners:
        return False
    names: set[str] = set()
    for kind, _ in change.now.owners:
        names |= _names_saved(kind)
    return bool(names & _WHOLE) or all(attribute in names for _, attribute in change.now.owners)


def _names_saved(kind: type) -> set[str]:
    """Names that `state_dict` (or `get_extra_state`) of a class mentions, its own helpers included."""
    waiting, names = ["state_dict", "get_extra_state"], set[str]()
    done: set[str] = set()
    while waiting:
        name = waiting.pop()
        done.add(name)
        owner = next((base for base in kind.__mro__ if name in vars(base)), None)
        if owner is None or owner is torch.nn.Module or owner is torch.optim.Optimizer:
            continue
        for code in user_functions.codes_of(vars(owner)[name]):
            for part in (code, *bytecode.inner(code)):
                names.update(part.co_names)
                names.update(constant for constant in part.co_consts if isinstance(constant, str))
                waiting += [other for other in part.co_names if other not in done]
    return names


def _last_name(path: str) -> str:
    return (re.findall(r"[^\W\d]\w*", path) or [""])[-1]


def _is_clock(change: Change, clocks: list[tuple[float, float]]) -> bool:
    """Whether the value is what a clock said between the two looks, in seconds or nanoseconds."""
    value = change.now.value
    if type(value) not in (int, float):
        return False
    return any(since <= value / unit <= until for since, until in clocks for unit in (1, 1e9))


def _entries_changed(change: Change, changed: Mapping[str, Change]) -> bool:
    """Whether items of a dict are other ones than before, not only more of them."""
    inside = change.path.removesuffix(".keys()") + "["
    return any(path.startswith(inside) for path in changed)
