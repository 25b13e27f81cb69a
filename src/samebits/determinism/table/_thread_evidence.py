"""Cases that show the same bits of an overload over threads: only cases that could have differed.

One line per overload in `seen.csv`: its name, and at most three names of cases (`make review`), apart by ";".
`tools/op_table/update.py` writes it.
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("seen.csv")
APART = "; "


@cache
def seen_cases() -> dict[str, tuple[str, ...]]:
    """Returns the cases of each overload, by its name without `aten::`."""
    return read(FILE)


def read(path: Path) -> dict[str, tuple[str, ...]]:
    """Reads such a file."""
    with path.open(encoding="ascii", newline="") as file:
        return {line["name"]: tuple(line["cases"].split(APART)) for line in csv.DictReader(file)}
