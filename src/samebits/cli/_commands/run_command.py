"""`samebits run`: any script, unchanged, with op determinism on, seeds set and the order of sets fixed."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Annotated

import typer

from samebits import audit
from samebits.audit._child.launch_spec import LEVELS, LaunchSpec
from samebits.errors import InvalidArgumentError, RecordError

SCRIPT_SEED = 0
"""Seed of a script that sets none."""


def run(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="Any PyTorch script.")],
    args: Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="Its arguments.")] = None,
    *,
    seed: Annotated[int, typer.Option(help="For all generators, before the script starts.")] = SCRIPT_SEED,
    thread_invariant: Annotated[
        bool, typer.Option("--thread-invariant", help="The same bits for any number of threads, too.")
    ] = False,
    machine_invariant: Annotated[
        bool,
        typer.Option(
            "--machine-invariant",
            help="The same bits on any CPU and for any number of threads; raises where none are.",
        ),
    ] = False,
    record: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write DIR/record.jsonl: digests of every step.")
    ] = None,
    record_level: Annotated[str, typer.Option(metavar="loss|state", help="What is recorded.")] = "state",
    record_every: Annotated[int, typer.Option(min=1, help="Record each K-th step.")] = 1,
) -> None:
    """Run SCRIPT with op determinism on, seeds set and PYTHONHASHSEED fixed.

    Options come before SCRIPT; everything after it goes to the script, a -- too.

    Exit status: the script's; 2 where it could not be started.
    """
    if not os.path.isfile(script):
        why = "is a folder; name the script in it" if os.path.isdir(script) else "there is no such file"
        raise InvalidArgumentError(f"run {script}: {why}.")
    if record_level not in LEVELS:
        raise InvalidArgumentError(f"--record-level {record_level!r}: choose from {', '.join(LEVELS)}.")
    if record is not None:
        _check_record(Path(record), [script, *(args or ())])
    spec = LaunchSpec(
        record_dir=record,
        level=record_level,
        every=record_every,
        switch=True,
        thread_invariant=thread_invariant,
        machine_invariant=machine_invariant,
        seed=seed,
    )
    raise typer.Exit(audit._child.launch.execute(script, list(args or ()), spec))


def _check_record(folder: Path, command: list[str]) -> None:
    """Raises for a record of another script: a killed run's next process adds to its record."""
    found = None
    with contextlib.suppress(RecordError):  # none there yet, or one of a process that died at its start
        found = audit._record.read_record.read_record(folder)
    if found is None:
        return
    words, script = list(found.start["argv"]), found.start["script"]
    recorded = words[words.index(script) :] if script in words else [script]
    if recorded != command:
        raise RecordError(f"{folder} already holds a record of {' '.join(recorded)}; choose another folder.")
