"""Cases that show the same bits of an overload over threads: only cases that could have differed. `update` writes it.

One line per overload in `seen.csv`: its name, and at most three names of cases (`samebits ops --review`), apart by ";".
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("seen.csv")
MOST = 3
_APART = "; "


@cache
def seen_cases() -> dict[str, tuple[str, ...]]:
    """Returns the cases of each overload, by its name without `aten::`."""
    return read(FILE)


def read(path: Path) -> dict[str, tuple[str, ...]]:
    """Reads such a file."""
    with path.open(encoding="ascii", newline="") as file:
        return {line["name"]: tuple(line["cases"].split(_APART)) for line in csv.DictReader(file)}


def write(cases: Mapping[str, tuple[str, ...]], path: Path) -> None:
    """Writes such a file, sorted by name."""
    with path.open("w", encoding="ascii", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("name", "cases"))
        writer.writerows((name, _APART.join(cases[name][:MOST])) for name in sorted(cases))
