"""The report for a person: a line for each part, the failures, and the figures; as text for `report.txt`, too."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from samebits.selfcheck.rehearsal import RehearsalOutcome
from samebits.selfcheck.report import PartOutcome, SelfcheckReport, replace

_WIDTH = 120
_MOST = 200
_STYLES = {"passed": "green", "failed": "bold red", "no case ran": "bold red"}


def show(report: SelfcheckReport, console: Console) -> None:
    """Prints all of it."""
    machine = report.machine
    console.print(
        f"samebits {machine['samebits']} on {machine['gpu']}, torch {machine['torch']}, driver "
        f"{machine.get('driver_version', 'unknown')}, {machine['date']}"
    )
    outcomes = list(report.outcomes.values())
    _table(console, ["part", "verdict", "passed", "failed", "skipped", "minutes"], map(_row, outcomes))
    for outcome in outcomes:
        _details(console, outcome)
    console.print(_verdict(report))


def write(report: SelfcheckReport) -> None:
    """Writes `report.txt` in the report's folder."""
    file = io.StringIO()
    show(report, Console(file=file, width=_WIDTH, highlight=False))
    replace(report.folder / "report.txt", file.getvalue())


def show_rehearsal(outcomes: Sequence[RehearsalOutcome], console: Console) -> None:
    """Prints the results of a rehearsal."""
    columns = ["part", "what it tries", "minutes on a GPU", "cases", "planted", "found"]
    rows = [
        [one.name, one.about, f"{one.minutes:g}", str(one.cases), str(one.planted), str(one.found)]
        for one in outcomes
    ]
    _table(console, columns, rows)
    for one in outcomes:
        for title, lines in (("skipped", one.skipped), ("NOT FOUND", one.missed), ("broken", one.broken)):
            for line in lines:
                console.print(f"{one.name}: {title}: {line}", soft_wrap=True, markup=False)
    planted, seen = sum(one.planted for one in outcomes), sum(one.found for one in outcomes)
    cases, minutes = sum(one.cases for one in outcomes), sum(one.minutes for one in outcomes)
    console.print(
        f"{cases} cases, {minutes:g} minutes on a GPU; {seen} of {planted} planted wrong results were found"
    )


def _row(outcome: PartOutcome) -> list[str]:
    style = _STYLES.get(outcome.verdict, "yellow")
    counts = (str(outcome.count(state)) for state in ("passed", "failed", "skipped"))
    return [outcome.name, f"[{style}]{outcome.verdict}[/]", *counts, f"{outcome.seconds / 60:.1f}"]


def _details(console: Console, outcome: PartOutcome) -> None:
    for case in outcome.cases:
        where = f"{outcome.name}: {case['case']}"
        for wrong in case.get("wrong", ()):
            console.print(f"FAILED  {where}: {wrong}", soft_wrap=True, markup=False)
        if case["state"] == "skipped":
            console.print(f"skipped {where}: {case['why']}", soft_wrap=True, markup=False)
    figures = [(case["case"], case) for case in outcome.cases if case.get("figures")]
    if figures:
        rows = [
            [escape(cell) for cell in (name, _figures(case["figures"]), _goals(case.get("goals", {})))]
            for name, case in figures
        ]
        _table(console, [outcome.name, "figures", "goals"], rows)


def _figures(figures: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {_short(str(value))}"
        for name, value in figures.items()
    )


def _short(text: str) -> str:
    """Shortens long lists of names, which are in the JSON."""
    return text if len(text) <= _MOST else f"{text[:_MOST]} ..."


def _goals(goals: dict[str, bool]) -> str:
    return ", ".join(f"{name}: {'met' if met else 'MISSED'}" for name, met in goals.items())


def _verdict(report: SelfcheckReport) -> str:
    unfinished = [one.name for one in report.outcomes.values() if one.verdict in {"not run", "not finished"}]
    failed = [one.name for one in report.outcomes.values() if one.verdict in {"failed", "no case ran"}]
    if failed:
        return f"NOT AS PROMISED on this GPU: {', '.join(failed)}."
    if unfinished:
        return f"Not finished: {', '.join(unfinished)}. The same command continues with them."
    return "AS PROMISED on this GPU."


def _table(console: Console, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else box.SIMPLE, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, overflow="fold", no_wrap=number == 0)
    for row in rows:
        table.add_row(*row)
    console.print(table)
