"""Measures one case: runs it again and again at several thread counts, and finds the op at fault where bytes differ."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch

from lab.catalogue.case import ReviewCase, Run
from lab.review.outcome import REPEATED_AT, Names, OpTrace, SampleDigests, at_fault, disturb, run_at
from lab.review.rows import RUNS, THREADS, ReviewRow
from samebits.errors import UnimplementedError

MOST_SAMPLES, MOST_SECONDS = 15, 5.0
"""The most samples of a case, evenly spaced, and the seconds after which none begins; the row counts the others."""
_CONTROLS = (1, 3)
"""Thread counts at which the ops of a case are compared one by one although its outputs are equal."""
_TRIES = 40
"""Runs in which an op that varies from run to run is looked for."""


def measure(case: ReviewCase) -> ReviewRow:
    """Runs `case` and says what was found. Its exceptions become part of the row; the thread count is restored."""
    row = ReviewRow(case.group, case.name, case.source)
    begin, cpu = time.monotonic(), time.process_time()
    with _threads_restored():
        try:
            runs = list(case.build())
            for number, run in enumerate(chosen := _evenly(runs)):
                if number and time.monotonic() - begin > MOST_SECONDS:
                    chosen = chosen[:number]
                    break
                _add(row, case, run)
            row.left_out = len(runs) - len(chosen)
        except Exception as error:
            _note(row, error)
    row.seconds, row.cpu_seconds = time.monotonic() - begin, time.process_time() - cpu
    return row


def _evenly(runs: list[Run]) -> list[Run]:
    if len(runs) <= MOST_SAMPLES:
        return runs
    return [runs[place * len(runs) // MOST_SAMPLES] for place in range(MOST_SAMPLES)]


def _add(row: ReviewRow, case: ReviewCase, run: Run) -> None:
    """Measures one sample of a case; one that raises is noted, and the others go on."""
    try:
        outcome = SampleDigests(run, case.repeats, case.counts)
    except Exception as error:
        _note(row, error)
        return
    row.samples += 1
    row.runs = row.runs is not False and outcome.runs_equal
    if outcome.runs_equal:
        row.threads = row.threads is not False and outcome.threads_equal
    if not outcome.threads_equal:
        row.only_nan = outcome.only_nan and (row.only_nan or not row.classes)
        row.classes = row.classes or outcome.classes()
    row.largest = max(row.largest, outcome.largest)
    if case.traced:
        _locate(row, case, run, outcome)


def _locate(row: ReviewRow, case: ReviewCase, run: Run, outcome: SampleDigests) -> None:
    """Names the overloads, and those that gave other outputs for equal inputs."""
    if not outcome.runs_equal:
        _blame(row, RUNS, run, [REPEATED_AT] * _TRIES)
    elif not outcome.threads_equal:
        _blame(row, THREADS, run, case.counts)
    elif case.source == "battery":
        _blame(row, THREADS, run, _CONTROLS)
    else:
        with Names() as names:
            run_at(run, 1)
        _add_names(row, names.seen)


def _blame(row: ReviewRow, what: str, run: Run, counts: Sequence[int]) -> None:
    first: OpTrace | None = None
    found: set[str] = set()
    for number, count in enumerate(counts):
        moved = disturb(number)
        with OpTrace() as trace:
            run_at(run, count)
        del moved
        if first is None:
            first = trace
            _add_names(row, (call.op for call in trace.calls))
        else:
            found |= at_fault(first.calls, trace.calls)
        if found and what == RUNS:
            break
    if found:
        row.at_fault[what] = sorted({*row.at_fault.get(what, ()), *found})
        if what == THREADS:  # also where rounding has hidden it in the outputs
            row.threads = False


def _add_names(row: ReviewRow, names: Iterable[str]) -> None:
    row.overloads = list(dict.fromkeys([*row.overloads, *names]))


def _note(row: ReviewRow, error: Exception) -> None:
    """A refusal says so; whatever else is raised is no result."""
    lines = str(error).strip().splitlines() or [""]
    text = f"{type(error).__name__}: {lines[0][:300]}"
    if isinstance(error, UnimplementedError) or "determinis" in str(error):
        row.refused = row.refused or text
    elif row.source != "battery":
        row.raised += 1
    else:
        row.failed = row.failed or text


@contextmanager
def _threads_restored() -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)
