"""Errors of the disk, as of a full one: the cure for each, and the error of a commit that it made fail."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from samebits.checkpoint._writer.commit_folder import Commit
from samebits.errors import CommitError

CURES = {
    errno.ENOSPC: "Free some space",
    errno.EDQUOT: "Free some of your quota",
    errno.EFBIG: "Raise the limit on file sizes (ulimit -f)",
    errno.EROFS: "Mount the file system writable again",
    errno.EIO: "The disk is failing: copy the run directory to another one",
    errno.ESTALE: "The run directory was renamed, and another folder has its name now: put it back",
    errno.EACCES: "Give this user write permission",
    errno.EPERM: "Give this user write permission",
    errno.ENOTDIR: "Something in the path is a file: remove it",
    errno.EEXIST: "Something in the path is a file: remove it",
    errno.ELOOP: "It is a symbolic link, or links lead in a circle: remove it",
}
"""The cure for each error of the disk."""


def commit_error(error: OSError, run_dir: Path, step: int, nbytes: int, last: Commit | None) -> CommitError:
    """Returns the error in one line: which commit, why, bytes wanted and free, what is safe, the cure."""
    if not run_dir.exists():
        return CommitError(
            f"commit of step {step} to {run_dir} failed: the run directory was removed, or its disk is gone. "
            "Put it back and run again: it resumes from the newest commit in it, if there is one."
        )
    safe = f"The commit of step {last.step} is safe" if last else "There is no earlier commit"
    cure = CURES.get(error.errno or 0, "Remove the cause")
    after = f"resumes from step {last.step}" if last else "starts at the first step"
    return CommitError(
        f"commit of step {step} to {run_dir} failed: {error.strerror or error} "
        f"({_size(nbytes)} wanted, {_free(run_dir)} free). {safe}. {cure} and run again: it {after}."
    )


def _free(run_dir: Path) -> str:
    try:
        return _size(shutil.disk_usage(run_dir).free)
    except OSError as error:
        return os.strerror(error.errno or 0)


def _size(number: int) -> str:
    return f"{number / 1e6:.3f} MB"
