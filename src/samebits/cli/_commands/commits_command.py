"""`samebits commits`: lists, verifies, prunes and exports the commits of a run directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from samebits import checkpoint, cli
from samebits.cli._json_output import JsonFile, check_json_file, is_standard_output, write_json
from samebits.cli._option_values import whole_number
from samebits.errors import InvalidArgumentError

if TYPE_CHECKING:
    from samebits.checkpoint._listing import CommitInfo

SCHEMA = "samebits.commits/1"
NEWEST = "newest"
KEPT = 2
"""Number of commits that --prune leaves without --keep."""


def commits(
    run_dir: Annotated[
        str, typer.Argument(metavar="DIR", help="The run directory of a samebits.Run, or its URL.")
    ],
    *,
    verify: Annotated[bool, typer.Option("--verify", help="Read every byte and compare its digest.")] = False,
    prune_older: Annotated[
        bool, typer.Option("--prune", help="Delete all valid commits but the newest; see --keep.")
    ] = False,
    keep: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            parser=whole_number(2, least=1),
            help="With --prune: keep the K newest valid commits. [default: 2]",
        ),
    ] = None,
    keep_best: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            parser=whole_number(1, least=0),
            help="With --prune: keep the commits of the K best values, too. [default: 0]",
        ),
    ] = None,
    export_to: Annotated[
        tuple[str, Path] | None,
        typer.Option(
            "--export",
            metavar="STEP|newest OUT",
            help="Write one commit to OUT: a .safetensors file, a .pt file, or a folder for "
            "torch.distributed.checkpoint.",
        ),
    ] = None,
    object_name: Annotated[
        str | None,
        typer.Option(
            "--object",
            metavar="NAME",
            help="With --export: this object only, such as model, run.state or run.state.NAME. "
            "[default: model for .safetensors, else all]",
        ),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """List, check, delete or export the commits of a run.

    For each commit: step, position, age, size, digest, parent, and its state.

    Exit status: 0 all commits are whole (with --verify: every byte is right); 1 one is damaged; 2 could not
    be checked.

    Examples:
        samebits commits --verify runs/digits
        samebits commits --export newest model.safetensors runs/digits

    Read more: docs/how-to/export.md
    """
    check_json_file(json_file)
    if export_to is not None:
        if verify or prune_older or json_file is not None or (keep, keep_best) != (None, None):
            raise InvalidArgumentError(
                "--export goes alone, or with --object: what it writes is always checked. Leave the rest out."
            )
        written = checkpoint.export(run_dir, export_to[1], object=object_name, step=_step(export_to[0]))
        print(f"wrote {written}")
        return
    if object_name is not None:
        raise InvalidArgumentError("--object goes with --export STEP OUT.")
    if not prune_older and (keep, keep_best) != (None, None):
        raise InvalidArgumentError("--keep and --keep-best go with --prune. Without it nothing is deleted.")
    found, deleted = checkpoint.prune(run_dir, keep or KEPT, keep_best or 0) if prune_older else ([], [])
    if verify or not prune_older:
        with cli._reports.Progress("MB of commits read", "MB read", shown=verify) as progress:
            found = checkpoint.list_commits(run_dir, verify=verify, on_progress=progress.update)
    if not is_standard_output(json_file):
        cli._reports.commits_report.show(found, deleted)
        if prune_older and not deleted:
            print("nothing to delete")
    write_json(json_file, _content(run_dir, found, deleted))
    raise typer.Exit(1 if any(not commit.usable for commit in found) else 0)


def _step(text: str) -> int | None:
    if text == NEWEST:
        return None
    if not text.isdecimal():
        raise InvalidArgumentError(f"--export {text!r}: must be the step of a commit, or the word {NEWEST}.")
    return int(text)


def _content(run_dir: str, found: list[CommitInfo], deleted: list[CommitInfo]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "run_dir": run_dir,
        "commits": [commit.facts() for commit in found],
        "deleted": [commit.folder.name for commit in deleted],
    }
