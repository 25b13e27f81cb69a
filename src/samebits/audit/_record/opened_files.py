"""Files that a script opens: those it writes outside of its run directory, and digests of those it reads."""

from __future__ import annotations

import hashlib
import math
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from samebits._context import cache_root

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CACHES = (os.sep + "__pycache__" + os.sep, os.sep + ".cache" + os.sep)
# not tempfile: it would settle the folder
_SCRATCH = (os.environ.get("TMPDIR", "/tmp"), "/dev", "/proc")  # noqa: S108

OUTSIDE = "writes outside its run directory: "
"""The beginning of a note of a recorder."""

_watched: list[tuple[dict[str, None], dict[str, None] | None]] = []
"""The files that each `record_opened_files` has seen: written, and read (None: these do not count)."""
NOT_COMPUTED = "not computed: "
"""The beginning of the reason why a file has no digest."""
MOST_BYTES = 4 << 30
"""Bytes of all files together that are digested at most; the files beyond have no digest."""
_hooked: list[bool] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _watched:
        path, _, flags = arguments
        if not isinstance(flags, int) or not isinstance(path, str | bytes | os.PathLike):
            return
        for written, read in _watched:
            if flags & _WRITING:
                written.setdefault(os.path.realpath(os.fsdecode(path)))
            elif read is not None:
                read.setdefault(os.path.abspath(os.fsdecode(path)))
    elif event == "os.rename" and _watched:  # `os.replace` is one, too
        before, after = (os.path.realpath(os.fsdecode(path)) for path in arguments[:2])
        for written, _ in _watched:
            if before in written:
                del written[before]
                written.setdefault(after)


@contextmanager
def record_opened_files(written: dict[str, None], read: dict[str, None] | None = None) -> Iterator[None]:
    """Adds to `written` and `read`, once each and in order, the files that Python opens while the block runs.

    `written` gets real paths; a file that is renamed (written under another name first) has its last name.
    `read` gets absolute paths. Libraries that open files in C (cv2, HDF5) are not seen, nor are loader
    workers, which are processes of their own. Python's audit hooks cannot be removed: ours stays and does
    nothing.
    """
    if not _hooked:
        sys.addaudithook(_hook)
        _hooked.append(True)
    _watched.append((written, read))
    try:
        yield
    finally:
        _watched[:] = [pair for pair in _watched if pair[0] is not written]


def digests(
    files: Iterable[str],
    left_out: Iterable[str | os.PathLike[str] | None],
    start: str,
    began: float = math.inf,
) -> dict[str, str]:
    """Returns the SHA-256 of each file of the user's, by its path, relative if it is below `start`.

    A file that has changed since `began`, in seconds since 1970, has none.

    Files of Python, of installed packages and of the system, and those below `left_out`, are not the user's.
    """
    installed = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    system = ("/sys", "/etc", "/usr", "/lib")
    others = (*left_out, *installed, *_compiled(), Path(__file__).parents[2], *system)
    roots, scratch = (
        tuple(os.path.realpath(root) + os.sep for root in one if root) for one in (others, _SCRATCH)
    )
    own = os.path.realpath(start) + os.sep  # which may be in the scratch itself
    found, size = {}, 0
    for path in dict.fromkeys(map(os.path.realpath, files)):
        left = path.startswith(roots) or (path.startswith(scratch) and not path.startswith(own))
        if left or any(cache in path for cache in _CACHES) or not os.path.isfile(path):
            continue
        relative = os.path.relpath(path, start)
        size += os.path.getsize(path)
        name = path if relative.startswith("..") else relative
        if os.path.getmtime(path) > began:
            found[name] = f"{NOT_COMPUTED}it has changed since the run began"
        else:
            too_large = f"{NOT_COMPUTED}more than {MOST_BYTES >> 30} GiB are read"
            found[name] = _sha256(path) if size <= MOST_BYTES else too_large
    return found


def _sha256(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return f"{NOT_COMPUTED}{error.strerror}"


def lines_outside(
    files: Iterable[str], allowed: Iterable[str | os.PathLike[str] | None], start: str
) -> list[str]:
    """Returns a line for each of `files` below none of `allowed`, with its path, relative below `start`."""
    roots = tuple(os.path.realpath(root) + os.sep for root in (*allowed, *_SCRATCH, *_compiled()) if root)
    lines = []
    for full in files:
        if not full.startswith(roots) and not any(cache in full for cache in _CACHES):
            relative = os.path.relpath(full, start)
            lines.append(f"{OUTSIDE}{full if relative.startswith('..') else relative}")
    return lines


def _compiled() -> list[Path]:
    """Returns the folder of compiled kernels, which the script did not ask for."""
    try:
        return [cache_root()]
    except RuntimeError:  # there is no home directory
        return []
