"""Measured tables of pages, which are written from the files of docs/evidence/figures/.

`<!-- figures: FILE/TABLE -->` begins a region, `<!-- /figures -->` ends it. Between them stand a caption (machine, date,
torch, command) and the table. bench/figures.py writes the files, `python tools/docs.py --update PAGE` the regions.
"""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "evidence" / "figures"
REGION = re.compile(r"(<!-- figures: (\S+)/(\S+) -->\n).*?(<!-- /figures -->)", re.DOTALL)
COLUMNS = 100


def run_of(file: str) -> dict[str, Any]:
    """Returns one run: its machine, date, command, torch, commit and tables."""
    path = FOLDER / f"{file}.json"
    if not path.exists():
        known = ", ".join(sorted(one.stem for one in FOLDER.glob("*.json")))
        raise ValueError(f"<!-- figures: {file}/... -->: docs/evidence/figures has {known}")
    return json.loads(path.read_text())


def filled(text: str) -> str:
    """Returns the text of a page with each region as the files have it."""
    return REGION.sub(lambda match: f"{match[1]}{region(match[2], match[3])}{match[4]}", text)


def region(file: str, name: str) -> str:
    """Returns the caption and the table of a region."""
    run = run_of(file)
    if name not in run["tables"]:
        raise ValueError(
            f"<!-- figures: {file}/{name} -->: the tables of {file} are {', '.join(run['tables'])}"
        )
    return region_of(run, name)


def region_of(run: dict[str, Any], name: str) -> str:
    """Returns the caption and a table of a run."""
    table = run["tables"][name]
    rows = [
        [shown(cell, form) for cell, form in zip(row, table["formats"], strict=True)] for row in table["rows"]
    ]
    lines = [_line(table["columns"]), f"|{'---|' * len(table['columns'])}", *map(_line, rows)]
    caption = textwrap.fill(caption_of(run), COLUMNS, break_long_words=False, break_on_hyphens=False)
    return "\n".join([caption, "", *lines, ""])


def caption_of(run: dict[str, Any]) -> str:
    """Returns the machine, date, version of torch and commit as far as they are known, and the command."""
    parts = [run["machine"][0].upper() + run["machine"][1:], run["date"]]
    parts += [f"torch {run['torch']}"] if run["torch"] else []
    parts += [f"commit {run['commit']}"] if run["commit"] else []
    return f"{', '.join(parts)}: `{run['command']}`"


def shown(cell: Any, form: str) -> str:
    """Returns a cell of a table: several numbers are parted by a stroke, None is empty."""
    if isinstance(cell, list):
        return " / ".join(shown(one, form) for one in cell)
    if cell is None or isinstance(cell, str):
        return cell or ""
    return form.format(cell) if form else str(cell)


def numbers(file: str, name: str, columns: str, rows: str = ".*") -> list[float]:
    """Returns the numbers of a table in the columns and rows whose titles match."""
    table = run_of(file)["tables"][name]
    cells = [
        cell
        for row in table["rows"] if re.fullmatch(rows, str(row[0]))
        for title, cell in zip(table["columns"], row, strict=True) if re.fullmatch(columns, title)
    ]  # fmt: skip
    return [
        one
        for cell in cells
        for one in (cell if isinstance(cell, list) else [cell])
        if isinstance(one, int | float)
    ]


def between(found: list[float]) -> str:
    """Returns a range as pages have it."""
    return f"{min(found):.2f} to {max(found):.2f}"


def typed(text: str) -> list[str]:
    """Returns the lines of tables that stand in no region."""
    return [line for line in REGION.sub("", text).splitlines() if line.startswith("|")]


def _line(cells: list[str]) -> str:
    shown = [cell.replace("|", "/") for cell in cells]
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in shown)
