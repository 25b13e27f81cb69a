"""What a person sees while `verify` runs: an estimate, then a bar (plain lines when not on a terminal)."""

from __future__ import annotations

import math
import shlex
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

LINE_EVERY_S = 10.0
"""How often a log, which has no bar, gets a line."""


class VerifyProgress:
    """Writes to standard error, so that standard output holds the table alone."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=self._console, transient=True)
        self._task = self._bar.add_task("baseline", total=None)
        self._ended, self._total, self._last_line = 0, 0, 0.0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def begin(self, command: tuple[str, ...], seed: int) -> None:
        """The baseline of `command` starts; `seed` draws the kills."""
        self.say(f"verifying: {shlex.join(command)}   (--seed {seed})")

    def planned(self, seconds: float, steps: int, processes: int, jobs: int) -> None:
        """The baseline took `seconds` for `steps`; so many processes are still to run, `jobs` at a time."""
        self.expect_more(processes)
        estimate = math.ceil(seconds * processes / jobs)
        each = "" if jobs == 1 else f", {jobs} at a time"
        self.say(
            f"baseline {seconds:.1f} s, {steps} steps; {processes} more run{'' if processes == 1 else 's'}{each}, about {estimate} s"
        )

    def expect_more(self, processes: int) -> None:
        """So many more processes will run."""
        self._total += processes
        self._bar.update(self._task, description="checks", total=self._total)

    def one_ended(self) -> None:
        """A process ended."""
        self._ended += 1
        self._bar.update(self._task, completed=self._ended)
        now = time.monotonic()
        if not self._console.is_terminal and now - self._last_line > LINE_EVERY_S:
            self._last_line = now
            self.say(f"{self._ended} of {self._total} run{'' if self._total == 1 else 's'} ended")

    def say(self, line: str) -> None:
        """Prints a line above the bar."""
        self._console.print(line, markup=False)
