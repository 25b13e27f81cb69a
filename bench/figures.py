"""The figures of a run as a file of docs/evidence/figures/: what every script of bench/ writes with `--json FILE`.

The pages of docs/ get their tables from these files: `make docs-update PAGES=docs/evidence/benchmarks.md`.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
RATIO, MILLISECONDS, THREE_DIGITS = "{:.2f}", "{:.3g} ms", "{:.3g}"
"""Formats of columns."""


def file_asked():
    """Takes `--json FILE` out of the arguments; returns the file, or None."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--json", type=Path)
    asked, sys.argv[1:] = parser.parse_known_args()
    return asked.json


def table(columns, rows):
    """A table: (title, format) of each column, and rows of numbers, texts, lists of numbers, or None for an empty cell."""
    return {
        "columns": [title for title, _ in columns],
        "formats": [form for _, form in columns],
        "rows": rows,
    }


def save(file, **tables):
    """Writes tables by name, with the machine, the date, torch's version, the commit and the command; nothing without a file."""
    if file is None:
        return
    import torch

    git = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    described = subprocess.run(git, cwd=ROOT, capture_output=True, text=True)
    made = {"command": command_line(), "date": time.strftime("%Y-%m-%d"), "machine": machine(), "torch": torch.__version__,
            "commit": described.stdout.strip(), "tables": tables}  # fmt: skip
    file.write_text(as_text(made))


def command_line():
    """The command as a page shows it: what stands behind `--json` is of no interest to a reader."""
    return " ".join(["python", f"bench/{Path(sys.argv[0]).name}", *sys.argv[1:]])


def machine():
    """The number of cores that this process may use, and the model of the CPU."""
    model = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return f"{len(os.sched_getaffinity(0))} cores of {model[1] if model else 'an unknown CPU'}"


def as_text(made):
    """JSON with a line for each row, so that a diff shows the rows that changed; numbers have four digits."""
    lines = []
    for name, one in made["tables"].items():
        rows = ",\n   ".join(json.dumps(rounded(row)) for row in one["rows"])
        head = "".join(f"{json.dumps(key)}: {json.dumps(one[key])},\n   " for key in ("columns", "formats"))
        lines.append(f'  {json.dumps(name)}: {{\n   {head}"rows": [\n   {rows}\n  ]}}')
    head = "".join(
        f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in made.items() if key != "tables"
    )
    return "{\n" + head + ' "tables": {\n' + ",\n".join(lines) + "\n }\n}\n"


def rounded(value):
    if isinstance(value, (list, tuple)):
        return [rounded(one) for one in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value
