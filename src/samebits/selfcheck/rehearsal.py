"""Tests the check itself, without its device: every judge must accept correct results, and see each that was spoiled."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from samebits.selfcheck import parts
from samebits.selfcheck.case import Case, Results, Target, spoil_each


@dataclass
class RehearsalOutcome:
    """One part, run without the device."""

    name: str
    about: str
    minutes: float
    cases: int = 0
    skipped: list[str] = field(default_factory=list)
    planted: int = 0
    missed: list[str] = field(default_factory=list)
    """Wrong results that the judge did not see."""
    broken: list[str] = field(default_factory=list)
    """Cases that do not accept correct results."""

    @property
    def found(self) -> int:
        """The number of planted wrong results that were seen."""
        return self.planted - len(self.missed)


def rehearse(names: Iterable[str]) -> Iterator[RehearsalOutcome]:
    """Runs each part on the CPU, with small tensors: results as they are, then each of them spoiled in turn."""
    for name in names:
        part = parts.part_named(name)
        found = RehearsalOutcome(name, part.about, part.minutes)
        for case in part.cases():
            _rehearse(case, found)
        yield found


def _rehearse(case: Case, outcome: RehearsalOutcome) -> None:
    outcome.cases += 1
    missing = [name for name in case.needs if find_spec(name) is None]
    if missing and case.example is None:
        outcome.skipped.append(f"{case.name}: needs {', '.join(missing)}")
        return
    try:
        results = _results(case)
        wrong = list(case.judge(results))
    except Exception as error:
        outcome.broken.append(f"{case.name}: {type(error).__name__}: {error}")
        return
    if wrong:
        outcome.broken.append(f"{case.name}: {wrong[0]}")
        return
    before = outcome.planted
    for what, spoiled in spoil_each(results):
        outcome.planted += 1
        if not _judge_sees(case, spoiled):
            outcome.missed.append(f"{case.name}: {what}")
    if outcome.planted == before:
        outcome.broken.append(f"{case.name}: it has no result that could be wrong")


def _results(case: Case) -> Results:
    if case.example is not None:
        return case.example
    with tempfile.TemporaryDirectory(prefix="samebits-selfcheck-") as folder, redirect_stderr(io.StringIO()):
        return case.measure(Target("cpu", small=True, folder=Path(folder))).results


def _judge_sees(case: Case, spoiled: Results) -> bool:
    return bool(list(case.judge(spoiled)))
