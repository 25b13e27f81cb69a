"""The commits of a run for a person: a table, or plain lines where it is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from samebits.checkpoint._listing import DAMAGED, NEWER, VALID, CommitInfo
from samebits.cli._error_messages import printable

COLUMNS = ("step", "position", "age", "size", "digest", "parent", "state")
STYLES = {VALID: "green", DAMAGED: "bold red", NEWER: "yellow"}
GAP = 2
"""Columns between two columns of the table."""
FOLDS = ({}, {"parent": 8}, {"parent": 8, "digest": 16})
"""Widths of folded columns: the first of these that leaves room for all columns is used."""
NARROWEST = 72
"""Below, no table has room for all columns: plain lines, which the terminal wraps."""
UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def show(commits: Sequence[CommitInfo], deleted: Sequence[CommitInfo]) -> None:
    """Prints the commits, newest first, their damages, and the deleted ones."""
    terminal = sys.stdout.isatty()
    console = Console(highlight=False, width=None if terminal else 10_000)
    if terminal and console.width >= NARROWEST:
        console.print(_table(commits, console.width))
    else:
        for cells in [COLUMNS, *_lines(commits)] if commits else []:
            console.print(Text("  ".join(cells)), soft_wrap=True)
    for commit in commits:
        if commit.reason:
            text = Text(f"{commit.folder.name}: {printable(commit.reason)}", style="red")
            console.print(text, soft_wrap=True)
    if not commits:
        console.print("no commits")
    if deleted:
        console.print(f"deleted: {', '.join(commit.folder.name for commit in deleted)}", soft_wrap=True)


def _table(commits: Sequence[CommitInfo], width: int) -> Table:
    """Returns a table with all columns at any width: rich omits the last ones if it is narrow."""
    lines = _lines(commits)
    widest = [max(map(len, cells)) for cells in zip(COLUMNS, *lines, strict=True)]
    fits = (folds for folds in FOLDS if _needed(widest, folds) <= width)
    folds = next(fits, FOLDS[-1])
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, GAP - 1, 0, 0))
    for column in COLUMNS:
        table.add_column(
            column,
            justify="right" if column in ("step", "age", "size") else "left",
            overflow="fold",  # a digest that is cut short cannot be compared
            width=folds.get(column),
            no_wrap=column in ("step", "age", "size"),
        )
    for commit, (*cells, state) in zip(commits, lines, strict=True):
        table.add_row(*map(Text, cells), Text(state, style=STYLES.get(commit.status, "")))
    return table


def _needed(widest: Sequence[int], folds: Mapping[str, int]) -> int:
    return sum(folds.get(column, wide) + GAP for column, wide in zip(COLUMNS, widest, strict=True))


def _lines(commits: Sequence[CommitInfo]) -> list[tuple[str, ...]]:
    """Returns the cells of each commit. A parent in the list is shown by its step."""
    steps = {commit.manifest.digest: str(commit.step) for commit in commits if commit.manifest is not None}
    return [_cells(commit, steps) for commit in commits]


def _cells(commit: CommitInfo, steps: Mapping[str, str]) -> tuple[str, ...]:
    manifest = commit.manifest
    if manifest is None:
        return str(commit.step), "-", _age(commit.folder.modified()), "-", "-", "-", commit.status
    state = commit.status + (", finished" if manifest.finished else "")
    size = "-" if commit.size is None else f"{commit.size / 1e6:.3f} MB"
    size += f" in {len(commit.parts)} parts" if commit.parts else ""
    parent = "-" if manifest.parent is None else steps.get(manifest.parent) or _bits(manifest.parent)
    position = printable(_position(manifest.position))
    age, digest = _age(commit.folder.modified()), _bits(manifest.digest)
    return str(commit.step), position, age, size, digest, parent, state


def _position(at: Any) -> str:
    return f"{at.get('loop', '?')} epoch {at.get('epoch', '?')} batch {at.get('batch_index', '?')}"


def _bits(digest: str) -> str:
    return printable(digest.rpartition(":")[2])


def _age(modified: float | None) -> str:
    if modified is None:
        return "-"
    seconds = max(0, int(time.time() - modified))
    size, unit = next((unit for unit in UNITS if seconds >= unit[0]), UNITS[-1])
    return f"{seconds // size} {unit}"
