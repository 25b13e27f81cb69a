"""Private copies of the user's working directory: what a script writes there leaves the user's own files alone."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from samebits.errors import VerifyError

SKIPPED = frozenset({".git", ".hg", ".venv", "venv", "node_modules", "__pycache__"})
MOST_BYTES, MOST_FILES = 200 * 10**6, 20_000
"""A copy is made for every check: what is larger would fill the temporary folder, which may be memory."""


@dataclass(frozen=True)
class WorkingFolder:
    """The user's folder as it was when the check began (`snapshot`): each run root gets a copy of that."""

    user: Path
    snapshot: Path

    @classmethod
    def of(cls, user: Path, scratch: Path) -> WorkingFolder:
        """Takes the snapshot: the user may go on editing."""
        folder = cls(user, scratch / "snapshot")
        _copy(user, folder.snapshot, user)
        return folder

    def copy_to(self, place: Path) -> Path:
        """A copy below `place`, at the user's whole path, so that `../data` and `../../data` are what they were.

        Beside the copy, and at each level above it, stand links to what stands there in the user's tree.
        """
        copy = place / self.user.relative_to(self.user.anchor)
        if copy.is_dir():
            return copy
        inner = copy
        for outer in self.user.parents:
            inner.parent.mkdir(parents=True, exist_ok=True)
            _link_siblings(outer, inner)
            inner = inner.parent
        _copy(self.snapshot, copy, self.user)
        return copy

    def script_in(self, copy: Path, script: str) -> str:
        """The word that starts the copy of `script`; what lies outside of the folder stays where it is."""
        path = Path(script)
        if not path.is_absolute():
            return script if (copy / path).exists() else str(path.absolute())
        for absolute in (path, Path(os.path.realpath(path.parent), path.name)):
            if absolute.is_relative_to(self.user):
                mapped = copy / absolute.relative_to(self.user)
                return str(mapped) if mapped.exists() else script
        return script


def check_size(folder: Path) -> None:
    """Raises `VerifyError` if `folder` is too large to be copied for each check."""
    size = files = 0
    for entry in _entries(folder):
        if entry.is_file(follow_symlinks=False):
            size, files = size + entry.stat(follow_symlinks=False).st_size, files + 1
    if size > MOST_BYTES or files > MOST_FILES:
        raise VerifyError(
            f"verify: {folder} holds {size / 1e6:.0f} MB in {files} files; each check works in a copy of the current "
            f"folder, of at most {MOST_BYTES / 1e6:.0f} MB and {MOST_FILES} files. Start verify from the script's own "
            "folder, or with --in-place (then files that the script writes itself are overwritten)."
        )


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Everything that is copied, folders before what they hold."""
    with os.scandir(folder) as found:
        entries = list(found)
    for entry in entries:
        if entry.name in SKIPPED or entry.name.endswith(".pyc"):
            continue
        yield entry
        if entry.is_dir(follow_symlinks=False):
            yield from _entries(Path(entry.path))


def _copy(source: Path, target: Path, user: Path) -> None:
    """Copies files, folders and links; sockets, pipes and devices are left out."""
    target.mkdir(parents=True, exist_ok=True)
    for entry in _entries(source):
        place = target / os.path.relpath(entry.path, source)
        if entry.is_symlink():
            place.symlink_to(_destination(source, Path(entry.path), user))
        elif entry.is_dir():
            place.mkdir()
        elif entry.is_file():
            shutil.copy2(entry.path, place)


def _destination(source: Path, link: Path, user: Path) -> str:
    """Where the copy of a link leads: to the copy of what is in the folder, else to the very thing."""
    relative = os.path.relpath(link.parent, source)
    leads_to = Path(os.path.normpath(user / relative / os.readlink(link)))
    inside = leads_to.is_relative_to(user)
    return os.path.relpath(leads_to, user / relative) if inside else str(leads_to)


def _link_siblings(outer: Path, inner: Path) -> None:
    with contextlib.suppress(PermissionError):
        for name in os.listdir(outer):
            if name != inner.name:
                inner.with_name(name).symlink_to(outer / name)
