"""Writes the files of the op table: `snapshot.csv`, `versions.csv` and `seen.csv`, which `samebits.determinism.table` reads."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, fields
from pathlib import Path

from samebits.determinism.table._evidence import APART
from samebits.determinism.table._overload_facts import TITLE, OverloadRow, ReviewedOverloads, version_numbers

MOST = 3
"""Cases that `seen.csv` names of an overload, at most."""
_COLUMNS = tuple(field.name for field in fields(OverloadRow))
_COLUMNS_OTHERS = (*_COLUMNS[:2], "torch", *_COLUMNS[2:])


def write(snapshot: ReviewedOverloads, path: Path) -> None:
    """Writes a snapshot file, sorted by name, so that two of them can be compared as text."""
    lines = (_cells(row) for row in sorted(snapshot.rows.values(), key=lambda row: row.name))
    _write(path, f"{TITLE}{snapshot.torch}", _COLUMNS, lines)


def write_others(others: Iterable[ReviewedOverloads], path: Path, pinned: ReviewedOverloads) -> None:
    """Writes the differences of the other versions from the pinned one, sorted by version and name."""
    lines = [
        (one.name, one.schema, other.torch, *_cells(one)[2:])
        for other in sorted(others, key=lambda other: version_numbers(other.torch))
        for one in _changes(other, pinned)
    ]
    _write(path, "# what other versions of torch have otherwise than the pinned one", _COLUMNS_OTHERS, lines)


def write_cases(cases: Mapping[str, tuple[str, ...]], path: Path) -> None:
    """Writes the cases by which overloads were equal over threads, sorted by name."""
    with path.open("w", encoding="ascii", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("name", "cases"))
        writer.writerows((name, APART.join(cases[name][:MOST])) for name in sorted(cases))


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


def _cells(row: OverloadRow) -> list[str]:
    return [cell if isinstance(cell, str) else " ".join(cell) for cell in astuple(row)]
