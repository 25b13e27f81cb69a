"""Runs the parts one after the other, each in its own processes: a fault of the device ends a process, not the check."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from samebits.selfcheck import parts, worker
from samebits.selfcheck.report import PartOutcome, SelfcheckReport, finished_cases, running_case

Watch = Callable[[PartOutcome], None]
"""Called when a part has advanced, and when it has ended."""

_POLL_S = 0.2
_SPARE_S = 20.0
"""A case's process is ended this long after the case's limit, if it does not end by itself: a hung device keeps its signals."""


class Clock:
    """The time that is left."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    def left(self) -> float:
        """Returns seconds; negative when the time is over."""
        return self._until - time.monotonic()


def run(
    report: SelfcheckReport, names: Iterable[str], seconds: float, watch: Watch, *, device: str = "cuda"
) -> SelfcheckReport:
    """Runs the cases that the report does not have yet; when the time is over, the rest stays for the next call.

    Files of the folder: `report.json`, `output.txt` (what the processes printed) and, while a part runs, `running.jsonl`.
    """
    report.folder.mkdir(parents=True, exist_ok=True)
    clock = Clock(seconds)
    for name in names:
        report.outcome(name)
    for name in names:
        outcome = report.outcome(name)
        if not outcome.whole and clock.left() > 0:
            _run_part(report, outcome, clock, watch, device)
    report.write()
    return report


def _run_part(report: SelfcheckReport, outcome: PartOutcome, clock: Clock, watch: Watch, device: str) -> None:
    file = report.folder / "running.jsonl"
    earlier = _lines(outcome.cases)
    file.write_text(earlier, encoding="utf-8")
    while not outcome.whole and clock.left() > 0:
        began = time.monotonic()
        code = _one_process(report, outcome, file, clock, watch, device)
        outcome.seconds += time.monotonic() - began
        outcome.cases = finished_cases(worker.read(file))
        if code == worker.EXIT_ALL_RUN:
            outcome.whole = True
        elif code is not None:  # None: the time is over, and the case is run again next time
            outcome.whole = not _mark_died(outcome, file, code)
        file.write_text(_lines(outcome.cases), encoding="utf-8")
        report.write()
        watch(outcome)
    file.unlink()


def _one_process(
    report: SelfcheckReport, outcome: PartOutcome, file: Path, clock: Clock, watch: Watch, device: str
) -> int | None:
    """Returns the exit status of a worker; None where it was ended because the time is over."""
    command = [sys.executable, "-m", "samebits.selfcheck.worker", outcome.name, str(file.absolute()), device]
    environment = {**os.environ, **parts.part_named(outcome.name).environment}
    with (report.folder / "output.txt").open("ab") as output:
        output.write(f"== {outcome.name}\n".encode())
        output.flush()
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            return _watch(process, report, outcome, file, clock, watch)
        finally:
            _end(process)


def _watch(
    process: subprocess.Popen[bytes],
    report: SelfcheckReport,
    outcome: PartOutcome,
    file: Path,
    clock: Clock,
    watch: Watch,
) -> int | None:
    seen, moved, limit = -1, time.monotonic(), _SPARE_S * 6  # before the first case: imports
    while process.poll() is None:
        time.sleep(_POLL_S)
        lines = worker.read(file)
        if len(lines) != seen:
            seen, moved = len(lines), time.monotonic()
            limit = lines[-1].get("limit_s", limit) + _SPARE_S if lines else limit
            outcome.cases = finished_cases(lines)
            report.write()
            watch(outcome)
        if clock.left() < 0:
            return None
        if time.monotonic() - moved > limit:
            return worker.EXIT_LIMIT
    return process.returncode


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the process and its children."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):  # it waits for the device, and no signal ends that
        process.wait(timeout=_SPARE_S)


def _mark_died(outcome: PartOutcome, file: Path, code: int) -> bool:
    """Marks the case during which a process died as failed; returns False where it did not come so far, and would not
    next time.
    """
    if code == worker.EXIT_AGAIN:
        return True
    case = running_case(file)
    why = (
        "took longer than its limit"
        if code == worker.EXIT_LIMIT
        else f"the process ended with {code}: see output.txt"
    )
    outcome.cases.append({"case": case or "(start)", "state": "failed", "wrong": [why]})
    return case is not None


def _lines(cases: Iterable[dict[str, Any]]) -> str:
    return "".join(f"{json.dumps(case)}\n" for case in cases)
