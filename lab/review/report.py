"""The result of the review: its exit status and verdict, as JSON, and as a table for a person."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lab.review.rows import ReviewRow, disagreements, evidence

SCHEMA = "samebits.review/1"
AS_PROMISED, DIFFERENT, COULD_NOT_RUN = 0, 1, 2
PLAIN_WIDTH = 100
"""Columns of a file or a pipe, which have no width of their own."""

_COLUMNS: tuple[tuple[str, Callable[[ReviewRow], bool]], ...] = (
    ("cases", lambda row: row.samples >= 0),
    ("vary from run to run", lambda row: row.runs is False),
    ("refused", lambda row: bool(row.refused)),
    ("differ over threads", lambda row: row.threads is False),
    ("not run", lambda row: bool(row.failed) or not (row.samples or row.refused)),
)


@dataclass(frozen=True)
class Review:
    """The result of `review`."""

    rows: tuple[ReviewRow, ...]
    settings: dict[str, Any]
    seconds: float
    environment: dict[str, Any]

    @cached_property
    def disagreements(self) -> list[str]:
        """Where this machine does what the op table says it does not. The table speaks of the switch being on."""
        rows = self.rows if self.settings["switch"] else ()
        if self.settings["across"] == "runs":
            rows = tuple(row for row in rows if row.threads is not False)
        return disagreements(rows)

    @property
    def exit(self) -> int:
        """0: as promised; 1: a run-to-run difference, a refusal or a disagreement; 2: none, but a case was not run."""
        if self.disagreements or any(row.runs is False or row.refused for row in self.rows):
            return DIFFERENT
        return COULD_NOT_RUN if any(row.failed for row in self.rows) else AS_PROMISED

    def verdict(self) -> str:
        """One sentence."""
        if self.exit == COULD_NOT_RUN:
            return "NOT KNOWN: some cases could not be run."
        if self.exit == DIFFERENT:
            return "NOT AS PROMISED on this machine: see the lines above."
        return "AS PROMISED on this machine."

    def to_json(self) -> str:
        """Everything, with the evidence that the op table takes from it."""
        content = {
            "schema": SCHEMA,
            "settings": self.settings,
            "environment": self.environment,
            "seconds": round(self.seconds, 1),
            "exit": self.exit,
            "verdict": self.verdict(),
            "disagreements": self.disagreements,
            **evidence(self.rows),
            "rows": [row.to_dict() for row in self.rows],
        }
        return json.dumps(content, indent=1) + "\n"

    def write_json(self, file: Path) -> None:
        """Writes `to_json` to `file`."""
        file.write_text(self.to_json(), encoding="utf-8")


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
    return notes
