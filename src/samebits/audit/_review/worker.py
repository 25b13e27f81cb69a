"""A process that measures cases by name, one JSON line each way, until its input ends.

`python -m samebits.audit._review.worker SETTINGS`: a crash, a hang or a leaked setting of one case stays in here.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

from samebits.audit._child.launch import die_with_parent
from samebits.audit._review import catalogue
from samebits.audit._review.measure import measure
from samebits.determinism import enable_op_determinism
from samebits.random import set_random_seed


def main() -> None:
    """Answers on what was standard output; what cases print goes to standard error."""
    die_with_parent()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    settings = json.loads(sys.argv[1])
    warnings.simplefilter("ignore")
    set_random_seed(0)
    if settings["switch"]:
        enable_op_determinism(thread_invariant=settings["thread_invariant"])
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), file=answers, flush=True)


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    jobs: dict[str, Callable[[str], Any]] = {
        "list": lambda source: [case.full_name for case in catalogue.cases(source)],
        "measure": lambda name: measure(catalogue.find(name)).to_dict(),
    }
    return {"answer": jobs[asked["job"]](asked["name"])}


if __name__ == "__main__":
    main()
