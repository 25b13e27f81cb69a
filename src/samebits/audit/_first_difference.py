"""The first difference of two records: step, component, leaves, and the sentence about it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from samebits.audit._record.record_file import Record, RecordLine


@dataclass(frozen=True)
class Difference:
    """The first difference of two records."""

    step: int
    component: str
    """The cause as far as the records show it: the first in causal order that differs."""
    paths: tuple[str, ...]
    """Leaves of the component that differ; empty if it has none."""
    detail: str = ""
    others: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Further components that differ in the same line, with their paths."""
    epoch: int = 0
    batch_index: int = 0
    place: str = "step"
    """"step", "start" (before the first step), "resumed" (before that of a resumed process) or "end"."""
    rank: int | None = None
    """The rank on which it is, in a job of several."""

    def sentence(self) -> str:
        """Returns one readable line: step, component, leaves, other components that differ."""
        detail = f" ({self.detail})" if self.detail else ""
        more = ", ".join(_name_leaves(component, paths) for component, paths in self.others)
        more = f", then {more}" if more else ""
        return f"{self._where()}{_name_leaves(self.component, self.paths)} {_verb(self)}{detail}{more}"

    def to_dict(self) -> dict[str, Any]:
        """Returns it as plain values, for `--json`."""
        return {
            "rank": self.rank,
            "step": self.step,
            "component": self.component,
            "paths": list(self.paths),
            "sentence": self.sentence(),
        }

    def _where(self) -> str:
        rank = "" if self.rank is None else f"rank {self.rank}: "
        if self.place == "end":
            return rank
        if self.place == "start":
            return f"{rank}before the first step: "
        if self.place == "resumed":
            return f"{rank}resumed at step {self.step + 1}: "
        return f"{rank}step {self.step} (epoch {self.epoch}, batch {self.batch_index}): "


def _verb(difference: Difference) -> str:
    plural = difference.component == "locals" and len(difference.paths) > 1
    many = {"steps", "generators", "buffers", "inputs"}
    return "differ" if plural or difference.component in many else "differs"


_TITLES = {
    "final": "the model at the script's end",
    "steps": "the numbers of steps",
    "end": "the record",
    "lr": "learning rate",
    "eval": "evaluation outputs",
    "memory": "what the program holds",
    "inputs": "the model's inputs",
}


def _name_leaves(component: str, paths: tuple[str, ...]) -> str:
    """Returns a component and up to two of its leaves."""
    if component == "locals":
        plain = [path for path in paths if path.isidentifier()] == list(paths)
        title = ("local variable" if plain else "user state") + ("s" if len(paths) > 1 and plain else "")
        return f"{title} {shortened([f'`{path}`' for path in paths])}"
    title = _TITLES.get(component, component)
    shown = [path for path in paths if path]
    return f"{title} ({shortened(shown)})" if shown else title


def shortened(items: Sequence[str], shown: int = 2) -> str:
    """Returns the first items and the number of the others: "a, b, ... 3 more"."""
    return ", ".join(items[:shown]) + (f", ... {len(items) - shown} more" if len(items) > shown else "")


_MADE = ("batch", "inputs", "loss", "lr", "buffers", "optimizer", "model", "eval", "output", "state")
AFTER_A_BODY = ("generators", "data", *_MADE, "scalars", "locals", "locals_at_exit")
"""Causal order inside a step. A line is taken after the body, so locals are mostly consequences there.

"data", the locals inside a loader, come first: they make the batch.
"""
BEFORE_A_BODY = ("generators", "data", "scalars", "locals", "state", *_MADE[:-1])
"""Causal order in the first line of a process: a local that is not restored is the cause."""
_OBJECTS = frozenset({"data", "locals"})
"""The user's objects: liveness does not prove that their contents are read before they are written."""
_IN_A_LOADER = re.compile(r"(^|\.|\()(dataset|sampler|batch_sampler|collate_fn)\b")
_AT_EXIT = "locals_at_exit"
"""Locals that only the code after the loop reads; they count in a loop's last line."""
_LOCALS = ("scalars", "locals", _AT_EXIT)
_MEMORY = "memory"
"""All values that could be read of the program (`take_memory`): causes, no differences by themselves."""
LOCALS = frozenset({"data", *_LOCALS})
"""Components that messages call "locals"."""
_EFFECTS = frozenset({"inputs", "loss", "model", "output"})
"""Components that only show that something before them differs."""
SHARED_ONLY = frozenset({"model", "buffers", "optimizer"})
"""In the first line of a resumed process, objects that no `Run` knows have not shown up yet."""


def first_difference(
    baseline: Record, *segments: Record, ignore: frozenset[str] = frozenset()
) -> Difference | None:
    """Returns the first difference of a run's processes, killed and resumed, from a whole run, or None.

    Compared are the steps that both have, their number, and the final digest, but for the paths in `ignore`.
    """
    for segment in segments:
        found = _initial_difference(baseline, segment, ignore) or _step_difference(baseline, segment, ignore)
        if found is not None and found.component == "batch":
            return _by_loader_generators(found, baseline, segment)
        if found is not None:
            return _by_memory(found, baseline, segment, ignore) if found.component in _EFFECTS else found
    return _end_difference(baseline, segments)


def _by_memory(difference: Difference, a: Record, b: Record, ignore: frozenset[str]) -> Difference:
    """Adds the values that differ in a resumed process's memory at its begin, and also one step later."""
    for theirs in b.initial:
        mine = a.steps.get(theirs.key)
        later = next((key for key in b.steps if key[0] == theirs.loop and key[1] > theirs.step), None)
        if mine is None or later is None or later not in a.steps or theirs.step >= difference.step:
            continue
        still = {*differing_paths(_MEMORY, a.steps[later], b.steps[later])}
        paths = _without_ignored(differing_paths(_MEMORY, mine, theirs), _MEMORY, mine, theirs, ignore)
        lost = tuple(path for path in paths if path in still)
        if lost:
            others = ((difference.component, difference.paths), *difference.others)
            at = theirs.epoch, theirs.batch_index
            return Difference(theirs.step, _MEMORY, lost, "", others, *at, "resumed")
    return difference


def _by_loader_generators(difference: Difference, a: Record, b: Record) -> Difference:
    """Blames generators of the script's torch loaders for another batch, if they began in other states."""
    if a.end is None or b.end is None or b.resumed_from is not None:
        return difference
    mine, theirs = (end.get("loader_generators", {}) for end in (a.end, b.end))
    paths = tuple(path for path in mine.keys() & theirs.keys() if mine[path] != theirs[path])
    if not paths:
        return difference
    others = ((difference.component, difference.paths), *difference.others)
    return replace(difference, component="generators", paths=tuple(sorted(paths)), others=others)


def steps_compared(baseline: Record, *segments: Record) -> int:
    """Returns the number of a whole run's steps that a run's processes have, too."""
    return len({key for segment in segments for key in segment.steps} & baseline.steps.keys())


def unstable(a: Record, b: Record) -> frozenset[str]:
    """Returns paths of locals that differ between two equal runs (the clock, a scratch folder's name)."""
    pairs = [*matched_lines(a, b), *zip(a.initial, b.initial, strict=False)]
    names = (*_LOCALS, _MEMORY)
    return frozenset(path for pair in pairs for name in names for path in differing_paths(name, *pair))


def harmless(record: Record) -> frozenset[str]:
    """Returns the paths of locals that the script's runs only print, or ignore, and paths below them."""
    roots = [] if record.end is None else record.end.get("harmless", [])
    lines = [*record.initial, *record.steps.values()] if roots else []
    paths = {path for line in lines for name in (*_LOCALS, _MEMORY) for path in line.leaves.get(name, ())}
    return frozenset([*roots, *(path for path in paths if any(_is_below(path, root) for root in roots))])


def _is_below(path: str, root: str) -> bool:
    path = path.removeprefix("len(")
    return path.startswith(root) and path[len(root) : len(root) + 1] in ("", ".", "[", ")")


def matched_lines(a: Record, b: Record) -> Iterator[tuple[RecordLine, RecordLine]]:
    return ((line, b.steps[key]) for key, line in a.steps.items() if key in b.steps)


def _step_difference(a: Record, b: Record, ignore: frozenset[str]) -> Difference | None:
    for mine, theirs, parts in step_differences(a, b, ignore):
        return difference_between(mine, theirs, parts, AFTER_A_BODY, "step")
    return None


def step_differences(
    a: Record, b: Record, ignore: frozenset[str]
) -> Iterator[tuple[RecordLine, RecordLine, dict[str, tuple[str, ...]]]]:
    """Yields the lines of each step that differs, with the paths that differ by component."""
    ignore |= _unused_generators(a, b)
    last = dict(a.steps.keys())
    for mine, theirs in matched_lines(a, b):
        parts = _parts(mine, theirs, ignore, at_exit=last[mine.loop] == mine.step)
        if parts and not _is_cache(parts, mine, theirs):
            yield mine, theirs, parts


def _initial_difference(a: Record, b: Record, ignore: frozenset[str]) -> Difference | None:
    """Compares the state before the first body: with the same line, or a whole run's of the step before."""
    starts = {line.key: line for line in a.initial}
    ignore |= _unused_generators(a, b)
    for theirs in b.initial:
        mine = starts.get(theirs.key) or a.steps.get(theirs.key)
        if mine is None:
            continue
        fresh = mine.key in starts
        parts = _parts(mine, theirs, ignore, shared_only=not fresh)
        if not fresh:
            parts.pop("generators", None)  # set anew at each step of a run
            parts = _lasting(parts, a, b, theirs, ignore)
        if parts and not (_is_cache(parts, mine, theirs) and _equal_from_here(a, b, ignore)):
            place = "start" if theirs.step < 0 else "resumed"
            return difference_between(mine, theirs, parts, BEFORE_A_BODY, place)
    return None


def _equal_from_here(a: Record, b: Record, ignore: frozenset[str]) -> bool:
    return _step_difference(a, b, ignore) is None and (b.final is None or a.final == b.final)


def _is_cache(parts: dict[str, tuple[str, ...]], mine: RecordLine, theirs: RecordLine) -> bool:
    """Returns True if only the keys of mappings of the user's differ: the values that both have are equal.

    A process that begins anew has an emptier cache. That counts only if something else differs, too.
    """
    if not parts.keys() <= _OBJECTS:
        return False
    a, b = mine.leaves.get("locals", {}), theirs.leaves.get("locals", {})
    paths = [path for part in parts.values() for path in part]
    grown = (path.removesuffix("keys()") for path in paths if path.endswith(".keys()"))
    mappings = tuple(path.rstrip(".") + "[" for path in grown)
    items = [path for path in paths if not path.endswith(".keys()")]
    return all(path.startswith(mappings) and not (path in a and path in b) for path in items)


def _unused_generators(a: Record, b: Record) -> frozenset[str]:
    """Returns the generators that end as they began in both records: neither seeded nor drawn from."""
    return _unused_in(a) & _unused_in(b)


def _unused_in(record: Record) -> frozenset[str]:
    began = record.start.get("generators") or {}
    lines = (*reversed(record.steps.values()), *record.initial)
    last = next((line.leaves.get("generators", {}) for line in lines), {})
    return frozenset(f"generators.{name}" for name, hashed in began.items() if hashed == last.get(name))


def _lasting(
    parts: dict[str, tuple[str, ...]], a: Record, b: Record, initial: RecordLine, ignore: frozenset[str]
) -> dict[str, tuple[str, ...]]:
    """Returns `parts` without paths that are equal one step later: the body writes them before it reads them.

    A plain local is judged by liveness alone. If no body follows, no local can matter.
    """
    following = next((key for key in b.steps if key[0] == initial.loop and key[1] > initial.step), None)
    if following is None or following not in a.steps:
        return {name: paths for name, paths in parts.items() if name not in _OBJECTS | {"scalars"}}
    later = _parts(a.steps[following], b.steps[following], ignore)
    if not later.keys() <= _OBJECTS:
        return parts
    still = {path for paths in later.values() for path in paths}
    kept = {name: tuple(path for path in parts[name] if path in still) for name in _OBJECTS & parts.keys()}
    return {name: paths for name, paths in (parts | kept).items() if paths or name not in kept}


def _end_difference(a: Record, segments: Sequence[Record]) -> Difference | None:
    keys = [key for segment in segments for key in segment.steps]
    last = segments[-1]
    if a.end is not None and last.end is None:
        at = max((step for _, step in keys), default=-1)
        return Difference(at, "end", (), detail="the script's end was not reached", place="end")
    alike = a.start["every"] == last.start["every"]
    if alike and set(keys) != set(a.steps) and not _starts_later(a, segments):
        at = min(step for _, step in set(keys) ^ set(a.steps))
        return Difference(at, "steps", (), detail=f"{len(a.steps)} against {len(set(keys))}", place="end")
    if a.end is not None and last.end is not None and a.final != last.final:
        detail = f"{a.final} against {last.final}"
        return Difference(int(a.end["steps"]), "final", (), detail=detail, place="end")
    return None


def _starts_later(a: Record, segments: Sequence[Record]) -> bool:
    """Returns True if the segments begin inside the run, at a commit of a process not among them."""
    first = segments[0].resumed_from
    keys = {key for segment in segments for key in segment.steps}
    return first is not None and keys == {key for key in a.steps if key[1] >= first}


def _parts(
    mine: RecordLine,
    theirs: RecordLine,
    ignore: frozenset[str],
    *,
    shared_only: bool = False,
    at_exit: bool = False,
) -> dict[str, tuple[str, ...]]:
    """Returns the paths that differ by component, for components of both lines (of evaluations: of one).

    Generators, and a model's inputs, count only together with something else: what changes nothing is no
    difference.
    """
    found: dict[str, tuple[str, ...]] = {}
    for component in {*mine.values, *theirs.values} - {_MEMORY}:
        a, b = mine.values.get(component), theirs.values.get(component)
        is_missing = component != "eval" and (a is None or b is None)
        if a == b or is_missing or (component == "eval" and shared_only):
            continue
        if component not in mine.leaves or component not in theirs.leaves:
            found[component] = ()
            continue
        if component == _AT_EXIT and not at_exit:
            continue
        shared = shared_only and component in SHARED_ONLY
        paths = differing_paths(component, mine, theirs, shared=shared)
        if component in {*_LOCALS, "generators"}:
            paths = _without_ignored(paths, component, mine, theirs, ignore)
        if component == "locals":
            data = tuple(path for path in paths if _IN_A_LOADER.search(path))
            others = tuple(path for path in paths if path not in data)
            found |= {name: part for name, part in (("data", data), ("locals", others)) if part}
        elif paths or not (shared or component in {*_LOCALS, "generators"}):
            found[component] = paths
    if "optimizer" in mine.values and "optimizer" in theirs.values:
        found.pop("lr", None)
    return {} if found.keys() <= {"generators", "inputs"} else found


def _without_ignored(
    paths: tuple[str, ...], component: str, mine: RecordLine, theirs: RecordLine, ignore: frozenset[str]
) -> tuple[str, ...]:
    """Returns `paths` without those in `ignore`, and without one side's items of an ignored mapping."""
    prefix = "generators." if component == "generators" else ""
    a, b = mine.leaves.get(component, {}), theirs.leaves.get(component, {})
    kept, both = [path for path in paths if prefix + path not in ignore], a.keys() & b.keys()
    of_ignored = {path for path in kept if any(f"{base}.keys()" in ignore for base in _mappings(path))}
    return tuple(path for path in kept if path in both or path not in of_ignored)


def _mappings(path: str) -> list[str]:
    """Returns the paths of the containers that an item is in: of `a[3].b[1]` they are `a` and `a[3].b`."""
    path = path.removeprefix("len(")
    return [path[:at] for at, letter in enumerate(path) if letter == "["]


def differing_paths(
    component: str, mine: RecordLine, theirs: RecordLine, *, shared: bool = False
) -> tuple[str, ...]:
    a, b = mine.leaves.get(component, {}), theirs.leaves.get(component, {})
    if a == b:
        return ()
    missing = () if shared else tuple(path for path in b if path not in a)
    own = (path for path in a if (path in b and a[path] != b[path]) or (path not in b and not shared))
    return (*own, *missing)


def difference_between(
    mine: RecordLine,
    theirs: RecordLine,
    parts: dict[str, tuple[str, ...]],
    order: tuple[str, ...],
    place: str,
) -> Difference:
    known = sorted(parts, key=lambda name: (order.index(name) if name in order else len(order), name))
    cause = known[0]
    detail = _numbers(mine, theirs, cause) if cause in {"loss", "lr"} else ""
    detail = "read after the loop only" if cause == _AT_EXIT else detail
    others = tuple((public_name(name), parts[name]) for name in known[1:])
    at = theirs.epoch, theirs.batch_index, place
    return Difference(theirs.step, public_name(cause), parts[cause], detail, others, *at)


def public_name(component: str) -> str:
    return "locals" if component in LOCALS else component


def _numbers(mine: RecordLine, theirs: RecordLine, component: str) -> str:
    a, b = mine.values[component], theirs.values[component]
    if len(a) != len(b):
        return f"{len(a)} values against {len(b)}"
    at = next(number for number, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
    return f"{readable_number(a[at])} against {readable_number(b[at])}"


def readable_number(number: str) -> str:
    """Returns a number of `float.hex` in decimal digits; another text as it is."""
    try:
        return repr(float.fromhex(number))
    except ValueError:
        return number
