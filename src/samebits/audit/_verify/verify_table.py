"""The report for a person: a table, what does not apply, notes, the final digest, the verdict.

On a terminal it has the terminal's width; in a file or a pipe it is plain text.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from samebits.arithmetic import BITS
from samebits.audit._verify.verify_report import ALL_EQUAL, CheckRow, VerifyReport, in_parentheses

PLAIN_WIDTH = 100
"""Columns of a file or a pipe, which have no width of their own."""


def show(report: VerifyReport) -> None:
    terminal = sys.stdout.isatty()
    console = Console(highlight=False, width=None if terminal else PLAIN_WIDTH)
    console.print(_table(report, box.ROUNDED if terminal else box.ASCII2))
    good = report.exit == ALL_EQUAL
    failed = next((row for row in report.rows if row.output), None)
    if failed is not None:
        console.print(Text(f"output of '{failed.check.name}':\n{failed.output}", style="dim"), soft_wrap=True)
    for line in lines_below(report):
        console.print(Text(line, style="dim"), soft_wrap=not terminal)
    console.print(f"final model digest: {report.final}{bits_version(report)}", soft_wrap=True)
    console.print(Text(report.verdict(), style="bold green" if good else "bold red"), soft_wrap=not terminal)
    if report.found is not None:
        console.print(Text(report.found.sentence(), style="bold"), soft_wrap=not terminal)
        for line in report.found.lines():
            console.print(Text(line), soft_wrap=not terminal)


def bits_version(report: VerifyReport) -> str:
    """Returns the version of the bits, where they are those of `samebits.arithmetic`."""
    across = report.environment.get("op_determinism", {}).get("across", "runs")
    return "" if across == "runs" else f" (samebits.arithmetic.BITS = {BITS})"


def _table(report: VerifyReport, borders: box.Box) -> Table:
    """Returns a table of the rows that apply, as wide as the console."""
    table = Table(box=borders, expand=True)
    table.add_column("check", ratio=3, min_width=16)
    table.add_column("varied", ratio=4, min_width=16)
    table.add_column("steps", justify="right", no_wrap=True)
    table.add_column("result", ratio=3, min_width=16, overflow="fold")
    for row in report.rows:
        if row.applies:
            compared = str(row.steps_compared) if row.steps_compared else "-"
            table.add_row(Text(row.check.name), Text(row.check.varied), compared, _result(row))
    return table


def _result(row: CheckRow) -> Text:
    style = {True: "green", False: "red", None: "yellow"}[row.equal]
    return Text(row.result(), style=style if row.decides else "dim")


def lines_below(report: VerifyReport) -> Iterator[str]:
    """Yields what does not apply, in one line, and each note once, with the checks that it is about."""
    if idle := report.not_applying():
        yield f"does not apply: {in_parentheses(idle)}"
    about: dict[str, list[str]] = {}
    for row in report.rows:
        for note in row.notes() if row.applies else ():
            about.setdefault(note, []).append(row.check.name)
    for note, names in about.items():
        yield f"note: {', '.join(names)}: {note}"
    for note in report.notes:
        yield f"note: {note}"
