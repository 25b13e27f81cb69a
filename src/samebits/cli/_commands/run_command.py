"""`samebits run`: any script, unchanged, with op determinism on, seeds set and the order of sets fixed."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from samebits import audit
from samebits._context import ACROSS, Across
from samebits.audit._child.launch_spec import LEVELS, LaunchSpec
from samebits.cli._option_values import check_script, one_of, whole_number
from samebits.errors import RecordError

SCRIPT_SEED = 0
"""Seed of a script that sets none."""


def run(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="Any PyTorch script.")],
    args: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="The script's own arguments.")
    ] = None,
    *,
    seed: Annotated[
        int,
        typer.Option(
            metavar="N",
            parser=whole_number(7),
            help="The seed of all random generators before the script starts.",
        ),
    ] = SCRIPT_SEED,
    across: Annotated[
        Across,
        typer.Option(
            metavar="|".join(ACROSS),
            parser=one_of(ACROSS),
            help="Give the same bits in all runs on this machine (runs), for any number of threads "
            "(threads), or on any x86-64 CPU with AVX2 and FMA (machines). Each includes the one before. "
            "An operation that cannot do so raises an error.",
        ),
    ] = "runs",
    record: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Write a digest of every step to DIR, for `samebits diff`; of a job of several ranks "
            "(torchrun -m samebits run ...), to DIR/rank0, DIR/rank1, and so on.",
        ),
    ] = None,
    record_level: Annotated[
        str,
        typer.Option(
            metavar="|".join(LEVELS),
            parser=one_of(LEVELS),
            help="Record the losses alone, or the whole state of the training.",
        ),
    ] = "state",
    record_every: Annotated[
        int, typer.Option(metavar="K", parser=whole_number(10, least=1), help="Record each K-th step.")
    ] = 1,
) -> None:
    """Run a script with deterministic operations and fixed seeds.

    The script needs no change. It runs as `python SCRIPT ARGS` would run it, with
    samebits.enable_op_determinism() on, all seeds set, and PYTHONHASHSEED fixed.

    Options of samebits stand before SCRIPT. Everything after it goes to the script, even what looks like one
    of these options; you are warned then, unless a -- stands directly after SCRIPT.

    Exit status: that of the script, 0 if it ended well (75: it was stopped by a signal; start it again and it
    resumes); 2 if it could not be started.

    Examples:
        samebits run train.py --epochs 3
        samebits run --record runs/a train.py

    Read more: docs/start/prove.md
    """
    check_script(script)
    if record is not None:
        folder = audit._record.record_file.folder_of_process(record)
        _check_record(folder, [script, *(args or ())])
    spec = LaunchSpec(
        record_dir=record,
        by_rank=True,
        level=record_level,
        every=record_every,
        digest_files=record is not None,
        switch=True,
        across=across,
        seed=seed,
    )
    status = audit._child.launch.execute(script, list(args or ()), spec)
    if record is not None:
        _warn_of_empty(audit._record.record_file.folder_of_process(record))
    raise typer.Exit(status)


def _warn_of_empty(folder: Path) -> None:
    """Warns of a record without a step: whoever keeps it as evidence has nothing."""
    with contextlib.suppress(RecordError):  # the process died at its start, and has said why
        found = audit._record.record_file.read_record(folder)
        if not (found.steps or found.forwards):
            print(
                f"samebits: run: {folder} holds no step: the script trained nothing. A samebits.Run that has "
                "finished does not train again: move its run directory away first.",
                file=sys.stderr,
            )


def _check_record(folder: Path, command: list[str]) -> None:
    """Raises for a record of another script: a killed run's next process adds to its record."""
    found = None
    with contextlib.suppress(RecordError):  # none there yet, or one of a process that died at its start
        found = audit._record.record_file.read_record(folder)
    if found is None:
        return
    words, script = list(found.start["argv"]), found.start["script"]
    recorded = words[words.index(script) :] if script in words else [script]
    if recorded != command:
        raise RecordError(
            f"--record {folder}: it already holds a record of {' '.join(recorded)}. Choose another folder."
        )
