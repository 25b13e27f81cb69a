"""The verdict of a check from its outcomes: equal, the first difference, or no proof."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from samebits.audit._diff.first_difference import (
    Difference,
    Record,
    first_difference_of_segments,
    harmless,
    unstable,
)
from samebits.audit._verify.check_plan import Check
from samebits.audit._verify.check_process import ProcessOutcome
from samebits.audit._verify.verify_report import CheckRow

SHOWN_LINES = 12
"""Lines of a failed process's output that are shown."""


@dataclass(frozen=True)
class BaselineComparison:
    """Compares with the baseline; differences between two plain runs are known to it."""

    baseline: Record
    ignore: frozenset[str]
    """Paths of local variables that differ between two equal runs, such as a stopwatch's, or that are printed only."""
    shadow: Difference | None
    """The first difference of two plain runs: a row that differs no earlier has no cause of its own."""

    @classmethod
    def of(cls, baseline: Record, again: Record | None) -> BaselineComparison:
        """Returns the comparison for a baseline and its repeat."""
        if again is None:
            return cls(baseline, harmless(baseline), None)
        ignore = unstable(baseline, again) | harmless(baseline)
        return cls(baseline, ignore, first_difference_of_segments(baseline, [again], ignore=ignore))

    @property
    def is_useless(self) -> bool:
        """True if two plain runs differ so early that no other row could prove anything."""
        return self.shadow is not None and _when(self.shadow) <= min(
            line.step for line in self.baseline.steps.values()
        )

    def row(self, check: Check, outcomes: Sequence[ProcessOutcome]) -> CheckRow:
        """Returns the row of `check`, whose processes ended with `outcomes` (fewer than planned after a failure)."""
        if not outcomes:
            return CheckRow(check)
        segments = [outcome.record for outcome in outcomes if outcome.record is not None]
        compared = _steps_compared(self.baseline, segments)
        difference = self.difference(segments)
        failed = outcomes[-1].failure()  # the first to fail is the last to have run
        output = outcomes[-1].ended.tail(SHOWN_LINES) if failed else ""
        if failed and difference is not None and difference.place == "end":
            difference = None  # its failure says more than its missing end
        could_not = "" if difference or failed else _proves_nothing(outcomes, compared)
        overshadowed = self._is_overshadowed(check, difference)
        remark = _remark(self.baseline, outcomes)
        return CheckRow(check, compared, difference, failed, output, could_not, remark, overshadowed)

    def difference(self, segments: list[Record]) -> Difference | None:
        """Returns the first difference of a run's records, of one or more processes, from the baseline."""
        if not segments:
            return None
        return first_difference_of_segments(self.baseline, segments, ignore=self.ignore)

    def _is_overshadowed(self, check: Check, difference: Difference | None) -> bool:
        if self.shadow is None or difference is None or check.group == "run-again":
            return False
        return _when(difference) >= _when(self.shadow)


def with_cause(row: CheckRow, difference: Difference) -> CheckRow:
    """Returns the row of "run again" after another row showed its cause."""
    return replace(row, difference=difference)


def _when(difference: Difference) -> float:
    """Returns a number that orders differences in time: `step` is -1 before the first one."""
    return math.inf if difference.place == "end" else difference.step


def _steps_compared(baseline: Record, segments: Sequence[Record]) -> int:
    seen = {key for segment in segments for key in segment.steps}
    return len(seen & baseline.steps.keys())


def _remark(baseline: Record, outcomes: Sequence[ProcessOutcome]) -> str:
    found = []
    for outcome in outcomes:
        record, threads = outcome.record, outcome.process.threads
        if record is None or record.end is None:
            continue
        found += [note for note in record.notes if note not in baseline.notes]
        if threads is not None and record.end.get("threads", [threads])[-1:] not in ([], [threads]):
            found.append("no effect: the script sets its own number")
    return "; ".join(dict.fromkeys(found))


def _proves_nothing(outcomes: Sequence[ProcessOutcome], compared: int) -> str:
    for outcome in outcomes:
        kill = outcome.process.kill
        if kill is not None and not outcome.killed_as_planned:
            return f"the kill ({kill.description()}) did not hit a live run"
    if any(outcome.record is None or not outcome.record.resumed_from for outcome in outcomes[1:]):
        return "a restart began anew instead of resuming"
    return "" if compared else "no step was compared"
