"""`samebits selfcheck`: checks the promises of samebits on this machine's GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

import samebits
from samebits import cli
from samebits import selfcheck as checking
from samebits.cli._option_values import number_above
from samebits.errors import InvalidArgumentError


def selfcheck(
    *,
    part: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this part; may be given again for more. [default: all]"),
    ] = None,
    minutes: Annotated[
        float,
        typer.Option(
            metavar="N",
            parser=number_above(0, 9, "minutes"),
            help="Stop after N minutes; the same command goes on from there.",
        ),
    ] = 9,
    report: Annotated[
        Path, typer.Option(metavar="FOLDER", help="The folder of the report, and of what has run so far.")
    ] = Path("gpu-report"),
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Without a GPU: plant wrong results in each part, and check that they are found.",
        ),
    ] = False,
    install: Annotated[
        bool,
        typer.Option(
            "--install",
            help="Without a GPU: install the GPU kernels that the report has verified in this samebits.",
        ),
    ] = False,
    device: Annotated[
        str, typer.Option(metavar="cuda", help="The kind of device; so far only cuda.")
    ] = "cuda",
) -> None:
    """Check on this GPU what samebits promises, and write a report.

    Each part runs in processes of its own. What has run is kept in the report's folder and not run again;
    remove the folder to begin anew. The report holds device, driver, versions and figures, no paths and no
    host names: it can be sent to others.

    Exit status: 0 as promised; 1 not, or not everything has run; 2 could not be checked: there is no GPU. Of
    --dry-run: 0 all that was planted was found; 1 not. Of --install: 0 installed; 1 a kernel had failed, or
    there was none.

    Examples:
        samebits selfcheck --part switch --minutes 5
        samebits selfcheck --dry-run

    Read more: docs/gpu.md
    """
    if device != "cuda":
        raise InvalidArgumentError(
            f"--device {device!r}: must be cuda. The tests of the CPU are in the source: make test."
        )
    if install:
        if part or dry_run:
            raise InvalidArgumentError(
                "--install goes with --report alone: the report lists what was run. Leave the rest out."
            )
        raise typer.Exit(cli._reports.selfcheck_report.install(report))
    names = tuple(dict.fromkeys(part or checking.parts.NAMES))
    for name in names:
        checking.parts.part_named(name)
    if dry_run:
        raise typer.Exit(cli._reports.selfcheck_report.rehearse(names))
    reason = checking.machine.reason_without_gpu()
    if reason:
        print(f"samebits: selfcheck: {reason}", file=sys.stderr)
        raise typer.Exit(checking.report.COULD_NOT_RUN)
    found = checking.report.SelfcheckReport.at(report, checking.machine.facts(samebits.__version__))
    raise typer.Exit(cli._reports.selfcheck_report.run(found, names, minutes * 60))
