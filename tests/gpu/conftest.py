"""One process of a self-check: `python -m samebits.selfcheck.worker PART FILE DEVICE` runs the cases of a part that
FILE has not.

FILE gets a line of JSON before each case and one after it, so that its reader knows which case ran when the process
died. It ends at a case's time limit, and after an error of CUDA, which spoils later results.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
import traceback
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from samebits.audit._child.launch import die_with_parent
from samebits.selfcheck import device_faults, parts
from samebits.selfcheck.case import Case, Target

EXIT_ALL_RUN, EXIT_AGAIN, EXIT_LIMIT = 0, 3, 4
"""All cases have run; another process must continue; a case ran past its limit."""


def main(part: str, file: str, device: str) -> int:
    """Returns the exit status."""
    die_with_parent()
    path = Path(file)
    done = {line["case"] for line in read(path)}
    for case in parts.part_named(part).cases():
        if case.name in done:
            continue
        _note(path, {"case": case.name, "state": "begun", "limit_s": case.limit_s})
        outcome = _run(case, device)
        _note(path, outcome)
        if outcome.get("fault"):
            return EXIT_AGAIN
    return EXIT_ALL_RUN


def read(path: Path) -> list[dict[str, Any]]:
    """Returns the lines of a file that a worker wrote; its last one may be cut off."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def _note(path: Path, content: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{json.dumps(content)}\n")
        file.flush()
        os.fsync(file.fileno())


def _run(case: Case, device: str) -> dict[str, Any]:
    missing = [name for name in case.needs if find_spec(name) is None]
    if missing:
        return {"case": case.name, "state": "skipped", "wrong": [], "why": f"needs {', '.join(missing)}"}
    began, limit = time.monotonic(), threading.Timer(case.limit_s, os._exit, [EXIT_LIMIT])
    limit.daemon = True
    limit.start()
    try:
        with tempfile.TemporaryDirectory(prefix="samebits-selfcheck-") as folder:
            measured = case.measure(Target(device, folder=Path(folder)))
            device_faults.wait(device)  # an error of the device belongs to this case, not to the next
        wrong = list(case.judge(measured.results))
        outcome: dict[str, Any] = {
            "figures": measured.figures,
            "goals": measured.goals,
            "results": len(measured.results),
        }
    except Exception as error:
        traceback.print_exc()
        wrong, outcome = (
            [f"{type(error).__name__}: {_first_line(error)}"],
            {"fault": device_faults.is_fault(error) or device_faults.is_device_lost(device)},
        )
    finally:
        limit.cancel()
    seconds = round(time.monotonic() - began, 2)
    return {
        "case": case.name,
        "state": "failed" if wrong else "passed",
        "wrong": wrong,
        "seconds": seconds,
        **outcome,
    }


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "")[:300]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
