"""`samebits selfcheck`: checks the promises of samebits on this machine's GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

import samebits
from samebits import cli
from samebits import selfcheck as checking
from samebits.errors import InvalidArgumentError


def selfcheck(
    *,
    device: Annotated[
        str, typer.Option(help="Only `cuda`: the CPU's tests are in the source's `make test`.")
    ] = "cuda",
    part: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="One part only; again for more. [default: all]")
    ] = None,
    minutes: Annotated[
        float, typer.Option(min=0.5, help="After so many it ends; the same command continues from there.")
    ] = 9,
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
    """Check the promises of samebits on this GPU, part by part, and write a report that can be sent.

    Each part runs in processes of its own, the most telling first. What has run is kept in the report's folder, as JSON
    and text (device, driver, versions and figures; no paths, no names of hosts), and not run again: remove the folder to
    begin anew. --dry-run tries the check itself: each planted wrong result must be found. --record takes from the report
    which formulations of CUDA ops its GPU has verified into this copy of samebits, where the switch installs them from then on.

    Exit status: 0 as promised, 1 not, or not all of it has run, 2 no GPU. Of --dry-run: 1 all that was planted was found,
    3 not. Of --record: 1 where a formulation failed.
    """
    if device != "cuda":
        raise InvalidArgumentError(f"--device {device!r}: it is 'cuda'.")
    if record:
        if part or dry_run:
            raise InvalidArgumentError(
                "--record: it goes with --report alone; the report lists what was run."
            )
        raise typer.Exit(cli._reports.selfcheck_report.record(report))
    names = tuple(dict.fromkeys(part or checking.parts.NAMES))
    for name in names:
        checking.parts.part_named(name)
    if dry_run:
        raise typer.Exit(cli._reports.selfcheck_report.rehearse(names))
    reason = checking.machine.reason_without_gpu()
    if reason:
        print(f"samebits selfcheck: {reason}", file=sys.stderr)
        raise typer.Exit(checking.report.COULD_NOT_RUN)
    found = checking.report.SelfcheckReport.at(report, checking.machine.facts(samebits.__version__))
    raise typer.Exit(cli._reports.selfcheck_report.run(found, names, minutes * 60))
