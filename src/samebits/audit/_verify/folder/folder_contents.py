"""What lies in a folder, and what stands around a copy of it."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import deque
from collections.abc import Iterator
from pathlib import Path

NOT_COPIED = frozenset({".git", ".hg", "__pycache__"})
SOURCES = (".py", ".pyi", ".json", ".toml", ".yaml", ".yml", ".cfg", ".ini", ".sh")
MOST_SOURCE_BYTES, MOST_SEEN = 10**6, 50_000
"""A source is no larger than this; the search for sources ends behind so many files and folders."""


def entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Everything in `folder`, outer folders first, but for histories, caches and what an environment holds."""
    waiting = deque([str(folder)])
    while waiting:
        with contextlib.suppress(PermissionError), os.scandir(waiting.popleft()) as found:
            for entry in found:
                if entry.name in NOT_COPIED or entry.name.endswith(".pyc"):
                    continue
                yield entry
                if entry.is_dir(follow_symlinks=False) and not is_environment(entry.path):
                    waiting.append(entry.path)


def is_environment(folder: str) -> bool:
    """Whether a folder is a virtual environment, or what npm installed."""
    return os.path.exists(os.path.join(folder, "pyvenv.cfg")) or os.path.basename(folder) == "node_modules"


def copy_sources(folder: Path, target: Path) -> None:
    """Copies programs and settings, and the folders that they are in, so that the user may go on editing.

    In a folder of very many files those far down may be missing: they are seen as they are.
    """
    target.mkdir()
    made = {}
    for seen, entry in enumerate(entries(folder)):
        if seen >= MOST_SEEN:
            break
        if not entry.name.endswith(SOURCES) or not entry.is_file(follow_symlinks=False):
            continue
        place = target / os.path.relpath(entry.path, folder)
        with contextlib.suppress(OSError):  # one that may not be read, or is gone by now
            if entry.stat().st_size <= MOST_SOURCE_BYTES:
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(entry.path, place)
                made.update(dict.fromkeys((place.parent, *place.parent.parents)))
    for made_folder in made:
        if made_folder.is_relative_to(target):
            shutil.copystat(folder / made_folder.relative_to(target), made_folder)


def stand_in(folder: Path, place: Path) -> Path:
    """The path of `folder` below `place`: beside it, and at each level above, stand links to what stands there.

    So `../data` and `../../data` are what they are in `folder`. It is not made itself.
    """
    copy = place / folder.relative_to(folder.anchor)
    if copy.parent.is_dir():
        return copy
    inner = copy
    for outer in folder.parents:
        inner.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(PermissionError):
            for name in os.listdir(outer):
                if name != inner.name:
                    inner.with_name(name).symlink_to(outer / name)
        inner = inner.parent
    return copy


def script_below(folder: Path, copy: Path, script: str) -> str:
    """The word that starts in `copy` what `script` starts in `folder`; what lies outside stays where it is."""
    path = Path(script)
    if not path.is_absolute():
        return script
    for absolute in (path, Path(os.path.realpath(path.parent), path.name)):
        if absolute.is_relative_to(folder):
            return str(copy / absolute.relative_to(folder))
    return script
