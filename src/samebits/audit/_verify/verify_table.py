"""The report for a person: a table, the final digest, the verdict. Plain text when not on a terminal."""

from __future__ import annotations

import sys

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from samebits.audit._verify.verify_report import ALL_EQUAL, CheckRow, VerifyReport

PLAIN_WIDTH = 80
"""Columns of a file or a pipe, which have no width of their own."""


def show(report: VerifyReport) -> None:
    """Prints the report to standard output."""
    terminal = sys.stdout.isatty()
    console = Console(highlight=False, width=None if terminal else PLAIN_WIDTH)
    console.print(_table(report, box.ROUNDED if terminal else box.ASCII2, console.width))
    good = report.exit == ALL_EQUAL
    failed = next((row for row in report.rows if row.output), None)
    if failed is not None:
        console.print(Text(f"output of '{failed.check.name}':\n{failed.output}", style="dim"), soft_wrap=True)
    for note in report.notes:
        console.print(Text(f"note: {note}", style="dim"), soft_wrap=not terminal)
    console.print(f"final model digest: {report.final}", soft_wrap=True)
    console.print(Text(report.verdict(), style="bold green" if good else "bold red"), soft_wrap=not terminal)


def _table(report: VerifyReport, borders: box.Box, width: int) -> Table:
    table = Table(box=borders)
    table.add_column("check", min_width=16, max_width=max(26, width // 4))
    table.add_column("varied", min_width=16)
    table.add_column("steps", justify="right", no_wrap=True)
    table.add_column("result", min_width=20, overflow="fold")
    for row in report.rows:
        compared = str(row.steps_compared) if row.steps_compared else "-"
        table.add_row(Text(row.check.name), Text(row.check.varied), compared, _result(row))
    return table


def _result(row: CheckRow) -> Text:
    style = {True: "green", False: "red", None: "yellow" if row.applies else "dim"}[row.equal]
    text = Text(row.result(), style=style if row.decides else "dim")
    return text.append(f" ({row.notes()})", style="dim") if row.notes() else text
