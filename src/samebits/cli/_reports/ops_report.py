"""The op table for a person: counts, then one table per verdict. Plain lines, one for each row, where it is no terminal."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from samebits.determinism._reviewed_schemas import exists
from samebits.determinism.table import Entry, reviewed
from samebits.determinism.table._verdict_names import (
    ALTERNATIVE,
    DETERMINISTIC,
    DEVICES,
    EVIDENCE,
    MACHINE,
    NOT_REVIEWED,
    REFUSED,
    SERIAL,
    VARIES,
    VERDICTS,
)
from samebits.determinism.table._verdicts import COMPOSITE

_STYLES = {
    NOT_REVIEWED: "bold red",
    REFUSED: "red",
    VARIES: "bold red",
    ALTERNATIVE: "green",
    SERIAL: "yellow",
}
_CHANGE = "bits change with the thread count"
_THREADS = f"deterministic, but {_CHANGE}"
_ATTENTION = (NOT_REVIEWED, VARIES, REFUSED, SERIAL, ALTERNATIVE)


@dataclass(frozen=True)
class _VerdictGroup:
    """Overloads with the same verdict for the same reason."""

    device: str
    heading: str
    ops: str
    evidence: str
    reason: str
    machine: str


def show(everything: Sequence[Entry], chosen: Sequence[Entry], *, list_all: bool) -> None:
    """Prints the counts of `everything`; then all of `chosen` if `list_all`, else what needs attention."""
    terminal = sys.stdout.isatty()
    console = Console(highlight=False, width=None if terminal else 10_000)
    _summary(console, everything)
    shown = [_line(entry) for entry in chosen] if list_all else list(_attention(everything))
    (_tables if terminal else _plain)(console, shown)
    if list_all:
        console.print(f"{len(chosen)} of {len(everything)} entries")
    else:
        _rest(console, everything)


def _summary(console: Console, everything: Sequence[Entry]) -> None:
    overloads = len(everything) // len(DEVICES)
    console.print(
        f"{overloads} aten overloads, reviewed with torch {reviewed().torch} (this is {torch.__version__}); "
        "verdicts with the switch on:"
    )
    missing = sorted({entry.op for entry in everything if not exists(entry.op)})
    if missing:
        console.print(f"not in this torch: {', '.join(missing)}", soft_wrap=True)
    counts = Counter((entry.verdict, entry.device) for entry in everything)
    for verdict in VERDICTS:
        _counts(console, verdict, [counts[verdict, device] for device in DEVICES])
    for kind in MACHINE:
        _counts(
            console, f"machine_invariant: {kind}", [sum(entry.machine == kind for entry in everything), 0]
        )
    nobody = Counter(entry.device for entry in everything if entry.evidence == "none")
    _counts(console, 'evidence "none": nobody looked', [nobody[device] for device in DEVICES])


def _counts(console: Console, title: str, counts: Sequence[int]) -> None:
    if any(counts):
        console.print(
            f"  {title:32}" + "".join(f"  {device} {n:4}" for device, n in zip(DEVICES, counts, strict=True))
        )


def _attention(everything: Sequence[Entry]) -> Iterator[_VerdictGroup]:
    """Yields a line for each reason, for any number of ops; composites are as bad as the ops that they call."""
    groups: dict[tuple[str, ...], list[Entry]] = {}
    for entry in everything:
        if entry.rule != COMPOSITE and _heading(entry) in (*_ATTENTION, _THREADS):
            groups.setdefault((entry.device, _heading(entry), entry.reason), []).append(entry)
    return (_merge(group) for group in groups.values())


def _merge(group: Sequence[Entry]) -> _VerdictGroup:
    rows = reviewed().rows
    names = (entry.op.removeprefix("aten::") for entry in group)
    functional = dict.fromkeys(rows[name].form_of if name in rows else name for name in names)
    evidence = sorted({entry.evidence for entry in group if not entry.measured_as}, key=EVIDENCE.index)
    return _line(group[0], ", ".join(functional), ", ".join(evidence))


def _line(entry: Entry, ops: str = "", evidence: str = "") -> _VerdictGroup:
    name = entry.op.removeprefix("aten::")
    heading = _heading(entry)
    reason = entry.reason.removesuffix(f"; {_CHANGE}") if heading == _THREADS else entry.reason
    return _VerdictGroup(
        entry.device, heading, ops or name, evidence or entry.evidence, reason, entry.machine
    )


def _heading(entry: Entry) -> str:
    return _THREADS if entry.verdict == DETERMINISTIC and entry.threads == "varies" else entry.verdict


def _sections(lines: Sequence[_VerdictGroup]) -> Iterator[tuple[str, str, list[_VerdictGroup]]]:
    for heading in (*_ATTENTION, _THREADS, *(word for word in VERDICTS if word not in _ATTENTION)):
        for device in DEVICES:
            section = [line for line in lines if (line.heading, line.device) == (heading, device)]
            if section:
                yield heading, device, section


def _tables(console: Console, lines: Sequence[_VerdictGroup]) -> None:
    for heading, device, section in _sections(lines):
        console.print(Text(f"\n{device}: {heading}", style=_STYLES.get(heading, "bold")))
        table = Table(box=box.SIMPLE_HEAD, expand=True, show_edge=False, padding=(0, 1, 0, 0))
        table.add_column("op", ratio=4, overflow="fold")
        table.add_column("evidence", width=8)
        table.add_column("any CPU", width=8)
        table.add_column("reason", ratio=5)
        for line in section:
            table.add_row(Text(line.ops), Text(line.evidence), Text(line.machine), Text(line.reason))
        console.print(table)


def _plain(console: Console, lines: Sequence[_VerdictGroup]) -> None:
    for _, _, section in _sections(lines):
        for line in section:
            words = (f"{line.device:4}", line.heading, line.ops, f"[{line.evidence}]", line.reason)
            words += (f"[any CPU: {line.machine}]",) if line.machine else ()
            console.print(Text("  ".join(words)), soft_wrap=True)


def _rest(console: Console, everything: Sequence[Entry]) -> None:
    composite = sum(
        entry.rule == COMPOSITE and _heading(entry) in (*_ATTENTION, _THREADS) for entry in everything
    )
    if composite:
        console.print(f"{composite} entries of composite ops, which call one of these, are not listed.")
    console.print(
        "All: samebits ops --all. One: samebits ops --op sum. On this machine: samebits ops --review."
    )
