"""Files that a script opens for writing outside of its run directory: another run would overwrite or append."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from samebits._context import cache_root

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CACHES = (os.sep + "__pycache__" + os.sep, os.sep + ".cache" + os.sep)
_SCRATCH = (os.environ.get("TMPDIR", "/tmp"), "/dev", "/proc")  # noqa: S108 (not tempfile: it would settle the folder)

_listeners: list[Callable[[str, str | None], None]] = []
"""Each is called with a path that is opened for writing, or with one and the path that it is renamed to."""
_hooked: list[bool] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _listeners:
        path, _, flags = arguments
        if isinstance(flags, int) and flags & _WRITING and isinstance(path, str | bytes | os.PathLike):
            for listener in _listeners:
                listener(os.fsdecode(path), None)
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

    if not _hooked:
        sys.addaudithook(_hook)
        _hooked.append(True)
    _listeners.append(opened)
    try:
        yield
    finally:
        _listeners.remove(opened)


def lines_outside(
    files: Iterable[str], allowed: Iterable[str | os.PathLike[str] | None], start: str
) -> list[str]:
    """Returns a line for each of `files` below none of `allowed`; those below the folder `start` by their relative path."""
    roots = tuple(os.path.realpath(root) + os.sep for root in (*allowed, *_SCRATCH, *_compiled()) if root)
    lines = []
    for full in files:
        if not full.startswith(roots) and not any(cache in full for cache in _CACHES):
            relative = os.path.relpath(full, start)
            lines.append(
                f"writes outside its run directory: {full if relative.startswith('..') else relative}"
            )
    return lines


def _compiled() -> list[Path]:
    """Returns the folder of compiled kernels, which the script did not ask for."""
    try:
        return [cache_root()]
    except RuntimeError:  # there is no home directory
        return []
