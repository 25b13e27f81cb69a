"""What a person sees while the review runs: a bar, or plain lines when not on a terminal; standard error."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from samebits.audit.review.row import Row

LINE_EVERY_S = 10.0
"""How often a log, which has no bar, gets a line."""


class ReviewProgress:
    """A bar, and a line for each case that is not equal; with `each_line` for every case."""

    def __init__(self, *, each_line: bool = False) -> None:
        self._each_line = each_line
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=self._console, transient=True)
        self._task = self._bar.add_task("cases", total=None)
        self._ended, self._total, self._last_line = 0, 0, time.monotonic()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def expect_more(self, cases: int) -> None:
        """So many more cases will run."""
        self._total += cases
        self._bar.update(self._task, total=self._total)

    def ended(self, row: Row) -> None:
        """A case ended."""
        self._ended += 1
        self._bar.update(self._task, completed=self._ended, description=row.group)
        if self._each_line or (not row.equal and (row.runs is not None or row.refused or row.failed)):
            self.say(f"{row.full_name:<60} {row.result()}  ({row.seconds:.1f} s)")
        now = time.monotonic()
        if not self._console.is_terminal and now - self._last_line > LINE_EVERY_S:
            self._last_line = now
            self.say(f"{self._ended} of {self._total} cases ended")

    def say(self, line: str) -> None:
        """Prints a line above the bar."""
        self._console.print(line, markup=False)
