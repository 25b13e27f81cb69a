"""The progress bar of every command: on standard error, so that standard output has the result alone."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

import rich.progress
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

LINE_EVERY_S = 10.0
"""Seconds between the lines of a log, which has no bar."""


class Progress:
    """A bar on a terminal; elsewhere, a line now and then.

    Args:
        description: the name of the work, beside the bar.
        unit: the things counted, in the lines of a log ("runs ended"). Empty: a log gets no lines.
        shown: False: no bar and no such lines; `say` still prints.

    Example:
        >>> with Progress("MB of commits read") as progress:
        ...     list_commits("runs/digits", verify=True, on_progress=progress.update)
    """

    def __init__(self, description: str, unit: str = "", *, shown: bool = True) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        on_terminal = shown and self._console.is_terminal
        self._bar = rich.progress.Progress(
            *columns, console=self._console, transient=True, disable=not on_terminal
        )
        self._task = self._bar.add_task(description, total=None)
        self._log_unit = unit if shown and not on_terminal else ""
        self._done, self._total, self._last_line = 0, 0, time.monotonic()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def update(self, done: int, total: int) -> None:
        self._done, self._total = done, total
        self._bar.update(self._task, completed=done, total=total)
        now = time.monotonic()
        if self._log_unit and now - self._last_line > LINE_EVERY_S:
            self._last_line = now
            self.say(f"{done} of {total} {self._log_unit}")

    def expect_more(self, number: int) -> None:
        self._total += number
        self._bar.update(self._task, total=self._total)

    def advance(self) -> None:
        """Shows that one more is done."""
        self.update(self._done + 1, self._total)

    def describe(self, description: str) -> None:
        """Changes the text beside the bar."""
        self._bar.update(self._task, description=description)

    def say(self, line: str) -> None:
        self._console.print(line, markup=False)
