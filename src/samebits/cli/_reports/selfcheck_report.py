"""The console output of `samebits selfcheck`: a line of progress, and its tables."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from samebits import selfcheck as checking
from samebits._progress import Progress
from samebits.selfcheck.report import FAILED, PASSED, PartOutcome, SelfcheckReport


def run(report: SelfcheckReport, names: tuple[str, ...], seconds: float) -> int:
    """Runs the parts, writes and shows the report; returns the exit status."""
    console = Console(highlight=False)
    with Progress("selfcheck") as progress:

        def watch(outcome: PartOutcome) -> None:
            progress.describe(f"{outcome.name}: {len(outcome.cases)} cases, {outcome.count('failed')} failed")
            progress.update(names.index(outcome.name), len(names))
            checking.text.write(report)

        checking.run(report, names, seconds, watch)
    checking.text.write(report)
    checking.text.show(report, console)
    console.print(f"The report is in {report.folder}.")
    return report.exit


def rehearse(names: tuple[str, ...]) -> int:
    """Plants wrong results in the parts and shows how many were found; returns the exit status."""
    found = []
    with Progress("selfcheck") as progress:
        for done, name in enumerate(names):
            progress.describe(f"rehearsing {name}")
            progress.update(done, len(names))
            found += checking.rehearse([name])
    checking.text.show_rehearsal(found, Console(highlight=False))
    whole = all(one.planted and not one.missed and not one.broken for one in found)
    return PASSED if whole else FAILED


def install(folder: Path) -> int:
    """Installs the formulations that the report has verified, and shows the rest; returns the exit status."""
    report = SelfcheckReport.stored(folder)
    found = checking.adopt(report)
    console = Console(highlight=False)
    for title, lines in (("failed", found.failed), ("untried", found.untried)):
        for op, why in lines.items():
            console.print(f"{title:8} {op}: {why}", soft_wrap=True, markup=False)
    console.print(
        f"{len(found.entries)} overloads installed, as verified on {report.machine['gpu']}, "
        f"torch {report.machine['torch']}; {len(found.failed)} failed, {len(found.untried)} not tried; "
        f"{len(found.seen)} overloads seen equal there. `samebits ops --device cuda` shows them.",
        soft_wrap=True,
    )
    return PASSED if found.entries and not found.failed else FAILED
