"""The disk: the names in a folder made durable, and the cure for each error."""

from __future__ import annotations

import errno
import os
from pathlib import Path

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


def sync_folder(path: Path) -> None:
    """Makes the names in a folder durable. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
