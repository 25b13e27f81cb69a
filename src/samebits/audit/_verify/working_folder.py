"""The user's working directory as each check sees it: a script's writes do not reach the user's files.

An overlay (`mounts`) where one can be mounted; elsewhere copies of files that are written, and guarded links
to those that are only read.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import stat
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from samebits.audit._verify import mounts, reaper
from samebits.errors import VerifyError

NOT_COPIED = frozenset({".git", ".hg", "__pycache__"})
SOURCES = (".py", ".pyi", ".json", ".toml", ".yaml", ".yml", ".cfg", ".ini", ".sh")
MOST_SOURCE_BYTES, MOST_SEEN = 10**6, 50_000
"""A source file is no larger; the search for sources ends after that number of files and folders."""


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
    """Returns the path of `folder` below `place`; at each level there are links to the neighbours.

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
    """Returns the path to start `script` of `folder` by in `copy`; outside of `folder` it keeps its path."""
    path = Path(script)
    if not path.is_absolute():
        return script
    for absolute in (path, Path(os.path.realpath(path.parent), path.name)):
        if absolute.is_relative_to(folder):
            return str(copy / absolute.relative_to(folder))
    return script


@dataclass(frozen=True)
class Start:
    """Words before its command, the folder it works in (None: this process's), the script's name there."""

    before: tuple[str, ...]
    folder: Path | None
    script: str


_PROBE = """
import os
os.remove(".samebits-probe/file")
os.rmdir(".samebits-probe")
os.mkdir(".samebits-probe")
assert os.listdir(".samebits-probe") == []
"""
"""An overlay whose upper file system keeps no attributes shows removed files again."""


@dataclass(frozen=True)
class Overlay:
    """The user's folder, with its programs as they were when the check began (`snapshot`)."""

    user: Path
    snapshot: Path

    @classmethod
    def of(cls, user: Path, scratch: Path) -> Overlay:
        """Takes the snapshot. Raises `OSError` with the reason where no overlay of `user` can be mounted."""
        _try(user, scratch / "probe")
        copy_sources(user, scratch / "snapshot")
        return cls(user, scratch / "snapshot")

    def start(self, layer: Path, script: str, *, moved: bool) -> Start:
        """Returns the start of a process that writes to `layer`; `moved`: the script has another path."""
        layer.mkdir(exist_ok=True)
        alias = mirror_neighbours(self.user, layer / "moved") if moved else None
        if alias is not None:
            alias.mkdir(exist_ok=True)
            script = script_path_in_copy(self.user, alias, script)
        return Start(_words(self.user, self.snapshot, layer, alias), alias or self.user, script)

    def check(self) -> None:
        """Does nothing: no process can have written to the user's folder."""


def _words(user: Path, snapshot: Path, layer: Path, alias: Path | None = None) -> tuple[str, ...]:
    places = map(str, (user, snapshot, layer, alias or ""))
    return (sys.executable, "-I", "-S", mounts.__file__, *places)


def _try(user: Path, scratch: Path) -> None:
    """Mounts one and uses it: only this shows that it is allowed and works."""
    (scratch / "lower" / ".samebits-probe").mkdir(parents=True)
    (scratch / "lower" / ".samebits-probe" / "file").touch()
    words = _words(user, scratch / "lower", scratch / "layer")
    command = [*words, sys.executable, "-I", "-S", "-c", _PROBE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(done.stderr.strip().rpartition("\n")[2].removeprefix("samebits: "))


MOST_BYTES, MOST_FILES = 200 * 10**6, 20_000
"""A folder up to this size is copied whole; of a larger one, files that must be copied up to it."""
FEW_BYTES, FEW_FILES = 20 * 10**6, 2_000
"""Of a larger one, the smallest files are copied up to this size: programs, settings, logs."""
_SPARE = 64
"""Descriptors that a process which guards files needs for itself."""


class WrittenError(Exception):
    """Raised when the script opened `files`, to which it had links, for writing; it was stopped before."""

    def __init__(self, files: Collection[str]) -> None:
        super().__init__(", ".join(sorted(files)))
        self.files = frozenset(files)


@dataclass
class Links:
    """A tree for each run root: folders are made, small files copied from `snapshot`, others are links."""

    user: Path
    scratch: Path
    copied: list[str] = field(default_factory=list)
    linked: dict[str, os.stat_result] = field(default_factory=dict)
    """Files that all processes read from the user's folder, and their original stat."""
    folders: list[str] = field(default_factory=list)
    symlinks: dict[str, str] = field(default_factory=dict)
    """Links of the user's, and whole environments: their targets."""

    @classmethod
    @contextmanager
    def of(cls, user: Path, scratch: Path, written: Collection[str], reason: str) -> Iterator[Links]:
        """Takes the snapshot, and guards the linked files until the block ends.

        `written` names files that the script is known to write. Raises `VerifyError` where too much must be
        copied; `reason` explains why there is no overlay.
        """
        links = cls(user, scratch)
        files = links._scan()
        links._divide(files, written)
        with contextlib.ExitStack() as guards:
            guarded = (guards.enter_context(_guard(scratch, part)) for part in links._parts())
            refused = [file for files in guarded for file in files]
            for file in refused:
                links.copied.append(file.removeprefix(f"{user}/"))
                del links.linked[links.copied[-1]]
            _check_size(user, [files[name] for name in links.copied], reason)
            links._fill(scratch / "snapshot", user)
            yield links

    def start(self, layer: Path, script: str, *, moved: bool) -> Start:
        """Makes the tree of `layer` for the first process in it, which always runs under another path."""
        copy = mirror_neighbours(self.user, layer)
        if not copy.is_dir():
            self._fill(copy, self.scratch / "snapshot")
            for name in self.linked:
                os.symlink(f"{self.user}/{name}", f"{copy}/{name}")  # a Path for each takes twice as long
        inside = script_path_in_copy(self.user, copy, script)
        return Start((), copy, inside if (copy / inside).exists() else str(Path(script).absolute()))

    def check(self) -> None:
        """Raises `WrittenError` for linked files opened for writing; restores their modes and times."""
        note = self.scratch / reaper.WRITTEN
        files = note.read_bytes().split(b"\0")[:-1] if note.exists() else []
        found = {os.fsdecode(file).removeprefix(f"{self.user}/") for file in files}
        found |= {name for name, was in self.linked.items() if _changed(f"{self.user}/{name}", was)}
        if found:
            raise WrittenError(found)

    def _scan(self) -> dict[str, os.stat_result]:
        files = {}
        for entry in entries(self.user):
            name = entry.path.removeprefix(f"{self.user}/")
            if entry.is_symlink():
                self.symlinks[name] = _destination(self.user, Path(entry.path))
            elif entry.is_dir() and is_environment(entry.path):
                self.symlinks[name] = entry.path
            elif entry.is_dir():
                self.folders.append(name)
            elif entry.is_file():
                files[name] = entry.stat()
        return files

    def _divide(self, files: dict[str, os.stat_result], written: Collection[str]) -> None:
        """Chooses the files to copy: the smallest, and those that are written; all where all are small."""
        small = sum(found.st_size for found in files.values()) <= MOST_BYTES and len(files) <= MOST_FILES
        most_bytes, most_files = (MOST_BYTES, MOST_FILES) if small else (FEW_BYTES, FEW_FILES)
        size = 0
        for name, found in sorted(files.items(), key=lambda item: item[1].st_size):
            size += found.st_size
            if name in written or (size <= most_bytes and len(self.copied) < most_files):
                self.copied.append(name)
            else:
                self.linked[name] = found

    def _parts(self) -> list[list[str]]:
        """Returns the paths to guard, as many to a process as it may open; only files that we can write."""
        paths = [path for name in self.linked if os.access(path := f"{self.user}/{name}", os.W_OK)]
        each = max(1, resource.getrlimit(resource.RLIMIT_NOFILE)[1] - _SPARE)
        return [paths[at : at + each] for at in range(0, len(paths), each)]

    def _fill(self, target: Path, source: Path) -> None:
        target.mkdir(parents=True)
        for name in self.folders:
            (target / name).mkdir()
        for name, leads_to in self.symlinks.items():
            (target / name).symlink_to(leads_to)
        for name in self.copied:
            with contextlib.suppress(FileNotFoundError):  # the user's programs continue meanwhile
                shutil.copy2(source / name, target / name)


@contextmanager
def _guard(scratch: Path, paths: list[str]) -> Iterator[list[str]]:
    """Guards the files as long as the block, or this process, lasts; yields those that cannot be guarded."""
    names = scratch / f"guarded from {len(list(scratch.glob('guarded from *')))}"
    names.write_bytes(b"\0".join(map(os.fsencode, paths)))
    command = [sys.executable, "-I", "-S", reaper.__file__, str(scratch), "hold", str(names)]
    guard = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    assert guard.stdin is not None
    assert guard.stdout is not None
    try:
        yield [os.fsdecode(path) for path in guard.stdout.read().split(b"\0") if path]
    finally:
        guard.stdin.close()
        guard.stdout.close()
        guard.wait()


def _changed(path: str, was: os.stat_result) -> bool:
    """Returns True if a file changed. A changed mode is restored: it can be changed through a link."""
    try:
        now = os.stat(path)
    except OSError:
        return False
    if now.st_ino != was.st_ino:
        return False  # the user has put another file in its place
    if stat.S_IMODE(now.st_mode) != stat.S_IMODE(was.st_mode):
        os.chmod(path, stat.S_IMODE(was.st_mode))
    elif now.st_mtime_ns != was.st_mtime_ns and now.st_size == was.st_size:
        os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
    else:
        return False
    return True


def _check_size(user: Path, copied: list[os.stat_result], reason: str) -> None:
    size = sum(found.st_size for found in copied)
    if size > MOST_BYTES or len(copied) > MOST_FILES:
        raise VerifyError(
            f"verify: each check works in a view of {user} of its own, but there can be no overlay "
            f"({reason}), and {size / 1e6:.0f} MB in {len(copied)} files would have to be copied, more than "
            f"{MOST_BYTES / 1e6:.0f} MB or {MOST_FILES} files: they are written, open elsewhere, or another "
            "user's. Start verify from a smaller folder, or with --in-place (then files that the script "
            "writes itself are overwritten)."
        )


def _destination(user: Path, link: Path) -> str:
    """Returns the target for the copy of a link: the copy of a file in the folder, or the original."""
    leads_to = Path(os.path.normpath(link.parent / os.readlink(link)))
    inside = leads_to.is_relative_to(user)
    return os.path.relpath(leads_to, link.parent) if inside else str(leads_to)


class WorkingFolder(Protocol):
    """The folder when the check began: each run root sees it, and changes it for itself alone."""

    def start(self, layer: Path, script: str, *, moved: bool) -> Start:
        """Returns the start of a process that sees the folder with the changes in `layer`."""
        ...

    def check(self) -> None:
        """Raises `WrittenError` when a process opened a file for writing that it shares with the user."""
        ...


@contextmanager
def working_folder(
    user: Path, scratch: Path, written: Collection[str], notify: Callable[[str], None]
) -> Iterator[WorkingFolder]:
    """Makes an overlay of `user` if one can be mounted, else copies and guarded links (calls `notify`).

    `written` names files that the script is known to write, relative to `user`. Raises VerifyError where too
    much would have to be copied.
    """
    overlay, reason = None, ""
    try:
        overlay = Overlay.of(user, scratch)
    except OSError as error:
        reason = str(error)
    if overlay is not None:
        yield overlay
        return
    with Links.of(user, scratch, written, reason) as links:
        if links.linked:
            notify(f"{len(links.linked)} files of {user} are linked, not copied ({reason})")
        yield links
