"""`samebits commits`: lists, verifies, prunes and exports the commits of a run directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from samebits import checkpoint, cli
from samebits.errors import InvalidArgumentError

if TYPE_CHECKING:
    from samebits.checkpoint._listing import CommitInfo

SCHEMA = "samebits.commits/1"
NEWEST = "newest"
KEPT = 2
"""Number of commits that --prune leaves without --keep."""


def commits(
    run_dir: Annotated[str, typer.Argument(metavar="DIR", help="The run_dir of a samebits.Run, or its URL.")],
    *,
    verify: Annotated[bool, typer.Option("--verify", help="Read every byte and compare its digest.")] = False,
    prune_older: Annotated[
        bool, typer.Option("--prune", help="Delete all but the newest K valid commits (--keep K).")
    ] = False,
    keep: Annotated[
        int | None,
        typer.Option(min=1, metavar="K", help="How many valid commits --prune leaves. [default: 2]"),
    ] = None,
    keep_best: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="K", help="Of how many best values --prune leaves the commits, too. [default: 0]"
        ),
    ] = None,
    export_to: Annotated[
        tuple[str, Path] | None,
        typer.Option(
            "--export",
            metavar="STEP|newest OUT",
            help="Write one commit to OUT: NAME.safetensors, NAME.pt, or else a folder for torch.distributed.checkpoint.",
        ),
    ] = None,
    object_name: Annotated[
        str | None,
        typer.Option(
            "--object",
            metavar="NAME",
            help="Export this object only; run.state, or run.state.NAME. [default: model for safetensors, else all]",
        ),
    ] = None,
    json_file: Annotated[
        str | None,
        typer.Option(
            "--json", metavar="FILE", help="Also write what is shown as JSON; - for standard output alone."
        ),
    ] = None,
) -> None:
    """List the commits of a run: step, position, age, size, digest, parent, and whether they are whole.

    Exit status: 0 all are whole (with --verify: valid), 1 one is damaged, 2 it could not be found out.
    """
    if export_to is not None:
        if verify or prune_older or json_file is not None or (keep, keep_best) != (None, None):
            raise InvalidArgumentError("--export goes alone: what it writes was verified.")
        print(
            f"wrote {checkpoint.export(run_dir, export_to[1], object=object_name, step=_step(export_to[0]))}"
        )
        return
    if object_name is not None:
        raise InvalidArgumentError("--object goes with --export.")
    if not prune_older and (keep, keep_best) != (None, None):
        raise InvalidArgumentError("--keep and --keep-best go with --prune: without it nothing is deleted.")
    if json_file not in (None, "-") and not Path(json_file).absolute().parent.is_dir():
        raise InvalidArgumentError(
            f"--json {json_file}: there is no folder {Path(json_file).absolute().parent}."
        )
    found, deleted = (
        checkpoint._listing.prune(run_dir, keep or KEPT, keep_best or 0) if prune_older else ([], [])
    )
    if verify or not prune_older:
        with cli._reports.commits_report.Progress("reading commits", shown=verify) as progress:
            found = checkpoint.list_commits(run_dir, verify=verify, on_progress=progress.update)
    if json_file != "-":
        cli._reports.commits_report.show(found, deleted)
        if prune_older and not deleted:
            print("nothing to delete")
    if json_file is not None:
        _write(json_file, run_dir, found, deleted)
    raise typer.Exit(1 if any(not commit.usable for commit in found) else 0)


def _step(text: str) -> int | None:
    if text == NEWEST:
        return None
    if not text.isdecimal():
        raise InvalidArgumentError(f"--export {text!r}: must be the step of a commit, or {NEWEST}.")
    return int(text)


def _write(file: str, run_dir: str, found: list[CommitInfo], deleted: list[CommitInfo]) -> None:
    content: dict[str, Any] = {
        "schema": SCHEMA,
        "run_dir": run_dir,
        "commits": [commit.facts() for commit in found],
        "deleted": [commit.folder.name for commit in deleted],
    }
    text = json.dumps(content, indent=1) + "\n"
    if file == "-":
        print(text, end="")
    else:
        Path(file).write_text(text, encoding="utf-8")
