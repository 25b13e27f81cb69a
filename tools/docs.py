"""`python tools/docs.py [PAGE ...]` runs each page of docs/ as a user would; with --update writes what its commands print.

Tables of figures (`<!-- figures: FILE/TABLE -->`) are compared with docs/evidence/figures/, and written by --update.
So with a notebook: `python tools/docs.py --update examples/notebook.ipynb` executes it and stores the outputs of its cells.

Exit status: 0 all pages show what is printed; 1 one does not (each difference is printed).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

import doc_figures  # noqa: E402
import doc_pages  # noqa: E402
import notebook_pages  # noqa: E402


def checked(page: Path, folder: Path) -> list[str]:
    """Runs a page; returns what it shows wrongly."""
    if page.suffix == ".ipynb":
        return notebook_pages.run_notebook(page, folder)
    text = page.read_text()
    stale = [] if doc_figures.filled(text) == text else ["a table is not that of docs/evidence/figures/"]
    return [*stale, *doc_pages.run_page(page, folder)]


def update(page: Path, folder: Path) -> list[str]:
    """Runs a page, and replaces tables that are not those of their files and output that is not what a command prints."""
    if page.suffix == ".ipynb":
        notebook_pages.update(page, folder)
        return []
    text, outputs = doc_figures.filled(page.read_text()), []
    wrong = doc_pages.run_page(page, folder, outputs)
    at = 0  # in the order of the page, on which a command may stand twice
    for command, shown, printed in outputs:
        old = new = f"$ {command}\n{shown}"
        if not doc_pages.is_shown(printed, shown, folder):
            new = f"$ {command}\n{doc_pages.shown_as(printed, folder)}"
        at = text.index(old, at)
        text, at = f"{text[:at]}{new}{text[at + len(old) :]}", at + len(new)
    page.write_text(text)
    return [one for one in wrong if not one.startswith("$ ")]


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*", type=Path)
    parser.add_argument("--update", action="store_true")
    arguments = parser.parse_args()
    notebooks = (ROOT / "examples").glob("*.ipynb")
    pages = arguments.pages or [*sorted((ROOT / "docs").rglob("*.md")), *notebooks]
    failed = 0
    for page in pages:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            where = Path(folder).resolve()
            wrong = update(page, where) if arguments.update else checked(page, where)
        ran = sum(block.runs for block in doc_pages.blocks(page))
        print(
            f"{page}: {ran} fences, {time.monotonic() - began:.1f} s{', WRONG' if wrong else ''}", flush=True
        )
        print(*wrong, sep="\n", end="\n" if wrong else "")
        failed += bool(wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
