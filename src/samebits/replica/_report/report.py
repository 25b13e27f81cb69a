"""The report of an analysis: which values are equal, over which ranks, and if not, why not and the cure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from samebits._inspect.user_code import line_of_node
from samebits.errors import InvalidArgumentError
from samebits.replica._analysis.analysis_context import AnalysisFinding
from samebits.replica._analysis.interpreter import Event, Events, Interpreter
from samebits.replica._analysis.op_rules import SEED, is_collective
from samebits.replica._analysis.partitions import Partitions
from samebits.replica._capture.captured_step import BATCH, CONSTANT, GENERATOR, STATE, CapturedStep, describe

Over = str | Iterable[str] | Iterable[Iterable[int]] | None
"""Ranks to compare: all (None), those along mesh axes (`"dp"`, `("dp", "tp")`), or within groups of ranks."""


class Value(NamedTuple):
    """The partition of a value at one time, and the events that made it."""

    partition: int
    events: tuple[int, ...]


@dataclass(frozen=True)
class Report:
    """The results of the analysis of a step. Prints itself as a table.

    Example:
        >>> args = torch.ones(3), torch.ones(4)
        >>> captured = samebits.replica.capture(lambda w, x: w.add_(x.sum()), *args, world_size=8)
        >>> print(samebits.replica.analyze(captured).explain("w"))
        w varies: all differ
          x (batch) at the start of the step: all differ
          sum_1 = aten.sum.default: all differ  [...]
          add_ = aten.add_.Tensor: all differ  [...]
        fix: what is written to w is reduced nowhere on its way from x: ...
    """

    step: CapturedStep
    partitions: Partitions
    events: Events
    starts: dict[str, Value]
    ends: dict[str, Value]
    values: dict[str, Value]
    """Outputs by name, and every value of the graph by the name of its node, when it was made."""
    findings: tuple[AnalysisFinding, ...]
    declared: dict[str, int]
    """The declared partition of each input, or the default of its kind."""
    frame: Interpreter = field(repr=False)
    """The last pass, with the result of every op of the step and of its bodies."""

    def partition(self, name: str, when: Literal["start", "end"] = "end") -> tuple[tuple[int, ...], ...]:
        """Returns the classes of ranks with equal bits: an input's at start or end, an output's, a node's."""
        return self.partitions.classes(self._value(name, when).partition)

    def is_replica_equal(self, name: str, over: Over = None, when: Literal["start", "end"] = "end") -> bool:
        """Returns True if a value has equal bits on all ranks, or on those that are together in `over`."""
        return self.partitions.holds_over(self._value(name, when).partition, self._over(over))

    def way(self, name: str, over: Over = None, when: Literal["start", "end"] = "end") -> list[Event]:
        """Returns the writes on the shortest path from the first varying source; none if equal."""
        value, within = self._value(name, when), self._over(over)
        paths = [self.events.path(event, within) for event in value.events if self._differs(event, within)]
        return min(paths, key=len, default=[])

    def explain(self, name: str, over: Over = None, when: Literal["start", "end"] = "end") -> str:
        """Returns the shortest path from the first varying source to it, with source lines and the cure."""
        value, within = self._value(name, when), self._over(over)
        if self.partitions.holds_over(value.partition, within):
            return f"{name} is replica-equal{_over_text(over)}."
        path = self.way(name, over, when)
        lines = [f"{name} varies{_over_text(over)}: {self.partitions.text(value.partition)}"]
        lines += [f"  {self._line(event)}" for event in path]
        return "\n".join([*lines, f"fix: {self._cure(name, path, over)}"])

    @property
    def drifting(self) -> tuple[str, ...]:
        """The state, and constants that are written to, that are less equal after a step than declared."""
        kept = [name for name, kind in self.step.kinds.items() if kind in {STATE, CONSTANT}]
        holds, ends = self.partitions.holds_over, self.ends
        return tuple(name for name in kept if not holds(ends[name].partition, self.declared[name]))

    @property
    def notes(self) -> list[str]:
        """The assumptions of the results besides the rules."""
        taken = [name for name in self.step.written if self.declared[name] == self.partitions.equal]
        return [
            f"code run as {len(self.step.captured)} of {self.step.world_size} ranks",
            *(
                f"{name} is written by the step, so it counts as state, equal at the start; a batch is "
                "PerReplica()"
                for name in taken
            ),
        ]

    def explain_drift(self, name: str) -> str:
        """Returns `explain` over the ranks on which `name` was declared equal."""
        return self.explain(name, self.over_declared(name))

    def over_declared(self, name: str) -> Over:
        """Returns the ranks on which an input was declared equal, as an `over`."""
        self._value(name, "start")
        declared = self.declared[name]
        return None if declared == self.partitions.equal else self.partitions.classes(declared)

    def expect_equal(self, *names: str, over: Over = None) -> None:
        """Raises an AssertionError with the explanation unless all are replica-equal at the end of a step."""
        _check_names("expect_equal", names)
        wrong = [self.explain(name, over) for name in names if not self.is_replica_equal(name, over)]
        if wrong:
            raise AssertionError("\n".join(wrong))

    def expect_varying(self, *names: str, over: Over = None) -> None:
        """Raises AssertionError if any two ranks of `over` hold equal bits: too equal is a bug too."""
        _check_names("expect_varying", names)
        within = self._over(over)
        for name in names:
            partition = self._value(name, "end").partition
            if not self.partitions.apart_over(partition, within):
                classes = self.partitions.text(partition)
                raise AssertionError(
                    f"{name} was expected to vary{_over_text(over)}, and ranks hold equal bits of it: "
                    f"{classes}"
                )

    def __str__(self) -> str:
        rows = [("value", "kind", "start", "end")]
        for name, kind in self.step.kinds.items():
            start, end = (self.partitions.text(one[name].partition) for one in (self.starts, self.ends))
            rows.append((name, kind, start, end))
        names, text = self.step.output_names, self.partitions.text
        rows += [(name, "output", "", text(self.values[name].partition)) for name in names]
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = [" ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join([*(line.rstrip() for line in lines), *self.notes, *map(str, self.findings)])

    def _value(self, name: str, when: str) -> Value:
        if not isinstance(name, str) or when not in {"start", "end"}:
            raise InvalidArgumentError(
                f"report: {describe(name) if not isinstance(name, str) else name!r}, when={when!r}: give "
                "names of values, one by one, expect_equal('model.weight', 'model.bias'); when is 'start' or "
                "'end'."
            )
        inputs = self.starts if when == "start" else self.ends
        found = inputs.get(name) or (None if when == "start" else self.values.get(name))
        if found is None:
            known = [*self.step.kinds, *([] if when == "start" else self.step.output_names)]
            near = difflib.get_close_matches(name, known, n=3)
            where = " at the start of a step: only inputs have one" if when == "start" else ""
            there = f"Near it are {', '.join(near)}" if near else f"There are {', '.join(known)}"
            raise InvalidArgumentError(f"report: there is no value {name!r}{where}. {there}.")
        return found

    def _over(self, over: Over) -> int:
        if over is None:
            return self.partitions.equal
        mesh = self.step.mesh
        names: Any = (over,)
        if not isinstance(over, str):
            names = tuple(over) if isinstance(over, Iterable) else ()
        are_axes = {isinstance(one, str) for one in names}
        if len(are_axes) != 1 or not all(isinstance(one, Iterable) for one in names):
            raise InvalidArgumentError(
                f"over={over!r}: give axes of the mesh {dict(mesh)}, over='dp', or groups of ranks, "
                "over=[[0, 1], [2, 3]]."
            )
        if are_axes == {False}:
            return self.partitions.from_groups(names)
        if unknown := set(names) - set(mesh):
            raise InvalidArgumentError(f"over={over!r}: the mesh has the axes {list(mesh)}, not {unknown}.")
        places = np.indices(tuple(mesh.values())).reshape(len(mesh), -1)
        kept = [places[index] for index, axis in enumerate(mesh) if axis not in names]
        if not kept:
            return self.partitions.equal
        return self.partitions.from_values(list(map(tuple, np.array(kept).T.tolist())))

    def _differs(self, event: int, within: int) -> bool:
        return not self.partitions.holds_over(self.events.log[event].partition, within)

    def _line(self, event: Event) -> str:
        classes = self.partitions.text(event.partition)
        if isinstance(event.what, str):
            kind = self.step.kinds.get(event.what, "")
            return f"{event.what} ({kind}) at the start of the step: {classes}"
        because = f", {event.reason}" if event.reason else ""
        return f"{event.what.name} = {event.what.target}{because}: {classes}  [{line_of_node(event.what)}]"

    def _cure(self, name: str, path: list[Event], over: Over) -> str:
        source = path[0]
        group = "the group of all ranks" if over is None else f"over {over}"
        if source.what == SEED:
            return (
                "seed these ranks alike, samebits.set_random_seed(seed) with one seed, and say so: "
                f"inputs={{{SEED!r}: Equal()}}"
            )
        reduced = any(not isinstance(event.what, str) and is_collective(event.what) for event in path)
        if any("batch_norm" in str(event.what) for event in path[-1:] if not isinstance(event.what, str)):
            return (
                f"{name} has the statistics of each rank's own batch: use SyncBatchNorm (on GPUs), or "
                "broadcast it before it is read"
            )
        if self.step.kinds.get(name) in {STATE, CONSTANT} and not reduced:
            kind = self.step.kinds.get(source.what, "") if isinstance(source.what, str) else ""
            if kind in {BATCH, GENERATOR}:
                return (
                    f"what is written to {name} is reduced nowhere on its way from {source.what}: average "
                    f"its gradient with all_reduce ({group}) before it is used (DDP does that for the module "
                    "it wraps)"
                )
        if isinstance(source.what, str):
            return (
                f"if {source.what} is the same on these ranks, declare it: inputs={{{source.what!r}: "
                "Equal()}, or Partition([[0, 1], [2, 3]]) if it is within groups of them"
            )
        if "generator" in source.reason or "draws" in source.reason:
            return "draw from a key that is the same on these ranks, or broadcast what was drawn"
        if "Python code" in source.reason:
            return "make the argument from something that all these ranks share, or broadcast the result"
        if is_collective(source.what):
            return f"all_gather the parts ({group}) before the value is used as one"
        return (
            f"broadcast or all_reduce the value ({group}) after this line, or use an op that is deterministic"
        )


def check_report(caller: str, report: Any) -> None:
    """Raises `InvalidArgumentError`, with the name of the function `caller`, unless `report` is a report."""
    if not isinstance(report, Report):
        raise InvalidArgumentError(
            f"{caller} takes a report, the result of samebits.replica.analyze(step), not {describe(report)}."
        )


def _check_names(caller: str, names: tuple[str, ...]) -> None:
    if not names:  # a list that came out empty would pass, and prove nothing
        raise InvalidArgumentError(
            f"{caller}: no name was given, so nothing is checked; give names, {caller}('model.weight')."
        )


def _over_text(over: Over) -> str:
    return "" if over is None else f" over {over}"
