"""Rows of the op table: every chosen overload, or one row for those that share verdict and reason."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from samebits.determinism._reviewed_schemas import exists
from samebits.determinism.table import Entry, refused_parts, reviewed
from samebits.determinism.table._verdict_names import (
    ALTERNATIVE,
    DETERMINISTIC,
    DEVICES,
    EVIDENCE,
    NOT_REVIEWED,
    REFUSED,
    SERIAL,
    VARIES,
    VERDICTS,
)

_STYLES = {
    NOT_REVIEWED: "bold red",
    REFUSED: "red",
    VARIES: "bold red",
    ALTERNATIVE: "green",
    SERIAL: "yellow",
}
_CHANGE = "bits change with the thread count"
_THREADS = f"deterministic, but {_CHANGE}"
_FIRST = (NOT_REVIEWED, VARIES, REFUSED, SERIAL, ALTERNATIVE)


@dataclass(frozen=True)
class _TableRow:
    """One overload, or several with the same verdict for the same reason."""

    device: str
    heading: str
    ops: str
    evidence: str
    machine: str
    reason: str


def show(chosen: Sequence[Entry]) -> None:
    _print([_row([entry]) for entry in chosen], len(chosen))


def show_groups(chosen: Sequence[Entry]) -> None:
    """Prints a row for the entries of equal device, verdict, kind (`across="machines"`) and reason."""
    groups: dict[tuple[str, ...], list[Entry]] = {}
    for entry in chosen:
        groups.setdefault((entry.device, _heading(entry), entry.machine, _reason(entry)), []).append(entry)
    _print([_row(group) for group in groups.values()], len(chosen))


def _print(rows: Sequence[_TableRow], entries: int) -> None:
    terminal = sys.stdout.isatty()
    console = Console(highlight=False, width=None if terminal else 10_000)
    console.print(f"the op table of torch {reviewed().torch} (this is torch {torch.__version__})")
    (_tables if terminal else _plain)(console, rows)
    console.print(f"{entries} entries; docs/reference/ops.md says what the words mean")


def _row(group: Sequence[Entry]) -> _TableRow:
    first, rows = group[0], reviewed().rows
    names = [entry.op.removeprefix("aten::") for entry in group]
    missing = "" if all(exists(entry.op) for entry in group) else " (not in this torch)"
    names = [rows[name].form_of if name in rows and rows[name].form_of in names else name for name in names]
    evidence = sorted({entry.evidence for entry in group}, key=EVIDENCE.index)
    ops = ", ".join(dict.fromkeys(names)) + missing
    return _TableRow(first.device, _heading(first), ops, ", ".join(evidence), first.machine, _reason(first))


def _reason(entry: Entry) -> str:
    reason = entry.reason.removesuffix(f"; {_CHANGE}") if _heading(entry) == _THREADS else entry.reason
    refused = refused_parts(entry.op) if entry.device == "cpu" else ()
    return f"{reason}; any CPU: calls {', '.join(refused)}, refused" if refused else reason


def _heading(entry: Entry) -> str:
    return _THREADS if entry.verdict == DETERMINISTIC and entry.threads == "varies" else entry.verdict


def _sections(rows: Sequence[_TableRow]) -> Iterator[tuple[str, str, list[_TableRow]]]:
    for heading in (*_FIRST, _THREADS, *(word for word in VERDICTS if word not in _FIRST)):
        for device in DEVICES:
            section = [row for row in rows if (row.heading, row.device) == (heading, device)]
            if section:
                yield heading, device, section


def _tables(console: Console, rows: Sequence[_TableRow]) -> None:
    for heading, device, section in _sections(rows):
        console.print(Text(f"\n{device}: {heading}", style=_STYLES.get(heading, "bold")))
        table = Table(box=box.SIMPLE_HEAD, expand=True, show_edge=False, padding=(0, 1, 0, 0))
        table.add_column("op", ratio=4, overflow="fold")
        table.add_column("evidence", width=8)
        table.add_column("any CPU", width=8)
        table.add_column("reason", ratio=5)
        for row in section:
            table.add_row(Text(row.ops), Text(row.evidence), Text(row.machine), Text(row.reason))
        console.print(table)


def _plain(console: Console, rows: Sequence[_TableRow]) -> None:
    for _, _, section in _sections(rows):
        for row in section:
            words = (f"{row.device:4}", row.heading, row.ops, f"[{row.evidence}]", row.reason)
            words += (f"[any CPU: {row.machine}]",) if row.machine else ()
            console.print(Text("  ".join(words)), soft_wrap=True)
