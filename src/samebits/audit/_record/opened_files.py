"""Files that a script opens: those that it writes outside of its run directory, and the SHA-256 of those that it reads."""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from samebits._context import cache_root

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CACHES = (os.sep + "__pycache__" + os.sep, os.sep + ".cache" + os.sep)
_SCRATCH = (os.environ.get("TMPDIR", "/tmp"), "/dev", "/proc")  # noqa: S108 (not tempfile: it would settle the folder)

OUTSIDE = "writes outside its run directory: "
"""The beginning of a note of a recorder."""

_listeners: list[Callable[[str, str | None], None]] = []
"""Each is called with a path that is opened for writing, or with one and the path that it is renamed to."""
_readers: list[Callable[[str], None]] = []
"""Each is called with a path that is opened for reading."""
MOST_BYTES = 4 << 30
"""Bytes of all files together that are digested at most; the files beyond have no digest."""
_hooked: list[bool] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and (_listeners or _readers):
        path, _, flags = arguments
        if not isinstance(flags, int) or not isinstance(path, str | bytes | os.PathLike):
            return
        if flags & _WRITING:
            for listener in _listeners:
                listener(os.fsdecode(path), None)
        else:
            for reader in _readers:
                reader(os.fsdecode(path))
    elif event == "os.rename" and _listeners:  # `os.replace` is one, too
        before, after, *_ = arguments
        for listener in _listeners:
            listener(os.fsdecode(before), os.fsdecode(after))


@contextmanager
def record_written_files(files: dict[str, None]) -> Iterator[None]:
    """Adds to `files`, once each and in order, the real path of each file that is opened for writing while the block
    runs.

    A file that is renamed (written under another name first) has its last name.
    Python's audit hooks cannot be removed: afterwards ours stays and does nothing.
    """

    def opened(path: str, renamed: str | None) -> None:
        real = os.path.realpath(path)
        if renamed is None:
            files.setdefault(real)
        elif real in files:
            del files[real]
            files.setdefault(os.path.realpath(renamed))

    _install()
    _listeners.append(opened)
    try:
        yield
    finally:
        _listeners.remove(opened)


@contextmanager
def record_read_files(files: dict[str, None]) -> Iterator[None]:
    """Adds to `files` the absolute path of each file that Python opens for reading while the block runs.

    Libraries that open files in C (cv2, HDF5) are not seen, nor are loader workers, which are processes of their own.
    """

    def opened(path: str) -> None:
        files.setdefault(os.path.abspath(path))

    _install()
    _readers.append(opened)
    try:
        yield
    finally:
        _readers.remove(opened)


def _install() -> None:
    if not _hooked:
        sys.addaudithook(_hook)
        _hooked.append(True)


def digests(
    files: Iterable[str], left_out: Iterable[str | os.PathLike[str] | None], start: str
) -> dict[str, str]:
    """Returns the SHA-256 of each file that is the user's; those below the folder `start` by their relative path.

    Files of Python, of installed packages and of the system, and those below `left_out`, are not the user's.
    """
    installed = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    others = (
        *left_out,
        *installed,
        *_SCRATCH,
        *_compiled(),
        Path(__file__).parents[2],
        "/sys",
        "/etc",
        "/usr",
        "/lib",
    )
    roots = tuple(os.path.realpath(root) + os.sep for root in others if root)
    found, size = {}, 0
    for path in dict.fromkeys(map(os.path.realpath, files)):
        if path.startswith(roots) or any(cache in path for cache in _CACHES) or not os.path.isfile(path):
            continue
        relative = os.path.relpath(path, start)
        size += os.path.getsize(path)
        name = path if relative.startswith("..") else relative
        found[name] = (
            _sha256(path)
            if size <= MOST_BYTES
            else f"not computed: more than {MOST_BYTES >> 30} GiB are read"
        )
    return found


def _sha256(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return f"not computed: {error.strerror}"


def lines_outside(
    files: Iterable[str], allowed: Iterable[str | os.PathLike[str] | None], start: str
) -> list[str]:
    """Returns a line for each of `files` below none of `allowed`; those below the folder `start` by their relative path."""
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
