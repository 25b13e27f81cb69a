"""A function as a script: `python -m samebits.audit._child.launch SPEC function.py FUNCTION` calls it in a fresh process."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle

from samebits._context import process
from samebits._inspect.tree import of_nested
from samebits.testing._final_digests import RESULT


def script() -> str:
    """Returns the script's path."""
    return os.path.abspath(__file__)


def save(function: Callable[[Path], Any], folder: Path) -> Path:
    """Writes `function` for `main`, by value with the parts of its module that it uses, and returns the file."""
    module = sys.modules.get(function.__module__)
    by_value = module is not None and module.__name__ != "__main__"
    if by_value:
        cloudpickle.register_pickle_by_value(module)
    try:
        data = cloudpickle.dumps((sys.path, function))
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)
    path = folder / "function"
    path.write_bytes(data)
    return path


def main(path: str) -> None:
    """Calls the function in `path` (the parent process has just written it) with a run directory below the run root."""
    sys.path[:], function = pickle.loads(Path(path).read_bytes())  # noqa: S301
    root = process.overrides.run_root
    assert root is not None
    value = function(root / "run")
    (root / RESULT).write_text(of_nested(value).digest())


if __name__ == "__main__":
    main(sys.argv[1])
