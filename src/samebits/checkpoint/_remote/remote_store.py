"""The commits of one run at an fsspec URL (s3://, gs://, memory://, file://): a written manifest makes a commit real.

url/samebits-run.json                   marks the folder as ours
url/lease.json                          one writer (see `lease`)
url/commits/000000000120-1a2b3c4d/      tensors.safetensors first, manifest.json last

Object stores have no rename and no folders, but an object that is written in one call appears whole. A storage where
it does not (file://, killed in the middle) leaves a manifest whose digest does not hold, and the commit before is
read. The durability of a written object is that of the storage. On a disk a plain path is better: faster, and locked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, BinaryIO, Self

from samebits._inspect import user_code
from samebits.checkpoint._manifest import Manifest, marker_text
from samebits.checkpoint._prepared_commit import CommitMetadata, CommitPreparer
from samebits.checkpoint._reading import newest_valid, no_valid_commit_error, read_manifest
from samebits.checkpoint._remote.fsspec_files import FsspecFiles
from samebits.checkpoint._remote.lease import LEASE, SECONDS, Lease
from samebits.checkpoint._run_directory import COMMITS, MARKER
from samebits.checkpoint._writer.commit_folder import MANIFEST, NAME, TENSORS, best, step_of
from samebits.checkpoint._writer.manifest_template import Commit, digest
from samebits.errors import (
    CommitError,
    InvalidArgumentError,
    RemoteStorageError,
    RunDirectoryError,
    SamebitsError,
)


@dataclass(frozen=True)
class RemoteFolder:
    """A commit at a URL."""

    files: FsspecFiles
    name: str

    def open(self, file: str) -> tuple[BinaryIO, int]:
        """Opens a file of the commit and returns it with its size in bytes."""
        return self.files.open(f"{COMMITS}/{self.name}/{file}")

    def modified(self) -> float | None:
        """Returns when the manifest was written."""
        return self.files.modified(f"{COMMITS}/{self.name}/{MANIFEST}")

    def delete(self) -> None:
        """Deletes the manifest first: without it the rest is no commit."""
        for file in (MANIFEST, TENSORS):
            self.files.remove(f"{COMMITS}/{self.name}/{file}")
        self.files.remove_folder(f"{COMMITS}/{self.name}")

    def __str__(self) -> str:
        return f"{self.files.url}/{COMMITS}/{self.name}"


def remote_folders(files: FsspecFiles) -> list[RemoteFolder]:
    """Returns the commits that have a manifest, newest step first."""
    return _list_folders(files)[0]


class RemoteStore:
    """The commits of one run at a URL, as `CommitStore` for a folder. A commit is as durable as the storage when `commit` returns.

    Args:
        url: any URL that an installed fsspec implementation opens.
        keep: number of newest commits to keep.
        keep_best: number of further commits to keep, those with the smallest `Manifest.value`.
        lease_seconds: time without a renewal after which the lease of another machine is taken over.
    """

    def __init__(self, url: str, keep: int = 2, keep_best: int = 0, lease_seconds: float = SECONDS) -> None:
        if keep < 1:
            raise InvalidArgumentError(f"RemoteStore(keep={keep}): at least the newest commit must stay")
        self.run_dir = url
        self.keep, self.keep_best = keep, keep_best
        self.skipped: list[tuple[RemoteFolder, str]] = []
        self.last: Commit | None = None
        self._values: dict[str, float | None] = {}
        self._files = FsspecFiles(url)
        self._lease = Lease(self._files, lease_seconds)
        self._corrupt: set[str] = set()
        self._searched = False

    def open(self) -> None:
        """Checks that the folder is empty or a run directory, and acquires its lease.

        Raises:
            RunDirectoryError: it holds other things, or a live process writes there.
            RemoteStorageError: it does not answer, or cannot be written.
        """
        top = self._files.names()
        foreign = top - {MARKER, LEASE, COMMITS}
        if MARKER not in top and foreign:
            raise RunDirectoryError(
                f"{self.run_dir} is not empty and not a run directory of samebits (it has {min(foreign)!r} and no "
                f"{MARKER}). Choose a URL where nothing is; nothing was written."
            )
        self._lease.take()
        try:
            if MARKER not in top:
                self._files.write(MARKER, [marker_text().encode()])
            for folder in _list_folders(self._files)[1]:
                folder.delete()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Releases the lease."""
        self._lease.release()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def commit(
        self,
        step: int,
        state: Mapping[str, Any],
        *,
        position: Mapping[str, Any],
        finished: bool,
        program: Mapping[str, Any],
        environment: Mapping[str, Any],
        rolling: str | None = None,
        value: float | None = None,
        on_tensors_written: Callable[[], None] | None = None,
    ) -> Manifest:
        """Commits as `CommitStore.commit` does.

        Raises:
            UnsavableStateError: the state holds something that cannot be saved; nothing was written.
            CommitError: the storage failed, or another process took over; earlier commits are untouched.
            RunDirectoryError: this process has not opened the store.
            InvalidArgumentError: `step` is before the last commit.
        """
        self._check_step(step)
        metadata = CommitMetadata(step, position, finished, program, environment, rolling, value)
        prepared = CommitPreparer().prepare(state, metadata)
        parent = self.last.digest if self.last else None
        commit, text = prepared.template.sign(parent, [digest(data) for data in prepared.tensors])
        if self.last and (self.last.step, self.last.content) == (commit.step, commit.content):
            return read_manifest(RemoteFolder(self._files, self.last.name))
        folder = RemoteFolder(self._files, commit.name)
        where = f"{COMMITS}/{folder.name}"
        try:
            if folder.name in self._corrupt:
                folder.delete()  # the same commit, damaged
            self._files.write(f"{where}/{TENSORS}", [memoryview(prepared.layout.head), *prepared.tensors])
            if on_tensors_written is not None:
                on_tensors_written()
            self._lease.check()
            self._files.write(f"{where}/{MANIFEST}", [text])
        except RunDirectoryError as error:  # the state of the earlier commits is unknown
            raise CommitError(f"commit of step {step} failed: {error}") from error
        except (RemoteStorageError, OSError) as error:
            safe = (
                f"The commit of step {self.last.step} is safe" if self.last else "There is no earlier commit"
            )
            raise CommitError(f"commit of step {step} to {self.run_dir} failed. {safe}. {error}") from error
        self.last = commit
        self._corrupt.discard(folder.name)
        self._prune(commit)
        return Manifest.from_bytes(text, folder)

    def newest(self) -> tuple[Manifest, Any] | None:
        """Returns the newest valid commit with its state, as `CommitStore.newest` does.

        Raises:
            CorruptCommitError: there are commits and none is valid; the message names the reason for each.
            NewerCommitError: a later samebits wrote one of them.
            RemoteStorageError: the storage failed: its content is unknown, so nothing is skipped.
        """
        self.skipped, self.last, self._corrupt, self._searched = [], None, set(), True
        found, self.skipped = newest_valid(remote_folders(self._files))
        if found is not None:
            _, manifest, state = found
            self.last = manifest.commit
            self._corrupt = {folder.name for folder, _ in self.skipped}
            return manifest, state
        if self.skipped:
            raise no_valid_commit_error(self.run_dir, self.skipped)
        return None

    def values(self) -> dict[str, float | None]:
        """Returns the `Manifest.value` of the existing commits, by name."""
        return {folder.name: self._value(folder) for folder in remote_folders(self._files)}

    def write_error(self, error: Exception, step: int, nbytes: int = 0) -> CommitError:
        """Returns the error for a commit of `step` that the storage refused."""
        safe = f"The commit of step {self.last.step} is safe" if self.last else "There is no earlier commit"
        return CommitError(f"commit of step {step} to {self.run_dir} failed. {safe}. {error}")

    def _check_step(self, step: int) -> None:
        if not self._lease.owned:
            raise RunDirectoryError(
                f"commit to {self.run_dir}, which this process (pid {os.getpid()}) has not opened. "
                "Call open() first, in the process that commits."
            )
        if not self._searched:
            self.newest()
        if step < 0 or (self.last and step < self.last.step):
            raise InvalidArgumentError(
                f"commit(step={step}) to {self.run_dir}, which is at step {self.last.step if self.last else 0}. "
                "Load the newest commit and resume from it, or use another run directory."
            )

    def _prune(self, newest: Commit) -> None:
        """Deletes old commits, corrupt and replaced ones, and those that kills left half-written."""
        try:
            whole, half = _list_folders(self._files)
            older = [f for f in whole if step_of(f.name) <= newest.step and f.name != newest.name]
            valid = [f for f in older if f.name not in self._corrupt and step_of(f.name) < newest.step]
            stay = {folder.name for folder in valid[: self.keep - 1]}
            if self.keep_best:
                values = {f.name: self._value(f) for f in (RemoteFolder(self._files, newest.name), *valid)}
                stay |= best(values, self.keep_best)
            for folder in [f for f in older if f.name not in stay] + half:
                folder.delete()
        except (SamebitsError, OSError) as error:
            user_code.warn(f"old commits in {self.run_dir} cannot be deleted: {error}")

    def _value(self, folder: RemoteFolder) -> float | None:
        if folder.name not in self._values:
            self._values[folder.name] = read_manifest(folder).value
        return self._values[folder.name]


def _list_folders(files: FsspecFiles) -> tuple[list[RemoteFolder], list[RemoteFolder]]:
    """Returns the folders with names of commits, newest step first: those with a manifest, and those without."""
    names = sorted(
        filter(NAME.fullmatch, files.names(COMMITS, links=False)), key=lambda name: (step_of(name), name)
    )
    folders = [RemoteFolder(files, name) for name in reversed(names)]
    whole = [folder for folder in folders if MANIFEST in files.names(f"{COMMITS}/{folder.name}")]
    return whole, [folder for folder in folders if folder not in whole]
