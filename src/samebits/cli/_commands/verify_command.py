"""`samebits verify`: prove that a script gives the same bits."""

from __future__ import annotations

import math
import secrets
import sys
from pathlib import Path
from typing import Annotated

import typer

from samebits.audit import _verify as checking
from samebits.audit._verify.check_plan import GROUPS
from samebits.cli._script_arguments import misplaced_options
from samebits.errors import InvalidArgumentError, VerifyError


def verify(
    context: typer.Context,
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="The training script.")],
    args: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="Its arguments.")] = None,
    *,
    as_run: Annotated[bool, typer.Option("--run", help="Start it as `samebits run` would.")] = False,
    thread_invariant: Annotated[
        bool, typer.Option("--thread-invariant", help="With --run: any number of threads is promised, too.")
    ] = False,
    machine_invariant: Annotated[
        bool, typer.Option("--machine-invariant", help="With --run: any CPU and any number of threads.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write the result as JSON.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Stop each run after N steps, of epochs of N // 2 batches.")
    ] = None,
    checks: Annotated[str, typer.Option(help="Which rows, separated by commas.")] = ",".join(GROUPS),
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at the same time. [default: 2, with a GPU 1]")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the scratch folder, and print where it is.")
    ] = False,
    in_place: Annotated[
        bool,
        typer.Option(
            "--in-place",
            help="Run in the current folder itself: files the script writes there are overwritten.",
        ),
    ] = False,
    seed: Annotated[
        int | None, typer.Option(help="Draws where to kill, hash seeds and listing orders. [default: random]")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds for one run. [default: 60, and 10 times the first run]")
    ] = None,
) -> None:
    """Prove that SCRIPT gives the same bits: run again, killed and resumed, with other workers and threads.

    Each run is a fresh process. It finds the current folder as it is, of any size, and what it writes there stays in a
    scratch folder (an overlay mount; where none is allowed, copies and guarded links). Run directories of samebits.Run
    are moved there, too: yours are neither read nor written. What the script writes outside of the current folder
    (../results) is its own: it is written.

    Options come before SCRIPT; everything after it goes to the script, a -- too.

    Exit status: 0 all promised rows are equal, 1 one is not, 2 it could not be found out.
    """
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise InvalidArgumentError(f"--json {json_file}: there is no folder {json_file.absolute().parent}.")
    promises = {"thread_invariant": thread_invariant, "machine_invariant": machine_invariant}
    for name, wanted in promises.items():
        if wanted and not as_run:
            raise InvalidArgumentError(
                f"--{name.replace('_', '-')} goes with --run; a script that is started as it is enables it itself: "
                f"samebits.enable_op_determinism({name}=True)."
            )
    if timeout is not None and not 0 < timeout < math.inf:
        raise InvalidArgumentError(f"--timeout {timeout:g}: a number of seconds above 0, such as 600.")
    request = checking.Request(
        script=script,
        args=tuple(args or ()),
        as_run=as_run,
        **promises,
        steps=steps,
        groups=tuple(checks.split(",")),
        jobs=jobs or checking.jobs(),
        keep=keep,
        seed=secrets.randbelow(10**6) if seed is None else seed,
        timeout=timeout,
        in_place=in_place,
    )
    try:
        report = checking.verify(request)
    except VerifyError as error:
        raise VerifyError(f"{error}{misplaced_options(context.command.params, request.args)}") from None
    except checking.SignalledError as signalled:
        print(f"samebits: verify: ended by {signalled}; no process is left", file=sys.stderr)
        raise typer.Exit(128 + signalled.number) from None
    checking.show(report)
    if json_file is not None:
        report.write_json(json_file)
    raise typer.Exit(report.exit)
