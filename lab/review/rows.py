"""The result of one case, and what rows say about single overloads: evidence for the op table, and its errors on this machine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from lab.catalogue.elementwise import functional_form, names
from samebits.determinism.table import Entry, lookup
from samebits.determinism.table._verdict_names import ALTERNATIVE, OVER_THREADS, SERIAL
from samebits.errors import InvalidArgumentError

RUNS, THREADS = "runs", "threads"


@dataclass
class ReviewRow:
    """One case: equal from run to run, equal over thread counts, or why neither is known."""

    group: str
    name: str
    source: str = "battery"
    runs: bool | None = None
    """Whether repeated runs at the same thread count gave the same bytes; None when it could not be run."""
    threads: bool | None = None
    """Whether all thread counts gave the same bytes; None when already two runs at one count do not."""
    only_nan: bool = False
    """Whether what differs over thread counts is the bits of a NaN only, which no op promises."""
    classes: str = ""
    """Thread counts that agree, as `1 | 2 4 | 3 | 8`."""
    largest: float = 0.0
    """The largest difference, relative to the largest value."""
    refused: str = ""
    """The message of the error that refuses the op under the switch."""
    failed: str = ""
    """Why there is no result: an exception, a crash, a time-out."""
    overloads: list[str] = field(default_factory=list)
    """The overloads that the case dispatched, as `aten::sum.dim_IntList`."""
    at_fault: dict[str, list[str]] = field(default_factory=dict)
    """`runs` and `threads`: overloads that gave other outputs for equal inputs."""
    samples: int = 0
    """How many inputs were run."""
    left_out: int = 0
    """Samples of OpInfo beyond the number that is run."""
    raised: int = 0
    """Samples of OpInfo that raise for a reason of their own."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def full_name(self) -> str:
        """As `Case.full_name`."""
        return f"{self.group}: {self.name}"

    @property
    def equal(self) -> bool:
        """Returns True if all that was run gave the same bytes."""
        return bool(self.runs and self.threads) and not (self.refused or self.failed)

    def result(self) -> str:
        """A few words."""
        if self.failed:
            return f"FAILED {self.failed}"
        if self.refused:
            return f"REFUSED {self.refused}"
        if self.runs is False:
            return f"VARIES from run to run ({self.largest:.0e}){self._ops(RUNS)}"
        if self.threads is False:
            what = "in the bits of a NaN" if self.only_nan else f"({self.largest:.0e})"
            return f"DIFFERS over threads {self.classes} {what}{self._ops(THREADS)}"
        return "equal" if self.runs else "nothing to compare"

    def _ops(self, what: str) -> str:
        return f" in {', '.join(self.at_fault[what])}" if self.at_fault.get(what) else ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


EQUAL, VARIES = "equal", "varies"
_PROMISED_OVER_THREADS = (OVER_THREADS, ALTERNATIVE, SERIAL)


def evidence(rows: Iterable[ReviewRow]) -> dict[str, Any]:
    """The file that `tools/op_table/update.py` reads.

    An op is `equal` where every case that dispatched it and was equal says so; in a case that differs only the ops
    that gave other outputs for equal inputs are named. OpInfo's samples are too small to say anything of threads, and
    of an elementwise op only its case of `tails` could have differed. `cases` are those that say so of threads.
    """
    found: dict[str, dict[str, Any]] = {}
    # what large tensors say counts first, and it does not count which worker was ready first
    for row in sorted(rows, key=lambda row: (row.source == "opinfo", row.full_name)):
        source = "opinfo" if row.source == "opinfo" else "battery"
        if row.equal:
            for op in row.overloads:
                line = found.setdefault(op, {"source": source, RUNS: EQUAL})
                if source == "battery" and _could_differ(row, op.removeprefix("aten::")):
                    line.setdefault(THREADS, EQUAL)
                    line.setdefault("cases", []).append(row.full_name)
        for what in (RUNS,) if row.only_nan else (RUNS, THREADS):
            for op in row.at_fault.get(what, ()):
                found.setdefault(op, {"source": source, RUNS: EQUAL}).update({what: VARIES})
    return {"torch": torch.__version__.split("+")[0], "overloads": dict(sorted(found.items()))}


def _could_differ(row: ReviewRow, op: str) -> bool:
    return row.name == functional_form(op) if row.source == "tails" else functional_form(op) not in names()


def disagreements(rows: Iterable[ReviewRow]) -> list[str]:
    """One line for each case where this machine does what the table says it does not; run with the switch on."""
    return [line for row in rows for line in _of_row(row)]


def _of_row(row: ReviewRow) -> Iterable[str]:
    if row.refused:
        yield f"{row.full_name}: refused: {row.refused}"
    if row.runs is False:
        blamed = row.at_fault.get(RUNS, [])
        entries = [entry for op in blamed if (entry := _entry(op)) is not None]
        if not blamed or any(entry.deterministic for entry in entries):
            yield f"{row.full_name}: varies from run to run{_verdicts(entries)}"
    if row.threads is False and not row.only_nan:
        blamed = row.at_fault.get(THREADS, [])
        entries = [entry for op in blamed if (entry := _entry(op)) is not None]
        if not blamed or any(promises_threads(entry) for entry in entries):
            yield f"{row.full_name}: differs over threads {row.classes}{_verdicts(entries)}"


def promises_threads(entry: Entry) -> bool:
    """Returns True if the table promises that the op has the same bits at any thread count."""
    return entry.verdict in _PROMISED_OVER_THREADS and entry.threads != VARIES


def _verdicts(entries: list[Entry]) -> str:
    return "".join(f"; {entry.op}: {entry.verdict}" for entry in entries)


def _entry(op: str) -> Entry | None:
    try:
        return lookup(op, "cpu")
    except InvalidArgumentError:  # not of aten
        return None
