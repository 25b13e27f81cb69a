"""Files that a script opens for writing outside of its run directory: another run would overwrite or append."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CACHES = (os.sep + "__pycache__" + os.sep, os.sep + ".cache" + os.sep)
_SCRATCH = (os.environ.get("TMPDIR", "/tmp"), "/dev", "/proc")  # noqa: S108 (not tempfile: it would settle the folder)

_listeners: list[Callable[[str], None]] = []
_hooked: list[bool] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _listeners:
        path, _, flags = arguments
        if isinstance(flags, int) and flags & _WRITING and isinstance(path, str | bytes | os.PathLike):
            for listener in _listeners:
                listener(os.fsdecode(path))


@contextmanager
def outside_writes(
    allowed: Iterable[str | os.PathLike[str] | None], note: Callable[[str], None]
) -> Iterator[None]:
    """Names through `note`, once each, files opened for writing below none of `allowed` while the block runs.

    Python's audit hooks cannot be removed: afterwards ours stays and does nothing.
    """
    roots = [os.path.realpath(root) + os.sep for root in (*allowed, *_SCRATCH) if root]
    start, seen = os.getcwd(), set()

    def opened(path: str) -> None:
        if path in seen:
            return
        seen.add(path)
        full = os.path.realpath(path)
        if not full.startswith(tuple(roots)) and not any(cache in full for cache in _CACHES):
            relative = os.path.relpath(full, start)
            note(f"writes outside its run directory: {full if relative.startswith('..') else relative}")

    if not _hooked:
        sys.addaudithook(_hook)
        _hooked.append(True)
    _listeners.append(opened)
    try:
        yield
    finally:
        _listeners.remove(opened)
