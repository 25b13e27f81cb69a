"""`samebits verify`: prove that a script gives the same bits."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from samebits import audit
from samebits._context import ACROSS, Across
from samebits.audit import _verify as checking
from samebits.cli._json_output import JsonFile, check_file, check_json_file, is_standard_output, write_json
from samebits.cli._option_values import check_script, number_above, one_of, whole_number, whole_numbers
from samebits.errors import InvalidArgumentError

_REPORTS = (
    '{\n  "schema": "samebits.verify/',
    '<testsuites name="samebits verify"',
    "<!doctype html>\n<!-- samebits verify",
)  # how they begin


def verify(
    script: Annotated[
        str | None, typer.Argument(metavar="SCRIPT", help="The training script; not with --demo.")
    ] = None,
    args: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="The script's own arguments.")
    ] = None,
    *,
    demo: Annotated[
        bool,
        typer.Option(
            "--demo",
            help="Verify a small example that samebits brings, to prove that the installation works.",
        ),
    ] = False,
    as_run: Annotated[
        bool,
        typer.Option(
            "--run", help="Start the script as `samebits run` does: deterministic operations, fixed seeds."
        ),
    ] = False,
    steps: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            parser=whole_number(40, least=1),
            help="Stop each run after N steps, with epochs of N // 2 batches.",
        ),
    ] = None,
    nproc_per_node: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            parser=whole_number(2, least=1),
            help="Start each run through torchrun, as N ranks on this machine.",
        ),
    ] = None,
    world_sizes: Annotated[
        Any,
        typer.Option(
            metavar="N,...",
            parser=whole_numbers("1,2,3", least=1),
            help="Compare runs as 1, 2, 3 ranks, and one that goes on as another number; 1 is no job. For a "
            "script with run.steps(shards=).",
        ),
    ] = None,
    checks: Annotated[
        str | None, typer.Option(metavar="CHECK,...", help="Only these checks, listed below. [default: all]")
    ] = None,
    require: Annotated[
        str | None,
        typer.Option(
            metavar="CHECK,...", help="End with exit status 2 unless these checks apply and are equal."
        ),
    ] = None,
    within: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            parser=number_above(0, 600, "seconds"),
            help="Leave out checks that would take longer, those that say least first.",
        ),
    ] = None,
    across: Annotated[
        Across | None,
        typer.Option(
            metavar="|".join(ACROSS),
            parser=one_of(ACROSS),
            help="With --run: promise the same bits in all runs, for any number of threads, or on any CPU. "
            "Each includes the one before. [default: runs]",
        ),
    ] = None,
    json_file: JsonFile = None,
    junit: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Also write the result as JUnit XML, with a test case for each row."
        ),
    ] = None,
    markdown: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help='Also append the result to FILE as Markdown: "$GITHUB_STEP_SUMMARY".'
        ),
    ] = None,
    html: Annotated[
        str | None, typer.Option(metavar="FILE", help="Also write the result as a page for a browser.")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            parser=whole_number(7),
            help="Choose where to kill, hash seeds and listing orders by N; the same N repeats them. "
            "[default: random]",
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            parser=number_above(0, 600, "seconds"),
            help="The most that one run may take. [default: 60, plus 10 times the first run]",
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            parser=whole_number(2, least=1),
            help="Runs at the same time. [default: 2; with a GPU or --nproc-per-node 1]",
        ),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the scratch folder, and print its path.")
    ] = False,
    find_op: Annotated[
        bool,
        typer.Option(
            "--find-op/--no-find-op",
            help="If a check fails, search for the first op that differs, and its cause. [default: yes]",
            show_default=False,
        ),
    ] = True,
    in_place: Annotated[
        bool,
        typer.Option(
            "--in-place",
            help="Run in the current folder itself; files that the script writes there are overwritten.",
        ),
    ] = False,
) -> None:
    """Prove that a script gives the same bits every time.

    The script is run again and again under conditions that must not matter, each time in a fresh process, and
    every step is compared with the first run. Files in the current folder are safe: what the script writes
    there goes to a scratch folder. What it writes elsewhere (../results) is really written.

    Options of samebits stand before SCRIPT. Everything after it goes to the script, even what looks like one
    of these options; you are warned then, unless a -- stands directly after SCRIPT.

    Checks:
        run-again       the same command a second time; always done
        busy            while other processes keep every core busy
        replicas        with --nproc-per-node: parameters, buffers and optimizer
                        state of all ranks are equal after each step
        world-sizes     with --world-sizes: as that many ranks, and killed and
                        resumed as another number
        kill            killed and resumed in three ways, or one of these alone:
                        kill-mid-epoch, kill-epoch-end, kill-twice
        workers         with 0, 1 and 3 loader workers
        threads         with 1 and 3 threads
        cpu             as on a CPU without AVX-512, for a script across machines

    Exit status: 0 all promised checks are equal; 1 one is not; 2 could not be checked.

    Examples:
        samebits verify --run --steps 40 train.py
        samebits verify --checks kill --json report.json train.py --epochs 3
        samebits verify --nproc-per-node 2 train.py
        samebits verify --world-sizes 1,2,3 train.py
        samebits verify --demo

    Read more: docs/reference/verify.md
    """
    check_json_file(json_file)
    check_file("--junit", junit, "--junit result.xml")
    check_file("--markdown", markdown, "--markdown result.md")
    check_file("--html", html, "--html result.html")
    _check_script_or_demo(script, demo=demo)
    if across is not None and not as_run:
        raise InvalidArgumentError(
            "--across goes with --run. A script that is started as it is turns it on itself: "
            f'samebits.enable_op_determinism(across="{across}").'
        )
    if world_sizes and nproc_per_node is not None:
        raise InvalidArgumentError(
            "--world-sizes and --nproc-per-node: choose one. The first of --world-sizes is that of all other "
            f"checks: --world-sizes {nproc_per_node},{nproc_per_node + 1}."
        )
    request = checking.Request(
        script=script or "",
        args=tuple(args or ()),
        as_run=as_run,
        across=across or "runs",
        steps=steps,
        groups=checking.GROUPS if checks is None else tuple(checks.split(",")),
        jobs=jobs or (checking.jobs() if nproc_per_node is None and not world_sizes else 1),
        nproc_per_node=nproc_per_node,
        world_sizes=world_sizes or (),
        require=() if require is None else tuple(require.split(",")),
        within=within,
        keep=keep,
        seed=secrets.randbelow(10**6) if seed is None else seed,
        timeout=timeout,
        in_place=in_place,
        find_op=find_op,
    )
    for file in filter(None, (json_file, junit, html)):  # one of an earlier run is no result of this one
        if Path(file).is_file() and Path(file).read_text(errors="replace").startswith(_REPORTS):
            Path(file).resolve().unlink()
    try:
        report = checking.verify_demo(request) if demo else checking.verify(request)
    except checking.SignalledError as signalled:
        print(f"samebits: verify: ended by {signalled}; no process is left", file=sys.stderr)
        raise typer.Exit(128 + signalled.number) from None
    if not is_standard_output(json_file):
        checking.show(report)
    write_json(json_file, report.to_dict())
    if junit is not None:
        Path(junit).write_text(checking.junit(report), encoding="utf-8")
    if html is not None:
        Path(html).write_bytes(audit._html_page.verify_page(report))
    if markdown is not None:
        with open(markdown, "a", encoding="utf-8") as file:
            file.write(checking.markdown(report))
    raise typer.Exit(report.exit)


def _check_script_or_demo(script: str | None, *, demo: bool) -> None:
    if demo and script is not None:
        raise InvalidArgumentError(
            f"--demo goes without SCRIPT: it verifies an example of samebits. Type samebits verify --demo, "
            f"or samebits verify {script}."
        )
    if not demo and script is None:
        raise InvalidArgumentError(
            "SCRIPT is missing. Type for example: samebits verify --run --steps 40 train.py, "
            "or samebits verify --demo for an example of samebits."
        )
    if script is not None:
        check_script(script)
