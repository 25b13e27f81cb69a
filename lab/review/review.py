"""The review: every case of the battery and of OpInfo on this machine, in processes of their own."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.catalogue.battery import BATTERY
from lab.catalogue.sources import SOURCES
from lab.review.report import Review
from lab.review.rows import ReviewRow
from lab.review.worker import ReviewWorker, WorkerError
from samebits._context import Across
from samebits._progress import Progress
from samebits.audit._verify.child_processes import run_until_signalled, scratch_folder
from samebits.determinism import environment_fingerprint
from samebits.errors import InvalidArgumentError

NAMES = [case.full_name for case in BATTERY]
CASE_LIMIT_S = 300.0
"""A case that takes longer is ended; its row says so."""


def review(
    *,
    switch: bool = True,
    across: Across = "threads",
    only: Sequence[str] = (),
    sources: Sequence[str] = SOURCES,
    jobs: int | None = None,
    each_line: bool = False,
) -> Review:
    """Measures every case whose full name contains one of `only` (all when it is empty), `jobs` at a time.

    This process measures nothing itself: its threads, generators and switch stay as they are.

    Args:
        switch: the workers call `enable_op_determinism(across=across)` first.
        across: as in `enable_op_determinism`.
        only: parts of full names as `reductions: sum all [float32]`.
        sources: which of `battery` and `opinfo`.
        jobs: worker processes at the same time; one per core, at most two, when None.
        each_line: a line on standard error for every case.

    Raises:
        InvalidArgumentError: no case has such a name.
        SignalledError: this process was told to end; the workers have ended.
    """
    settings = {"switch": switch, "across": across}
    with scratch_folder() as scratch, Progress("cases", "cases") as progress:
        work = _Work(settings, scratch, tuple(only), progress, deque(sources), each_line)
        begin = time.monotonic()
        run_until_signalled(work.run(jobs or min(2, os.cpu_count() or 1)))
    if not work.rows:
        raise InvalidArgumentError(f"No case's name contains {' or '.join(map(repr, only))}.")
    return Review(
        rows=tuple(work.rows),
        settings=settings,
        seconds=time.monotonic() - begin,
        environment=environment_fingerprint(),
    )


@dataclass
class _Work:
    """One review under way: sources still to be listed, cases still to be measured."""

    settings: dict[str, Any]
    scratch: Path
    only: tuple[str, ...]
    progress: Progress
    sources: deque[str]
    each_line: bool
    cases: deque[str] = field(default_factory=deque)
    rows: list[ReviewRow] = field(default_factory=list)
    listing: int = 0

    async def run(self, jobs: int) -> None:
        await asyncio.gather(*(self._work(number) for number in range(jobs)))

    async def _work(self, number: int) -> None:
        folder = self.scratch / f"worker{number}"
        folder.mkdir()
        async with ReviewWorker(self.settings, folder, CASE_LIMIT_S) as worker:
            while self.sources or self.cases or self.listing:
                if self.sources:
                    await self._list(worker, self.sources.popleft())
                elif self.cases:
                    await self._measure(worker, self.cases.popleft())
                else:
                    await asyncio.sleep(0.05)  # another worker is listing what there is to do

    async def _list(self, worker: ReviewWorker, source: str) -> None:
        self.listing += 1
        try:
            # OpInfo takes 5 s to import
            names = NAMES if source == "battery" else await worker.ask("list", source)
        except WorkerError as error:
            self._ended(ReviewRow(source, "(all)", source, failed=str(error)))
            return
        finally:
            self.listing -= 1
        mine = [name for name in names if not self.only or any(part in name for part in self.only)]
        self.progress.expect_more(len(mine))
        self.cases.extend(mine)

    async def _measure(self, worker: ReviewWorker, name: str) -> None:
        try:
            row = ReviewRow(**await worker.ask("measure", name))
        except WorkerError as error:
            group, _, short = name.partition(": ")
            row = ReviewRow(group, short, failed=str(error))
        self._ended(row)

    def _ended(self, row: ReviewRow) -> None:
        self.rows.append(row)
        self.progress.describe(row.group)
        self.progress.advance()
        if self.each_line or (not row.equal and (row.runs is not None or row.refused or row.failed)):
            self.progress.say(f"{row.full_name:<60} {row.result()}  ({row.seconds:.1f} s)")
