"""A run directory: created or recognised, proven writable, and locked for one run and one writer process.

Here is also the error of a commit that its disk made fail.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import socket
import stat
import sys
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist

from samebits._context import process
from samebits._disk import CURES, sync_folder
from samebits.checkpoint._manifest import marker_text
from samebits.checkpoint._writer.commit_folder import Commit
from samebits.errors import CommitError, RunDirectoryError

MARKER = "samebits-run.json"
LOCK = "lock"
WRITER_LOCK = "writer.lock"
"""Locked by the writer process, also after a kill of the run, until its last snapshot is durable."""
COMMITS = "commits"
PROBE = ".samebits-probe"
OURS = {MARKER, LOCK, WRITER_LOCK, COMMITS, PROBE, "lost+found"}
"""A volume's root folder is born with lost+found."""

_WRITER_TIMEOUT = 60.0
"""Seconds that the writer of a killed run may take to finish its last snapshot."""


class RunDirectory:
    """A run directory: `open` makes it usable for this process alone, `close` releases it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.commits = path / COMMITS
        self._lock: int | None = None
        self._pid = 0

    @property
    def owned(self) -> bool:
        """True if this very process (not one that it was forked from) holds the lock."""
        return self._lock is not None and self._pid == os.getpid()

    def open(self) -> None:
        """Creates and locks the folder. Raises RunDirectoryError if it is foreign, read-only or locked."""
        try:
            _check_contents(self.path)
            _create(self.path)
            descriptor = self._acquire_lock()
            try:
                self._prepare(descriptor)
            except BaseException:
                self.close()
                raise
        except OSError as error:
            cure = CURES.get(error.errno or 0, "Remove the cause")
            raise RunDirectoryError(
                f"run directory {self.path} cannot be used: {error.strerror or error} "
                f"({error.filename or self.path}). {cure}, or choose another folder."
            ) from error

    def close(self) -> None:
        """Releases the lock; in a forked child, where the lock is not ours, only forgets it."""
        if self._lock is None:
            return
        if self.owned:
            process.locked_run_dirs.pop(os.path.realpath(self.path), None)
        os.close(self._lock)
        self._lock = None

    def _acquire_lock(self) -> int:
        # A POSIX record lock ends with the process. flock's would live on in forked loader workers after a
        # SIGKILL of their parent. Its trap: closing *any* descriptor of the file here gives the lock up.
        key, pid = os.path.realpath(self.path), os.getpid()
        if process.locked_run_dirs.get(key) == pid:
            raise RunDirectoryError(
                f"run directory {self.path} is already open in this process (pid {pid}). "
                "Close the other run first, or give each run a folder of its own."
            )
        descriptor = open_own_file(self.path / LOCK)
        try:
            _lock_file(descriptor, self.path)
            _await_writer(self.path)
        except BaseException:
            os.close(descriptor)
            raise
        process.locked_run_dirs[key], self._lock, self._pid = pid, descriptor, pid
        return descriptor

    def _prepare(self, descriptor: int) -> None:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{self._pid} {socket.gethostname()}\n".encode(), 0)
        self.commits.mkdir(exist_ok=True)
        if self.commits.is_symlink():
            raise RunDirectoryError(
                f"{self.commits} is a symbolic link: what it leads to may be another run's. Link the whole "
                "run directory instead, or move the commits to where the link is."
            )
        for folder in (self.path, self.commits):
            _write_new(folder / PROBE, "").unlink()
        marker = self.path / MARKER
        if not marker.exists():
            _write_new(self.path / PROBE, marker_text()).replace(marker)
        sync_folder(self.path)


def _write_new(path: Path, text: str) -> Path:
    """Writes a new file: an existing one may be a link to something that is not ours."""
    path.unlink(missing_ok=True)
    with path.open("x") as file:
        file.write(text)
    return path


def open_own_file(path: Path) -> int:
    """Opens or creates a file for writing. OSError; RunDirectoryError if writing may change another file."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(descriptor)
        raise RunDirectoryError(
            f"{path} is no regular file of its own (a pipe, or a second name of another file). Remove it."
        )
    return descriptor


def _check_contents(path: Path) -> None:
    try:
        names = set(os.listdir(path))
    except FileNotFoundError:
        return
    if MARKER not in names and names - OURS:
        raise RunDirectoryError(
            f"{path} is not empty and not a run directory of samebits (it has {min(names - OURS)!r} and no "
            f"{MARKER}). Choose a folder that is empty or does not exist; nothing was written."
        )


def _create(path: Path) -> None:
    for place in (path, *path.parents):
        if place.is_symlink() and _is_dangling(place):
            raise RunDirectoryError(
                f"run directory {path} cannot be used: {place} is a symbolic link to {os.readlink(place)}, "
                "which is not there. Make that folder (is its disk mounted?), or remove the link; nothing "
                "was written."
            )
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync_folder(folder.parent)


def _is_dangling(link: Path) -> bool:
    try:
        link.stat()
    except FileNotFoundError:
        return True
    return False


def _lock_file(descriptor: int, path: Path) -> None:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise
        text = ascii(os.pread(descriptor, 256, 0).decode(errors="replace").strip())[1:-1]
        owner: list[Any] = text.split() or ["?", "?"]
        raise RunDirectoryError(
            f"run directory {path} is in use by process {owner[0]} on host {owner[-1]}. "
            f"{_group_not_made() or 'Wait until it ends or stop it; two processes cannot write one run.'}"
        ) from None


def _group_not_made() -> str:
    """Returns the cure where torchrun has started several processes that know nothing of one another."""
    number = os.environ.get("WORLD_SIZE", "1")
    if number == "1" or (dist.is_available() and dist.is_initialized()):
        return ""
    return (
        f"torchrun has started {number} processes, and torch.distributed is not initialized, so that each is "
        'a run of its own. Call torch.distributed.init_process_group("gloo") before the Run.'
    )


def _await_writer(path: Path) -> None:
    """Waits until the writer process of a killed run has ended: this run resumes from its last snapshot."""
    if not (path / WRITER_LOCK).exists():
        return
    began, printed = time.monotonic(), False
    while (descriptor := lock_for_writer(path)) is None:
        waited = time.monotonic() - began
        if waited > _WRITER_TIMEOUT:
            raise RunDirectoryError(
                f"run directory {path}: the writer process of a run that was killed still writes there, for "
                f"{waited:.0f} s now. Is the disk stuck? Wait, or kill it (samebits-writer in `ps`)."
            )
        if waited > 1 and not printed:
            printed = True
            print(f"samebits: waiting for the last commit of the killed run in {path}", file=sys.stderr)
        time.sleep(0.002)
    os.close(descriptor)


def lock_for_writer(path: Path) -> int | None:
    """Returns a descriptor that excludes other writers while any process has it open; None if one writes.

    Only the process that has the run directory open may call it. Raises OSError.
    """
    descriptor = open_own_file(path / WRITER_LOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return descriptor


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
