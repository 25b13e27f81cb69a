"""`samebits diff`: where two recorded runs part."""

from __future__ import annotations

from typing import Annotated

import typer

from samebits.audit.compare import first_difference
from samebits.audit.record.reading import read_record


def diff(
    first: Annotated[str, typer.Argument(metavar="DIR_A", help="What `samebits run --record` wrote.")],
    second: Annotated[str, typer.Argument(metavar="DIR_B")],
) -> None:
    """Say the first step and component at which two recorded runs differ.

    Exit status: 0 they are equal, 1 they differ, 2 one cannot be read.
    """
    found = first_difference(read_record(first), read_record(second))
    print(found.sentence() if found else "equal")
    raise typer.Exit(1 if found else 0)
