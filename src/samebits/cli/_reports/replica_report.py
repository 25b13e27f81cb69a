"""A replica report for a person: a table of inputs and outputs, why something drifts, the verdict."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from samebits.replica import Report
from samebits.replica._capture.captured_step import CONSTANT, STATE

EXPLAINED = 3
"""Number of explanations to print; many values may drift for one reason. `--json` has them all."""


def show(report: Report) -> None:
    terminal = sys.stdout.isatty()
    console = Console(highlight=False, width=None if terminal else 10_000)
    rows = list(_rows(report))
    if terminal:
        console.print(_table(rows))
    else:
        widths = [max(len(row[column]) for row in rows) for column in range(5)]
        for row in rows:
            line = " ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            console.print(Text(line.rstrip()), soft_wrap=True)
    for one in report.findings:
        if not one.is_warning:
            console.print(Text(str(one), style="red"), soft_wrap=True)
    drifting = report.drifting
    for name in drifting[:EXPLAINED]:
        console.print(Text(report.explain_drift(name)), soft_wrap=True)
    if len(drifting) > EXPLAINED:
        more = f"and {len(drifting) - EXPLAINED} more: --json FILE explains each"
        console.print(Text(more), soft_wrap=True)
    for note in report.notes:
        console.print(Text(f"note: {note}", style="dim"), soft_wrap=True)
    console.print(_verdict(report))


def warn(report: Report) -> None:
    """Prints to standard error the inputs on which calls of one body disagree: no failure, but suspect."""
    console = Console(stderr=True, highlight=False)
    for one in report.findings:
        if one.is_warning:
            console.print(Text(f"samebits: replica: {one}", style="yellow"), soft_wrap=True)


def _rows(report: Report) -> Iterator[tuple[str, str, str, str, str]]:
    text, drifting = report.partitions.text, set(report.drifting)
    yield "value", "kind", "start", "end", "verdict"
    for name, kind in report.step.kinds.items():
        verdict = "DRIFTS" if name in drifting else "ok" if kind in {STATE, CONSTANT} else ""
        yield name, kind, text(report.starts[name].partition), text(report.ends[name].partition), verdict
    for name in report.step.output_names:
        yield name, "output", "", text(report.values[name].partition), ""


def _table(rows: list[tuple[str, str, str, str, str]]) -> Table:
    table = Table(*rows[0], box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    styles = {"ok": "green", "DRIFTS": "bold red"}
    for *cells, verdict in rows[1:]:
        table.add_row(*map(Text, cells), Text(verdict, style=styles.get(verdict, "")))
    return table


def _verdict(report: Report) -> Text:
    state = sum(kind in {STATE, CONSTANT} for kind in report.step.kinds.values())
    drifting = len(report.drifting)
    if drifting:
        return Text(f"{drifting} of {state} parameters, buffers and optimizer states drift", style="bold red")
    if any(one.kind == "hang" for one in report.findings):
        return Text("the step hangs", style="bold red")
    if not state:
        return Text(
            "nothing to hold equal: the step has no parameter, buffer or optimizer state", style="yellow"
        )
    return Text(
        f"all {state} parameters, buffers and optimizer states stay as equal as declared", style="bold green"
    )
