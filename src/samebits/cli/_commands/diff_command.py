"""`samebits diff`: the first difference of two recorded runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from samebits import audit
from samebits.cli._json_output import JsonFile, check_file, check_json_file, is_standard_output, write_json

if TYPE_CHECKING:
    from samebits.audit._comparison import Comparison

SCHEMA = "samebits.diff/1"


def diff(
    first: Annotated[
        str, typer.Argument(metavar="DIR_A", help="A folder that `samebits run --record DIR` wrote.")
    ],
    second: Annotated[str, typer.Argument(metavar="DIR_B", help="The folder of the run to compare with it.")],
    *,
    find_op: Annotated[
        bool,
        typer.Option(
            "--find-op",
            help="Start both runs again, each from its newest commit before the step that differs, and name "
            "the first op that differs there, and its cause.",
        ),
    ] = False,
    json_file: JsonFile = None,
    html: Annotated[
        str | None, typer.Option(metavar="FILE", help="Also write the result as a page for a browser.")
    ] = None,
) -> None:
    """Name the first step at which two recorded runs differ.

    It prints the rank (in jobs of torchrun), the step, the component that differs there (batch, loss, model,
    optimizer, ...), and how many steps were compared.

    Exit status: 0 they are equal; 1 they differ, or one of them raised an error; 2 could not be checked: one
    cannot be read, both raised an error, one was killed, or they have no step in common.

    Examples:
        samebits diff runs/a runs/b
        samebits diff --json - runs/a runs/b
        samebits diff --find-op runs/a runs/b

    Read more: docs/how-to/which-op.md
    """
    check_json_file(json_file)
    check_file("--html", html, "--html result.html")
    read = audit._record.record_file.read_ranks
    records = read(first), read(second)
    found = audit._comparison.compare_ranks(*records)
    if not is_standard_output(json_file):
        print(found.sentence(), flush=True)
    op = audit._trace.find_op(*records, found.difference) if find_op and found.difference else None
    if op is not None and not is_standard_output(json_file):
        print("\n".join([op.sentence(), *op.lines()]))
    if html is not None:
        rank = None if found.difference is None else found.difference.rank
        shown = records[0][rank or 0], records[1][rank or 0]
        runs = audit._comparison.ComparedRuns(("the first run", "the second run"), shown, rank=rank)
        Path(html).write_bytes(audit._html_page.diff_page(found, (first, second), runs, op))
    content = {**_content(found), "first_op": op and op.to_dict()}
    write_json(json_file, {"schema": SCHEMA, "first": first, "second": second, **content})
    raise typer.Exit(found.exit)


def _content(found: Comparison) -> dict[str, Any]:
    return {
        "result": found.sentence(),
        "exit": found.exit,
        "steps_compared": found.steps,
        "level": found.level,
        "difference": found.difference and found.difference.to_dict(),
        "unfinished": list(found.unfinished),
        "files": list(found.files),
    }
