"""The contents of a folder, and the surroundings of a copy of it."""

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
"""A source file is no larger than this; the search for sources ends after that number of files and folders."""


def entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yields everything in `folder`, outer folders first, except histories, caches and environments."""
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
    """Returns True if a folder is a virtual environment, or was installed by npm."""
    return os.path.exists(os.path.join(folder, "pyvenv.cfg")) or os.path.basename(folder) == "node_modules"


def copy_sources(folder: Path, target: Path) -> None:
    """Copies programs and settings, and the folders that they are in, so that the user may continue editing.

    In a folder of very many files those far down may be missing: the script sees the user's.
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


def mirror_neighbours(folder: Path, place: Path) -> Path:
    """Returns the path of `folder` below `place`; beside it, and at each level above, are links to the neighbours of
    `folder`.

    So `../data` and `../../data` are the same as in `folder`. The path itself is not made.
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


def script_path_in_copy(folder: Path, copy: Path, script: str) -> str:
    """Returns the path that starts in `copy` what `script` starts in `folder`; a script outside of `folder` keeps its path."""
    path = Path(script)
    if not path.is_absolute():
        return script
    for absolute in (path, Path(os.path.realpath(path.parent), path.name)):
        if absolute.is_relative_to(folder):
            return str(copy / absolute.relative_to(folder))
    return script
