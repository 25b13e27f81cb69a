"""`samebits run`: any script, unchanged, with op determinism on, seeds set and the order of sets fixed."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from samebits.audit.launch import execute
from samebits.audit.spec import LaunchSpec
from samebits.errors import InvalidArgumentError

SCRIPT_SEED = 0
"""What a script that sets no seed gets."""


def run(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="Any PyTorch script.")],
    args: Annotated[list[str] | None, typer.Argument(metavar="[ARGS]...", help="Its arguments.")] = None,
    *,
    seed: Annotated[int, typer.Option(help="For all generators, before the script starts.")] = SCRIPT_SEED,
    record: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write DIR/record.jsonl: digests of every step.")
    ] = None,
    record_level: Annotated[str, typer.Option(metavar="loss|state", help="What is recorded.")] = "state",
    record_every: Annotated[int, typer.Option(min=1, help="Record each K-th step.")] = 1,
) -> None:
    """Run SCRIPT with op determinism on, seeds set and PYTHONHASHSEED fixed.

    Options stand before SCRIPT; everything behind it goes to the script. The script's exit status is ours.
    """
    _fix_hash_seed()
    if not os.path.isfile(script):
        raise InvalidArgumentError(f"run {script}: there is no such file.")
    spec = LaunchSpec(record_dir=record, level=record_level, every=record_every, switch=True, seed=seed)
    raise typer.Exit(execute(script, list(args or ()), spec))


def _fix_hash_seed() -> None:
    """Starts this very command again, once: Python reads PYTHONHASHSEED only at its start."""
    if os.environ.get("PYTHONHASHSEED") in (None, "", "random"):
        os.environ["PYTHONHASHSEED"] = "0"
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - no shell is the point
