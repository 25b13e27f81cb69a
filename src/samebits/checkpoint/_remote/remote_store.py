"""The commits of one run at a URL: made in a folder of this machine, the staging folder, and uploaded from there.

$SAMEBITS_CACHE_DIR/runs/<URL>/         a run directory as any other (see `_local_store`), locked; a cache, once all is uploaded
url/...                                 see `remote_folder`

A run resumes from the newest valid commit of both. A commit that only the staging folder has counts if the run has not gone on
without it: no process of another machine has opened the URL since, or the newest commit there is in the staging folder, too.
Else it is dropped, with a line on stderr: a run killed on one machine, resumed on another and then again on the first
never resumes from the first one's old commit. So a URL that was removed is not filled again from this machine.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

from samebits._context import cache_root, url_folder
from samebits.checkpoint._local_store import CommitStore
from samebits.checkpoint._manifest import Manifest, marker_text
from samebits.checkpoint._prepared_commit import PreparedCommit
from samebits.checkpoint._reading import Folder, LocalFolder, read_manifests
from samebits.checkpoint._remote.fsspec_files import FsspecFiles, RemoteFolder, remote_folders
from samebits.checkpoint._remote.uploader import Uploader
from samebits.checkpoint._remote.writer_claim import WRITER, WriterClaim
from samebits.checkpoint._run_directory import COMMITS, MARKER
from samebits.checkpoint._writer.commit_folder import step_of
from samebits.errors import RemoteStorageError, RunDirectoryError


class UploadingStore(CommitStore):
    """The commits of one run at a URL. `commit` returns when the commit is there; `publish` uploads those of the writer process.

    Args:
        url: any URL that an installed fsspec implementation opens.
        keep: number of newest commits to keep.
        keep_best: number of further commits to keep, those with the smallest `Manifest.value`.
    """

    def __init__(self, url: str, keep: int = 2, keep_best: int = 0) -> None:
        super().__init__(staging_folder(url), keep, keep_best)
        self.where = url
        self._files = FsspecFiles(url)
        self._claim = WriterClaim(self._files, self.run_dir)
        self._uploader = Uploader(self._files, self._claim, self.folder)
        self._remote: list[RemoteFolder] = []

    def open(self) -> None:
        """Locks the staging folder and names this process as the writer at the URL.

        Raises:
            RunDirectoryError: the URL holds other things, a live process of this machine writes there, or the staging folder
                cannot be used.
            RemoteStorageError: it does not answer, or cannot be written.
        """
        top = self._files.names()
        foreign = top - {MARKER, WRITER, COMMITS}
        if MARKER not in top and foreign:
            raise RunDirectoryError(
                f"{self.where} is not empty and not a run directory of samebits (it has {min(foreign)!r} and no "
                f"{MARKER}). Choose a URL where nothing is; nothing was written."
            )
        try:
            super().open()
        except RunDirectoryError as error:
            raise RunDirectoryError(
                f"{self.where}: commits are made in a folder of this machine first, below SAMEBITS_CACHE_DIR: {error}"
            ) from error
        try:
            ours = self._claim.take()
            if MARKER not in top:
                self._files.write(MARKER, io.BytesIO(marker_text().encode()))
            if not ours:
                self._drop_stale()
                self._claim.settle()
        except BaseException:
            super().close()
            raise

    def close(self) -> None:
        """Ends the upload that is under way and releases the directory."""
        if self._directory.owned:
            self._uploader.close()
            with suppress(RemoteStorageError, RunDirectoryError):  # the next process takes over
                self._claim.end()
        super().close()

    def write(self, commit: PreparedCommit, on_tensors_written: Callable[[], None] | None = None) -> Manifest:
        """Writes as `CommitStore.write` does, and uploads the commit.

        Raises:
            CommitError: the disk or the storage failed, or another process took over; earlier commits are untouched.
        """
        manifest = super().write(commit, on_tensors_written)
        self.publish(wait=True)
        self.warn()
        return manifest

    @property
    def durable_step(self) -> int:
        """The step of the newest commit at the URL; -1 without."""
        return self._uploader.durable_step

    def publish(self, *, wait: bool = False) -> None:
        """Uploads as `CommitStore.publish` says."""
        if self._directory.owned:
            self._uploader.publish(wait=wait)

    def newest(self) -> tuple[Manifest, Any] | None:
        """Returns the newest commit of the URL and of the staging folder, as `CommitStore.newest` does, and uploads it if need be.

        Raises:
            RemoteStorageError: the storage failed: its content is unknown, so nothing is skipped.
        """
        self._remote = remote_folders(self._files)
        found = super().newest()
        skipped = [folder for folder, _ in self.skipped]
        whole = [
            (folder, manifest)
            for folder, manifest in read_manifests(self._remote)[0]
            if folder not in skipped
        ]
        self._uploader.values = {folder.name: manifest.value for folder, manifest in whole}
        self._uploader.damaged = {folder.name for folder in self._remote} - self._uploader.values.keys()
        self.publish()
        return found

    def values(self) -> dict[str, float | None]:
        """Returns the `Manifest.value` of the existing commits, by name."""
        return {**super().values(), **self._uploader.values}

    def _folder(self, name: str) -> Folder:
        local = LocalFolder(self.folder.commits / name)
        return local if local.path.exists() else RemoteFolder(self._files, name)

    def _folders(self) -> list[Folder]:
        return [*super()._folders(), *self._remote]

    def _drop_stale(self) -> None:
        """Deletes the commits after the newest that the URL has, too, unless that is the newest there."""
        folders = remote_folders(self._files)
        there = {folder.name for folder in folders}
        whole, _ = read_manifests(folders)
        here = [path.name for path in self._commits()]
        stale = list(takewhile(lambda name: name not in there, here))
        if not stale or (whole and whole[0][0].name in here):
            return
        print(
            f"samebits: {self.where} continued on another machine, or was removed: commits that only this machine has are deleted "
            f"(of step {', '.join(str(step_of(name)) for name in reversed(stale))})",
            file=sys.stderr,
        )
        for name in stale:
            LocalFolder(self.folder.commits / name).delete()


def staging_folder(url: str) -> Path:
    """Returns the folder of this machine in which the commits of a URL are made. Raises RunDirectoryError without a home directory."""
    try:
        return (cache_root() / "runs" / url_folder(url)).absolute()
    except RuntimeError as error:
        raise RunDirectoryError(
            f"{url}: this user has no home directory, in which commits are made before they are uploaded. Set "
            "SAMEBITS_CACHE_DIR to a folder."
        ) from error
