"""The digest of the commits in the run directories that a program left."""

from __future__ import annotations

from pathlib import Path

from samebits import _digest as digest
from samebits.checkpoint._run_directory import MARKER
from samebits.checkpoint._store import CommitStore
from samebits.errors import VerifyError

RESULT = "samebits-result"
"""File with the digest of a function's result."""


def final_digest(root: Path) -> str:
    """Returns the digest of every run below `root`: its objects, gradients and `run.state`; and of a function's result.

    Raises `VerifyError` when there is no run, or one has not finished.
    """
    parts = []
    for folder in _run_dirs(root):
        found = CommitStore(folder).newest()
        if found is None or not found[0].finished:
            raise VerifyError(
                f"run_and_kill: the run in {folder.name} did not come to its end: it was left by `break`?"
            )
        state = found[1]
        parts.append([str(folder.relative_to(root)), state["objects"], state["grads"], state["run_state"]])
    if not parts:
        raise VerifyError("run_and_kill: the program made no run directory: samebits.Run(run_dir, ...) does.")
    result = root / RESULT
    return digest.of_value([parts, result.read_text() if result.exists() else ""])


def newest_step(root: Path) -> int:
    """Returns the step of the newest commit below `root`; 0 without one."""
    found = [CommitStore(folder).newest() for folder in _run_dirs(root)]
    return max((manifest.step for manifest, _ in filter(None, found)), default=0)


def _run_dirs(root: Path) -> list[Path]:
    return sorted(marker.parent for marker in root.rglob(MARKER))
