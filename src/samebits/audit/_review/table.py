"""The result for a person: differences, a count per group, what was left out, the verdict."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from samebits.audit._review.report import AS_PROMISED, Review
from samebits.audit._review.row import ReviewRow

PLAIN_WIDTH = 100
"""Columns of a file or a pipe, which have no width of their own."""

_COLUMNS: tuple[tuple[str, Callable[[ReviewRow], bool]], ...] = (
    ("cases", lambda row: row.samples >= 0),
    ("vary from run to run", lambda row: row.runs is False),
    ("refused", lambda row: bool(row.refused)),
    ("differ over threads", lambda row: row.threads is False),
    ("not run", lambda row: bool(row.failed) or not (row.samples or row.refused)),
)


def show(review: Review) -> None:
    """Prints the result to standard output."""
    terminal = sys.stdout.isatty()
    console = Console(highlight=False, width=None if terminal else PLAIN_WIDTH)
    for row in review.rows:
        if not row.equal and (row.runs is not None or row.refused or row.failed):
            console.print(Text(f"{row.full_name}: {row.result()}"), soft_wrap=True)
    console.print(_table(review, box.ROUNDED if terminal else box.ASCII2))
    if review.disagreements:
        console.print("Where this machine and the op table disagree:")
    for line in review.disagreements:
        console.print(Text(f"  {line}"), soft_wrap=True)
    for note in _notes(review):
        console.print(Text(f"note: {note}", style="dim"), soft_wrap=not terminal)
    style = "bold green" if review.exit == AS_PROMISED else "bold red"
    console.print(Text(review.verdict(), style=style))


def _table(review: Review, borders: box.Box) -> Table:
    table = Table(box=borders)
    table.add_column("group")
    for title, _ in _COLUMNS:
        table.add_column(title, justify="right")
    for group in dict.fromkeys(row.group for row in review.rows):
        table.add_row(group, *_counts([row for row in review.rows if row.group == group]))
    table.add_section()
    table.add_row("all", *_counts(review.rows))
    return table


def _counts(rows: Sequence[ReviewRow]) -> list[str]:
    return [str(sum(map(counted, rows))) for _, counted in _COLUMNS]


def _notes(review: Review) -> list[str]:
    samples, left_out = sum(row.samples for row in review.rows), sum(row.left_out for row in review.rows)
    raised = sum(row.raised for row in review.rows)
    empty = [row.full_name for row in review.rows if not (row.samples or row.refused or row.failed)]
    notes = [f"{samples} inputs in {review.seconds:.0f} s; compiled cases at 1, 2 and 3 threads only"]
    if left_out or raised:
        notes.append(
            f"of OpInfo's samples {left_out} were left out, and {raised} raise for reasons of their own"
        )
    if empty:
        notes.append(f"no sample ran: {', '.join(empty)}")
    if review.not_run:
        notes.append(f"not run, the budget was spent: {', '.join(review.not_run)}")
    return notes
