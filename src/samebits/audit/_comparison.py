"""The comparison of two recorded runs, and of the ranks of one: equal, the first difference, or not known."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from samebits.audit._first_difference import (
    AFTER_A_BODY,
    SHARED_ONLY,
    Difference,
    difference_between,
    differing_paths,
    first_difference,
    matched_lines,
    shortened,
    steps_compared,
)
from samebits.audit._record.opened_files import NOT_COMPUTED
from samebits.audit._record.record_file import Record, RecordLine
from samebits.errors import RecordError

EQUAL, DIFFERENT, CANNOT_TELL = 0, 1, 2


@dataclass(frozen=True)
class Comparison:
    """The result of `samebits diff`."""

    steps: int
    """The number of steps that both runs have."""
    difference: Difference | None
    unfinished: tuple[str, ...]
    """The ends of the runs that did not end well."""
    level: str = "state"
    """The level at which both were recorded: "loss" or "state"."""
    recorded: tuple[int, int] = (0, 0)
    """The number of steps of each."""
    files: tuple[str, ...] = ()
    """The files that both read, the script among them, and that had other contents."""

    @property
    def exit(self) -> int:
        """0 equal; 1 different; 2: nothing was compared, or not to the end."""
        if self.difference is not None:
            return DIFFERENT
        return CANNOT_TELL if self.unfinished or not self.steps else EQUAL

    def sentence(self) -> str:
        """The result in one line."""
        if self.difference is not None:
            files = f"; other contents: {shortened(self.files, 3)}" if self.files else ""
            return f"{self.difference.sentence()} [{self._compared()}]{files}"
        ended = "; ".join(self.unfinished)
        if not self.steps:
            return (
                "not compared: the two records have no step in common "
                f"({self._numbers()}{ended and f'; {ended}'})"
            )
        if ended:
            return f"not compared to the end: {ended}; no difference in the {self._compared()}"
        return f"equal: {self._compared()}, and the model at the end"

    def _numbers(self) -> str:
        a, b = (f"{number or 'none'}" for number in self.recorded)
        return "neither has one" if a == b == "none" else f"the first has {a}, the second {b}"

    def _compared(self) -> str:
        steps = f"{self.steps} step{'' if self.steps == 1 else 's'} compared"
        return f"{steps} (losses and learning rates)" if self.level == "loss" else steps


@dataclass(frozen=True)
class ComparedRuns:
    """Two runs that a page shows side by side."""

    names: tuple[str, str]
    records: tuple[Record, Record]
    ignore: frozenset[str] = frozenset()
    """Paths of locals that are no difference."""
    rank: int | None = None
    """The rank that is shown, of a job of several."""


def compare_ranks(a: Sequence[Record], b: Sequence[Record]) -> Comparison:
    """Compares two jobs rank by rank; returns the rank that differs first, else one that cannot tell.

    Raises `RecordError` for two jobs of different numbers of ranks.
    """
    if len(a) != len(b):
        raise RecordError(
            f"{a[0].path} is of a job of {len(a)} ranks, {b[0].path} of {len(b)}. Compare jobs of one size."
        )
    found = [compare(mine, theirs) for mine, theirs in zip(a, b, strict=True)]
    if len(found) == 1:
        return found[0]
    found = [
        replace(one, difference=one.difference and replace(one.difference, rank=rank))
        for rank, one in enumerate(found)
    ]
    first = earliest(one.difference for one in found)
    if first is None:
        return max(found, key=lambda one: one.exit)
    return next(one for one in found if one.difference is first)


def compare(a: Record, b: Record) -> Comparison:
    """Compares two runs from their beginning to their end.

    It is a difference if one failed and the other did not. Where both failed, or one was killed, or no step
    is in both, different ends prove nothing.
    """
    ends = [_end(record) for record in (a, b)]
    difference = first_difference(a, b)
    if a.end is not None and b.end is not None and bool(ends[0]) != bool(ends[1]):
        difference = difference or Difference(-1, "end", (), detail="".join(ends), place="end")
    elif any(ends) and difference is not None and difference.place == "end":
        difference = None
    if difference is not None and difference.place == "end" and not steps_compared(a, b):
        difference = None  # for example a run that had finished before: only the code after its loop ran
    level = "loss" if "loss" in (a.start.get("level"), b.start.get("level")) else "state"
    unfinished, recorded = tuple(filter(None, ends)), (len(a.steps), len(b.steps))
    return Comparison(steps_compared(a, b), difference, unfinished, level, recorded, other_files(a, b))


def other_files(a: Record, b: Record) -> tuple[str, ...]:
    """Returns the files that both runs read, and that had other contents."""
    mine, theirs = ((record.end or {}).get("files", {}) for record in (a, b))
    known = [path for path in mine if path in theirs and NOT_COMPUTED not in mine[path] + theirs[path]]
    return tuple(path for path in known if mine[path] != theirs[path])


def environments(a: Record, b: Record) -> list[tuple[str, str, str]]:
    """Returns (name, values) of the settings of both: at their ends, or at their starts if one was killed."""
    ends = [(run.end or {}).get("environment", {}) for run in (a, b)]
    starts = [run.start.get("environment", {}) for run in (a, b)]
    one, other = (dict(_flat(values)) for values in (ends if all(ends) else starts))
    return [(name, one.get(name, "-"), other.get(name, "-")) for name in one | other]


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", str(value)


def _end(record: Record) -> str:
    """Returns how the run ended, if it did not end well."""
    if record.end is None:
        return f"{record.path} ends before its run did (it was killed, or is still running)"
    error = record.end.get("error")
    return f"{record.path} ended with {error}" if error else ""


def earliest(differences: Iterable[Difference | None]) -> Difference | None:
    """Returns the first of the ranks' differences: in time, and in one step in causal order.

    A rank that reads another batch changes the gradients of all, in the same step.
    """
    order = ("memory", *AFTER_A_BODY)

    def when(found: Difference) -> tuple[float, int]:
        place = order.index(found.component) if found.component in order else len(order)
        return math.inf if found.place == "end" else found.step, place

    return min(filter(None, differences), key=when, default=None)


def replica_difference(
    first: Record, other: Record, may_differ: frozenset[str], ignore: frozenset[str]
) -> Difference | None:
    """Returns the first difference of another rank's parameters, buffers and optimizer state from rank 0's.

    Only what both have is compared. What is in `may_differ` or `ignore` (components and paths) is no
    difference by itself; that of `may_differ` may be the cause of one.
    """
    for mine, theirs in matched_lines(first, other):
        parts = {
            name: paths
            for name in SHARED_ONLY - ignore
            if (paths := tuple(path for path in _unequal(name, mine, theirs) if path not in ignore))
        }
        if not may_differ.issuperset(path for paths in parts.values() for path in paths):
            return difference_between(mine, theirs, parts, AFTER_A_BODY, "step")
    return None


def unequal_leaves(first: Record, other: Record) -> dict[str, None]:
    """Returns the parameters and buffers that differ between two ranks after any step, in model order."""
    lines = list(matched_lines(first, other))
    return {path: None for name in ("model", "buffers") for pair in lines for path in _unequal(name, *pair)}


def _unequal(component: str, mine: RecordLine, theirs: RecordLine) -> tuple[str, ...]:
    return differing_paths(component, mine, theirs, shared=True)
