"""The reviewed overloads and the table's facts about each, from text files. Reading them executes nothing.

One line per overload in `snapshot.csv`, as the pinned version of torch has it, which its first line names;
the differences of other versions are in `versions.csv`. `tools/op_table/update.py` writes them.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from samebits.determinism._environment import running_version
from samebits.determinism._reviewed_schemas import FILES

FILE, FILE_OTHERS = FILES


@dataclass(frozen=True)
class OverloadRow:
    """One overload: facts of torch (the first five) and measurements. Empty: not known."""

    name: str
    """Without `aten::`, as `sum.dim_IntList`."""
    schema: str
    """First 12 digits of the SHA-256 of its schema."""
    traits: tuple[str, ...]
    """torch's tags that matter here, and the facts of its schema: `view`, `factory`, `inplace`, `out`."""
    kernels: tuple[str, ...]
    """Dispatch keys of CPU and CUDA with a kernel, or `composite` or `explicit` (one for all devices)."""
    form_of: str
    """The functional overload whose in-place or out form this is; its own name when it is that one."""
    calls: tuple[str, ...] = ()
    """The ops that a composite called; `nothing` where it called no other kernel."""
    source: str = ""
    """The source of the measurement: `battery` or `opinfo`."""
    runs: str = ""
    """`equal` or `varies`, from run to run."""
    threads: str = ""
    """`equal` or `varies`, over thread counts; empty where no tensor was large enough to be split."""
    kernel: str = ""
    """The kernel that was measured: `ours` or `torch`."""
    tested: str = ""
    """The version of torch it was measured with."""

    @property
    def generated(self) -> bool:
        """True if it may be one that torch generates: it calls the functional form, and copies."""
        return self.kernels == ("explicit",) and self.form_of != self.name

    @property
    def is_called(self) -> bool:
        """True for the functional overloads of an op, and for those of an op that exists in place."""
        in_place = self.name.partition(".")[0].endswith("_")
        return (self.form_of == self.name or in_place) and "out" not in self.traits

    def has_kernel(self, device: str) -> bool:
        """Returns True if it runs on `device` (`cpu` or `cuda`), for some layout."""
        return any(key in {"composite", "explicit"} or key.endswith(device.upper()) for key in self.kernels)


_LISTS = ("traits", "kernels", "calls")
TITLE = "# torch "


@dataclass(frozen=True)
class ReviewedOverloads:
    """The version of torch that was reviewed, and its overloads by name."""

    torch: str
    rows: dict[str, OverloadRow]


@cache
def all_reviews() -> dict[str, ReviewedOverloads]:
    """Returns all reviewed versions of torch, the pinned one first."""
    pinned = read(FILE)
    return {pinned.torch: pinned, **read_others(FILE_OTHERS, pinned)}


@cache
def reviewed() -> ReviewedOverloads:
    """Returns the review of the running torch, else of the newest version before it, or of the oldest.

    Example:
        >>> review = samebits.determinism.table.reviewed()
        >>> review.rows["cumsum_"].form_of, review.rows["cumsum_"].traits
        ('cumsum', ('inplace',))
    """
    found = sorted(all_reviews().values(), key=lambda one: version_numbers(one.torch))
    before = [one for one in found if version_numbers(one.torch) <= version_numbers(running_version())]
    return (before or found)[-1 if before else 0]


def read(path: Path) -> ReviewedOverloads:
    """Reads a snapshot file."""
    with path.open(encoding="ascii", newline="") as file:
        version = file.readline().removeprefix(TITLE).strip()
        rows = [_row(line) for line in csv.DictReader(file)]
    return ReviewedOverloads(version, {row.name: row for row in rows})


def read_others(path: Path, pinned: ReviewedOverloads) -> dict[str, ReviewedOverloads]:
    """Reads the other reviewed versions: a line is an overload there; without a schema, it is gone."""
    rows: dict[str, dict[str, OverloadRow]] = {}
    with path.open(encoding="ascii", newline="") as file:
        file.readline()
        for line in csv.DictReader(file):
            version, row = line.pop("torch"), _row(line)
            there = rows.setdefault(version, dict(pinned.rows))
            there[row.name] = row
    return {
        version: ReviewedOverloads(version, {name: row for name, row in there.items() if row.schema})
        for version, there in rows.items()
    }


def version_numbers(version: str) -> tuple[int, ...]:
    """Returns `2.13.0` as numbers, for sorting."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _row(line: dict[str, str]) -> OverloadRow:
    lists = {name: tuple(line[name].split()) for name in _LISTS}
    return OverloadRow(**{**line, **lists})  # type: ignore[arg-type]
