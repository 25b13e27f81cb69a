"""`samebits diff`: the first difference of two recorded runs."""

from __future__ import annotations

from typing import Annotated

import typer

from samebits import audit


def diff(
    first: Annotated[str, typer.Argument(metavar="DIR_A", help="What `samebits run --record` wrote.")],
    second: Annotated[str, typer.Argument(metavar="DIR_B")],
) -> None:
    """Say the first step and component at which two recorded runs differ, and how many steps were compared.

    Exit status: 0 they are equal, 1 they differ (also: one alone raised), 2 it is unknown: one cannot be read, both
    raised, one was killed, or they have no step in common.
    """
    read = audit._record.read_record.read_record
    found = audit._diff.comparison.compare(read(first), read(second))
    print(found.sentence())
    raise typer.Exit(found.exit)
