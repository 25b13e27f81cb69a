"""The evidence of the rows about single overloads, for the op table, and the errors of the table on this machine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from lab.catalogue.elementwise import functional_form, names
from lab.review.row import RUNS, THREADS, ReviewRow
from samebits.determinism.table import Entry, lookup
from samebits.determinism.table._verdict_names import ALTERNATIVE, OVER_THREADS, SERIAL
from samebits.errors import InvalidArgumentError

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
