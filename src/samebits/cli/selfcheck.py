"""`samebits selfcheck`: try on this machine's GPU what samebits promises there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.status import Status

import samebits
from samebits import selfcheck as checking
from samebits.errors import InvalidArgumentError
from samebits.selfcheck import machine
from samebits.selfcheck.report import COULD_NOT_RUN, FAILED, Outcome, Report

MISSED = 3


def selfcheck(
    *,
    device: Annotated[
        str, typer.Option(help="Only `cuda`: the CPU's tests are in the source's `make test`.")
    ] = "cuda",
    part: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="One part only; again for more. [default: all]")
    ] = None,
    minutes: Annotated[
        float, typer.Option(min=0.5, help="After so many it ends; the same command goes on from there.")
    ] = 9.5,
    report: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the report is written.")] = Path(
        "gpu-report"
    ),
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Without a GPU: list the parts, and plant wrong results in each."),
    ] = False,
    record: Annotated[
        bool,
        typer.Option("--record", help="Without a GPU: install what the report's GPU has verified, and end."),
    ] = False,
) -> None:
    """Try on this GPU what samebits promises there, part by part, and write a report that can be sent.

    Each part runs in processes of its own, the most telling first. What has run is kept in the report's folder, as JSON
    and text (device, driver, versions and figures; no paths, no names of hosts). --dry-run tries the check itself: each
    planted wrong result must be found. --record takes from the report which formulations of CUDA ops its GPU has verified into
    this copy of samebits, where the switch installs them from then on.

    Exit status: 0 as promised, 1 not, or not all of it has run, 2 no GPU. Of --dry-run: 1 all that was planted was found, 3 not. Of --record: 1 where a formulation failed.
    """
    if device != "cuda":
        raise InvalidArgumentError(f"--device {device!r}: it is 'cuda'.")
    if record:
        raise typer.Exit(_record(report, alone=not (part or dry_run)))
    names = tuple(dict.fromkeys(part or checking.parts.NAMES))
    for name in names:
        checking.parts.named(name)
    if dry_run:
        raise typer.Exit(_rehearse(names))
    reason = machine.without_gpu()
    if reason:
        print(f"samebits selfcheck: {reason}", file=sys.stderr)
        raise typer.Exit(COULD_NOT_RUN)
    raise typer.Exit(_run(Report.at(report, machine.facts(samebits.__version__)), names, minutes * 60))


def _run(report: Report, names: tuple[str, ...], seconds: float) -> int:
    console = Console(highlight=False)
    with Status("", console=Console(stderr=True)) as status:

        def watch(outcome: Outcome) -> None:
            status.update(f"{outcome.name}: {len(outcome.cases)} cases, {outcome.count('failed')} failed")
            checking.text.write(report)

        checking.run(report, names, seconds, watch)
    checking.text.write(report)
    checking.text.show(report, console)
    console.print(f"The report is in {report.folder}.")
    return report.exit


def _record(folder: Path, *, alone: bool) -> int:
    if not alone:
        raise InvalidArgumentError("--record: it goes with --report alone; the report says what was run.")
    report = Report.stored(folder)
    found = checking.adopt(report)
    console = Console(highlight=False)
    for op, wrong in found.failed.items():
        console.print(f"failed   {op}: {wrong}", soft_wrap=True, markup=False)
    for op, why in found.untried.items():
        console.print(f"untried  {op}: {why}", soft_wrap=True, markup=False)
    console.print(
        f"{len(found.entries)} overloads recorded as verified on {report.machine['gpu']}, torch {report.machine['torch']}; "
        f"{len(found.failed)} failed, {len(found.untried)} not tried. `samebits ops --device cuda` shows them."
    )
    return 0 if found.entries and not found.failed else FAILED


def _rehearse(names: tuple[str, ...]) -> int:
    found = []
    with Status("", console=Console(stderr=True)) as status:
        for name in names:
            status.update(f"rehearsing {name}")
            found += checking.rehearse([name])
    checking.text.show_rehearsal(found, Console(highlight=False))
    whole = all(one.planted and not one.missed and not one.broken for one in found)
    return FAILED if whole else MISSED
