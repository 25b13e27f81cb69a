"""The reviewed overloads and the table's facts about each, from text files. Reading them executes nothing.

One line per overload in `snapshot.csv`, as the pinned version of torch has it, which its first line names; the
differences of other versions are in `versions.csv`. `update` writes them.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from functools import cache
from pathlib import Path

from samebits.determinism._reviewed_schemas import FILES, running_version

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
    """The ops that a composite called."""
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

    def has_kernel(self, device: str) -> bool:
        """Returns True if it runs on `device` (`cpu` or `cuda`), for some layout."""
        return any(key in {"composite", "explicit"} or key.endswith(device.upper()) for key in self.kernels)


NOTHING = ("nothing",)
"""The calls of a composite that called no other kernel."""

_LISTS = ("traits", "kernels", "calls")
_TITLE = "# torch "
_COLUMNS = tuple(field.name for field in fields(OverloadRow))
_COLUMNS_OTHERS = (*_COLUMNS[:2], "torch", *_COLUMNS[2:])


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
    """Returns the review of the running torch; where there is none, that of the newest version before it, or of the oldest.

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
        version = file.readline().removeprefix(_TITLE).strip()
        rows = [_row(line) for line in csv.DictReader(file)]
    return ReviewedOverloads(version, {row.name: row for row in rows})


def write(snapshot: ReviewedOverloads, path: Path) -> None:
    """Writes a snapshot file, sorted by name, so that two of them can be compared as text."""
    lines = (_cells(row) for row in sorted(snapshot.rows.values(), key=lambda row: row.name))
    _write(path, f"{_TITLE}{snapshot.torch}", _COLUMNS, lines)


def read_others(path: Path, pinned: ReviewedOverloads) -> dict[str, ReviewedOverloads]:
    """Reads the other reviewed versions: a line is an overload as one version has it; without a schema, it is gone there."""
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


def write_others(others: Iterable[ReviewedOverloads], path: Path, pinned: ReviewedOverloads) -> None:
    """Writes the differences of the other versions from the pinned one, sorted by version and name."""
    lines = [
        (one.name, one.schema, other.torch, *_cells(one)[2:])
        for other in sorted(others, key=lambda other: version_numbers(other.torch))
        for one in _changes(other, pinned)
    ]
    _write(path, "# what other versions of torch have otherwise than the pinned one", _COLUMNS_OTHERS, lines)


def version_numbers(version: str) -> tuple[int, ...]:
    """Returns `2.13.0` as numbers, for sorting."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _changes(other: ReviewedOverloads, pinned: ReviewedOverloads) -> Iterator[OverloadRow]:
    for name in sorted({*other.rows, *pinned.rows}):
        now, there = other.rows.get(name), pinned.rows.get(name)
        if now != there:
            yield now or OverloadRow(name, "", (), (), "")


def _write(path: Path, title: str, columns: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    with path.open("w", encoding="ascii", newline="") as file:
        file.write(f"{title}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(lines)


def _row(line: dict[str, str]) -> OverloadRow:
    lists = {name: tuple(line[name].split()) for name in _LISTS}
    return OverloadRow(**{**line, **lists})  # type: ignore[arg-type]


def _cells(row: OverloadRow) -> list[str]:
    return [cell if isinstance(cell, str) else " ".join(cell) for cell in astuple(row)]
