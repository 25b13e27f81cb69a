"""The command `samebits`. It starts here, before it imports torch or typer.

Read `_app.py` first. Doors: here and in pyproject.toml. Imports: `testing` and below.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import samebits
from samebits._lazy_imports import attach

if TYPE_CHECKING:
    from samebits.cli import _app as _app
    from samebits.cli import _reports as _reports

__getattr__, __dir__ = attach(__name__)


def main() -> None:
    """Runs the command of `sys.argv`. Exit status 2 and one line on standard error when it could not run."""
    words = sys.argv[1:]
    if words == ["--version"]:
        print(f"samebits {samebits.__version__}")
        return
    if words[:1] == ["run"]:
        _fix_hash_seed()
    samebits.cli._app.main()


def _fix_hash_seed() -> None:
    """Starts this very command again, once: Python reads PYTHONHASHSEED only at its start.

    Exit status 2 and one line where Python is set not to read it.
    """
    if sys.flags.ignore_environment and not {"--help", "-h"} & {*sys.argv[2:3]}:
        option = "-I" if sys.flags.isolated else "-E"
        sys.stderr.write(
            f"samebits: run: Python was started with {option} and reads no PYTHONHASHSEED, so the order of "
            f"sets would differ from run to run. Start it without {option}.\n"
        )
        sys.exit(2)
    if os.environ.get("PYTHONHASHSEED") in (None, "", "random"):
        os.environ["PYTHONHASHSEED"] = "0"
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - no shell is the point
