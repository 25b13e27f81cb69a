"""Run directories by path or URL: the store to write with, the commits to read, the lock."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from samebits._context import is_url, resolve_run_dir
from samebits.checkpoint._local_store import CommitStore, local_commits
from samebits.checkpoint._reading import Folder, LocalFolder
from samebits.checkpoint._remote.fsspec_files import FsspecFiles, remote_folders
from samebits.checkpoint._remote.remote_store import UploadingStore, staging_folder
from samebits.checkpoint._remote.writer_claim import WriterClaim
from samebits.checkpoint._run_directory import MARKER, RunDirectory
from samebits.errors import InvalidArgumentError, RunDirectoryError


def resolve(run_dir: str | os.PathLike[str], name: str = "run_dir") -> Path | str:
    """Returns the path or URL of the argument `name`, after `resolve_run_dir`. Raises InvalidArgumentError for an invalid path."""
    check_path(run_dir, name)
    return resolve_run_dir(run_dir)


def check_path(path: Any, name: str) -> None:
    """Raises InvalidArgumentError unless the argument `name` can be a path or a URL."""
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        kind = type(path).__name__
        raise InvalidArgumentError(
            f"{name}={path!r:.60} is of type {kind}, which is no path. Give a str or a pathlib.Path."
        )
    if "\0" in text:
        raise InvalidArgumentError(
            f"{name}={text!r:.200} has a NUL character, which no path has. Leave it out."
        )
    try:
        Path(text).expanduser()
    except RuntimeError:
        raise InvalidArgumentError(
            f"{name}={text!r:.200}: this machine does not know the home directory of ~. Give the whole path."
        ) from None


def store_for(run_dir: Path | str, keep: int, keep_best: int = 0) -> CommitStore:
    """Returns the store of a resolved run directory."""
    if isinstance(run_dir, str):
        return UploadingStore(run_dir, keep, keep_best)
    return CommitStore(run_dir, keep, keep_best)


def commit_folders(run_dir: str | os.PathLike[str]) -> Sequence[Folder]:
    """Returns the commits in a run directory, newest step first.

    Raises:
        RunDirectoryError: there is no run directory.
        RemoteStorageError: the storage of a URL failed.
    """
    where = find_run_directory(run_dir)
    if isinstance(where, str):
        return remote_folders(FsspecFiles(where))
    return [LocalFolder(path) for path in local_commits(where)]


@contextmanager
def lock_run_directory(run_dir: str | os.PathLike[str]) -> Iterator[None]:
    """Holds the one-writer lock of a run directory. Raises RunDirectoryError when a live process has it, or may have it."""
    where = find_run_directory(run_dir)
    directory = RunDirectory(where if isinstance(where, Path) else staging_folder(where))
    directory.open()
    try:
        if isinstance(where, str):
            WriterClaim(FsspecFiles(where), directory.path).check_free()
        yield
    finally:
        directory.close()


def find_run_directory(run_dir: str | os.PathLike[str]) -> Path | str:
    """Returns the path or URL of an existing run directory.

    Where `verify` has moved run directories, one that it did not move is found, too.

    Raises:
        RunDirectoryError: there is none.
    """
    candidates = [
        resolve(run_dir),
        str(run_dir) if is_url(run_dir) else Path(run_dir).expanduser().absolute(),
    ]
    for where in candidates:
        if FsspecFiles(where).has(MARKER) if isinstance(where, str) else (where / MARKER).is_file():
            return where
    raise RunDirectoryError(
        f"{os.fspath(run_dir)} is no run directory of samebits (there is no {MARKER} in it). Give the run_dir of a Run."
    )
