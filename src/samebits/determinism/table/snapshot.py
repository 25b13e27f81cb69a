"""The reviewed overloads: what the table knows of each, from one text file. Reading it executes nothing.

One line per overload in `snapshot.csv`; its first line names the version of torch. `update` writes it.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("snapshot.csv")


@dataclass(frozen=True)
class Row:
    """One overload: facts of torch (the first five) and what was measured. Empty: not known."""

    name: str
    """Without `aten::`, as `sum.dim_IntList`."""
    schema: str
    """First 12 digits of the SHA-256 of its schema."""
    traits: tuple[str, ...]
    """torch's tags that matter here, and what its schema says: `view`, `factory`, `inplace`, `out`."""
    kernels: tuple[str, ...]
    """Dispatch keys of CPU and CUDA with a kernel of their own, or `composite` or `explicit` (one for all devices)."""
    form_of: str
    """The functional overload whose in-place or out form this is; its own name when it is that one."""
    calls: tuple[str, ...] = ()
    """What a composite was seen to call."""
    source: str = ""
    """Who measured it: `battery` or `opinfo`."""
    runs: str = ""
    """`equal` or `varies`, from run to run."""
    threads: str = ""
    """`equal` or `varies`, over thread counts; empty where no tensor was large enough to be split."""
    kernel: str = ""
    """Whose kernel was measured: `ours` or `torch`."""
    tested: str = ""
    """The version of torch it was measured with."""

    @property
    def generated(self) -> bool:
        """Whether it may be one that torch generates: it calls the functional form, and copies."""
        return self.kernels == ("explicit",) and self.form_of != self.name

    def has_kernel(self, device: str) -> bool:
        """Whether it runs on `device` (`cpu` or `cuda`), for some layout."""
        return any(key in {"composite", "explicit"} or key.endswith(device.upper()) for key in self.kernels)


NOTHING = ("nothing",)
"""The calls of a composite that was seen to call no other kernel."""

_LISTS = ("traits", "kernels", "calls")


@dataclass(frozen=True)
class Snapshot:
    """The version of torch that was reviewed, and its overloads by name."""

    torch: str
    rows: dict[str, Row]


@cache
def reviewed() -> Snapshot:
    """The snapshot of this package."""
    return read(FILE)


def read(path: Path) -> Snapshot:
    """Reads a snapshot file."""
    with path.open(encoding="ascii", newline="") as file:
        version = file.readline().removeprefix("# torch ").strip()
        rows = [_row(line) for line in csv.DictReader(file)]
    return Snapshot(version, {row.name: row for row in rows})


def write(snapshot: Snapshot, path: Path) -> None:
    """Writes a snapshot file, sorted by name, so that two of them can be compared as text."""
    with path.open("w", encoding="ascii", newline="") as file:
        file.write(f"# torch {snapshot.torch}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(field.name for field in fields(Row))
        writer.writerows(map(_cells, sorted(snapshot.rows.values(), key=lambda row: row.name)))


def _row(line: dict[str, str]) -> Row:
    lists = {name: tuple(line[name].split()) for name in _LISTS}
    return Row(**{**line, **lists})  # type: ignore[arg-type]


def _cells(row: Row) -> Iterable[str]:
    return (cell if isinstance(cell, str) else " ".join(cell) for cell in astuple(row))
