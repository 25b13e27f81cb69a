"""`python tools/op_table/review.py --only sum`: one line per case, for work on a kernel."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from samebits.audit._review.catalogue import SOURCES
from samebits.audit._review.report import show
from samebits.audit._review.review import review


def main() -> int:
    """The exit status of the review."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", action="append", default=[], help="cases whose full name contains this; again for more"
    )
    parser.add_argument(
        "--source", action="append", choices=SOURCES, help="where cases come from [default: all]"
    )
    parser.add_argument("--off", action="store_true", help="without the switch")
    parser.add_argument(
        "--no-thread-invariance", action="store_true", help="the switch without thread invariance"
    )
    parser.add_argument("--jobs", type=int, help="worker processes at the same time")
    parser.add_argument("--json", type=Path, help="write the result there")
    asked = parser.parse_args()
    result = review(
        switch=not asked.off,
        thread_invariant=not asked.no_thread_invariance,
        only=asked.only,
        sources=asked.source or SOURCES,
        jobs=asked.jobs,
        each_line=True,
    )
    show(result)
    if asked.json is not None:
        result.write_json(asked.json)
    return result.exit


if __name__ == "__main__":
    sys.exit(main())
