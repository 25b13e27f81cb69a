"""`make review`, `python -m lab.review --only sum`: tests the op table on this machine, over runs and threads."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lab.catalogue.sources import SOURCES
from lab.review.report import show
from lab.review.review import review
from samebits.audit._verify.child_processes import SignalledError


def main() -> int:
    """Returns the exit status: 0 as the table says, 1 not, 2 could not be checked."""
    parser = argparse.ArgumentParser(prog="python -m lab.review", description=__doc__)
    parser.add_argument(
        "--only", action="append", default=[], help="cases whose full name contains this; again for more"
    )
    parser.add_argument(
        "--source", action="append", choices=SOURCES, help="where cases come from [default: all]"
    )
    parser.add_argument("--off", action="store_true", help="without the switch")
    parser.add_argument(
        "--across", default="threads", choices=("runs", "threads"), help="of the switch [default: threads]"
    )
    parser.add_argument("--jobs", type=int, help="worker processes at the same time")
    parser.add_argument(
        "--each", action="store_true", help="a line for every case, not only for one that differs"
    )
    parser.add_argument("--json", type=Path, help="write the result there")
    asked = parser.parse_args()
    try:
        result = review(
            switch=not asked.off,
            across=asked.across,
            only=asked.only,
            sources=asked.source or SOURCES,
            jobs=asked.jobs,
            each_line=asked.each,
        )
    except SignalledError as signalled:
        return 128 + signalled.number
    show(result)
    if asked.json is not None:
        result.write_json(asked.json)
    return result.exit


if __name__ == "__main__":
    sys.exit(main())
