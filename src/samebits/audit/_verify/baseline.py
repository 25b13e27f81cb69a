"""The baseline: the facts of its record for the plan, and the verdict of a check by comparison with it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from samebits.audit._child.variations import OWN_LOADERS
from samebits.audit._comparison import ComparedRuns, earliest, replica_difference, unequal_leaves
from samebits.audit._first_difference import (
    Difference,
    first_difference,
    harmless,
    shortened,
    steps_compared,
    unstable,
)
from samebits.audit._record.opened_files import OUTSIDE
from samebits.audit._record.record_file import Record, RecordLine, merge_segments
from samebits.audit._verify.check_plan import BaselineFacts, Check
from samebits.audit._verify.check_process import ProcessOutcome
from samebits.audit._verify.verify_report import CheckRow

SHOWN_LINES = 12
"""Lines of a failed process's output that are shown."""
_LEGAL = {
    "overwritten": "DistributedDataParallel overwrites them with those of rank 0 at a later forward",
    "untrained": "their module has no parameter that trains",
    "statistics": "each rank gathers them from its own batches",
}
"""Values that may differ between ranks (`ObservedObjects.replicas`), and why."""


Records = Sequence[Record | None]
"""The records of one run: one for each rank, None where there is nothing readable."""


@dataclass(frozen=True)
class BaselineComparison:
    """Compares with the baseline; differences between two plain runs are known to it."""

    baseline: Sequence[Record]
    """The record of each rank; of a single process, one."""
    ignore: tuple[frozenset[str], ...]
    """Paths of locals that differ between two equal runs, such as a stopwatch's, or are only printed."""
    shadow: Difference | None = None
    """The first difference of two plain runs: a row that differs no earlier has no cause of its own."""

    @classmethod
    def of(cls, baseline: Sequence[Record], again: Records) -> BaselineComparison:
        pairs = list(zip(baseline, again, strict=True))
        ignore = [harmless(a) | (frozenset() if b is None else unstable(a, b)) for a, b in pairs]
        judge = cls(baseline, tuple(ignore))
        return replace(judge, shadow=judge.difference([again]))

    @property
    def is_useless(self) -> bool:
        """True if two plain runs differ so early that no other row could prove anything."""
        return self.shadow is not None and _when(self.shadow) <= min(
            line.step for record in self.baseline for line in record.steps.values()
        )

    def row(self, check: Check, outcomes: Sequence[ProcessOutcome]) -> CheckRow:
        """Returns the row of `check` from its processes' `outcomes` (fewer than planned after a failure)."""
        if check.group == "replicas" and not check.does_not_apply:
            return self._replicas(check)
        if not outcomes:
            return CheckRow(check)
        judge, runs = self, [outcome.records for outcome in outcomes]
        if check.group == "world-sizes":
            judge = replace(self, baseline=[_of_all_ranks(self.baseline[0])], ignore=self.ignore[:1])
            runs = [[one and _of_all_ranks(one) for one in records[:1]] for records in runs]
        compared = min(steps_compared(a, *_segments(runs, rank)) for rank, a in enumerate(judge.baseline))
        difference = judge.difference(runs)
        failed = outcomes[-1].failure()  # the first to fail is the last to have run
        output = outcomes[-1].output(SHOWN_LINES) if failed else ""
        if failed and difference is not None and difference.place == "end":
            difference = None  # its failure says more than its missing end
        could_not = "" if difference or failed else _proves_nothing(outcomes, compared)
        known = None if check.group == "run-again" else self.shadow
        overshadowed = known is not None and difference is not None and _when(difference) >= _when(known)
        remark = _remark(self.baseline, outcomes)
        return CheckRow(check, compared, difference, failed, output, could_not, remark, overshadowed)

    def difference(self, runs: Sequence[Records]) -> Difference | None:
        """Returns the first difference of a run, of one or more processes or jobs, from the baseline."""
        found = []
        for rank, (baseline, ignore) in enumerate(zip(self.baseline, self.ignore, strict=True)):
            if segments := _segments(runs, rank):
                one = first_difference(baseline, *segments, ignore=ignore)
                found.append(one and (replace(one, rank=rank) if len(self.baseline) > 1 else one))
        return earliest(found)

    def runs(self, row: CheckRow, outcomes: Sequence[ProcessOutcome]) -> ComparedRuns | None:
        """Returns the first run and that of a row for a page; None for ranks compared with one another."""
        rank = (row.difference.rank if row.difference is not None else None) or 0
        segments = _segments([outcome.records for outcome in outcomes], rank)
        if row.check.group == "replicas" or not segments:
            return None
        first, other = self.baseline[rank], merge_segments(segments)
        if row.check.group == "world-sizes":
            first, other = _of_all_ranks(first), _of_all_ranks(other)
        shown = rank if len(self.baseline) > 1 else None
        names = "the first run", f"'{row.check.name}'"
        return ComparedRuns(names, (first, other), self.ignore[rank], shown)

    def _replicas(self, check: Check) -> CheckRow:
        first, *others = self.baseline
        facts: dict[str, Any] = (first.end or {}).get("replicas") or dict.fromkeys([*_LEGAL, "sharded"], ())
        components = ["optimizer"] if facts["sharded"] else []
        ignore = frozenset([*facts["statistics"], *facts["untrained"], *components])
        may_differ = frozenset(facts["overwritten"])
        found = [replica_difference(first, other, may_differ, ignore) for other in others]
        named = [one and replace(one, rank=rank, detail="from rank 0") for rank, one in enumerate(found, 1)]
        unequal = {path: None for other in others for path in unequal_leaves(first, other)}
        legal = {path: kind for kind in reversed(_LEGAL) for path in facts[kind]}
        remark = "; ".join(
            f"{shortened(paths)} may differ between two steps: {why}"
            for kind, why in _LEGAL.items()
            if (paths := [path for path in unequal if legal.get(path) == kind])
        )
        compared = min(steps_compared(first, other) for other in others)
        could_not = "" if compared else "no step was compared"
        return CheckRow(check, compared, earliest(named), could_not=could_not, remark=remark)


_OF_ONE_RANK = frozenset({"batch", "inputs", "loss", "eval", "output", "data", "memory"})
"""Components of a record that are those of a rank's own shards."""


def _of_all_ranks(record: Record) -> Record:
    """Returns rank 0's record without what another number of processes computes elsewhere."""

    def kept(line: RecordLine) -> RecordLine:
        values = {name: value for name, value in line.values.items() if name not in _OF_ONE_RANK}
        leaves = {name: value for name, value in line.leaves.items() if name not in _OF_ONE_RANK}
        return replace(line, values=values, leaves=leaves)

    steps = {key: kept(line) for key, line in record.steps.items()}
    return replace(record, initial=[kept(line) for line in record.initial], steps=steps)


def _when(difference: Difference) -> float:
    """Returns a number that orders differences in time: `step` is -1 before the first one."""
    return math.inf if difference.place == "end" else difference.step


def _segments(runs: Sequence[Records], rank: int) -> list[Record]:
    return [record for records in runs if (record := records[rank]) is not None]


def _remark(baseline: Sequence[Record], outcomes: Sequence[ProcessOutcome]) -> str:
    known = {_without_folders(note) for record in baseline for note in record.notes}
    found = []
    for outcome in outcomes:
        threads = outcome.process.threads
        for record in outcome.records:
            if record is None or record.end is None:
                continue
            own = [note for note in record.notes if not note.startswith(OUTSIDE)]
            found += [note for note in own if _without_folders(note) not in known]
            if threads is not None and record.end.get("threads", [threads])[-1:] not in ([], [threads]):
                found.append("no effect: the script sets its own number")
    return "; ".join(dict.fromkeys(found))


def _without_folders(note: str) -> str:
    """Returns a note without the folders of the paths in it: a check runs under another path."""
    return re.sub(r"/[^'\"]*/", "", note)


def _proves_nothing(outcomes: Sequence[ProcessOutcome], compared: int) -> str:
    for outcome in outcomes:
        kill = outcome.process.kill
        if kill is not None and not outcome.killed_as_planned:
            return f"the kill ({kill.description()}) did not hit a live run"
    resumed = (record for outcome in outcomes[1:] for record in outcome.records)
    if any(record is None or not record.resumed_from for record in resumed):
        return "a restart began anew instead of resuming"
    return "" if compared else "no step was compared"


def facts_of(record: Record, *others: Record) -> BaselineFacts:
    """Returns steps, ends of epochs, validations in a body, use of `Run`, workers, the switch's promise.

    `record` is that of rank 0, `others` those of the other ranks of a job.
    """
    lines = list(record.steps.values())
    end = record.end or {}
    return BaselineFacts(
        steps=tuple(sorted(line.step for line in lines)),
        epoch_firsts=frozenset(line.step for line in lines if line.batch_index == 0),
        epoch_lasts=frozenset({(line.loop, line.epoch): line.step for line in lines}.values()),
        validations=tuple(sorted(line.step for line in lines if "eval" in line.values)),
        uses_run=_uses_run(end),
        planned=end.get("planned"),
        loaders=end.get("loaders"),
        torch_loaders=end.get("torch_loaders", ()),
        other_loaders=", ".join(
            note.removesuffix(OWN_LOADERS) for note in end.get("notes", ()) if note.endswith(OWN_LOADERS)
        ),
        across=end.get("across"),
        avx512=end.get("environment", {}).get("cpu_capability") != "AVX2",
        ranks=1 + len(others),
        layout=end.get("layout", ""),
        unequal_replicas=_unequal_replicas(end),
    )


def _unequal_replicas(end: dict[str, Any]) -> str:
    replicas = end.get("replicas", {})
    if not replicas.get("ddp"):
        return "no DistributedDataParallel was called"
    if replicas["sharded"] and not _uses_run(end):
        return "ZeroRedundancyOptimizer exchanges parameters after the step of its own optimizer"
    return ""


def _uses_run(end: dict[str, Any]) -> bool:
    return any(seen.startswith("loop ") for seen in end.get("seen", ()))
