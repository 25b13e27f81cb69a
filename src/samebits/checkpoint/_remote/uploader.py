"""Copies finished commits from the staging folder to a URL, in a thread of its own, and prunes those at the URL."""

from __future__ import annotations

import io
import json
from concurrent.futures import Future, ThreadPoolExecutor

from samebits.checkpoint._reading import LocalFolder
from samebits.checkpoint._remote.fsspec_files import FsspecFiles, RemoteFolder, list_folders
from samebits.checkpoint._remote.writer_claim import WriterClaim
from samebits.checkpoint._run_directory import COMMITS
from samebits.checkpoint._writer.commit_folder import (
    MANIFEST,
    TENSORS,
    Commit,
    CommitFolder,
    best,
    commit_names,
    step_of,
)
from samebits.errors import CommitError, RemoteStorageError, SamebitsError


class Uploader:
    """Uploads the newest commit of `folder`, and the best ones; commits that a newer one has replaced are skipped.

    A commit at the URL is deleted, by the rule of `folder`, when the newer one is whole there.
    """

    def __init__(self, files: FsspecFiles, claim: WriterClaim, folder: CommitFolder) -> None:
        self.values: dict[str, float | None] = {}
        """The `Manifest.value` of the commits at the URL, by name."""
        self.damaged: set[str] = set()
        """Names of damaged commits at the URL."""
        self._files, self._claim, self._folder = files, claim, folder
        self._thread: ThreadPoolExecutor | None = None
        self._upload: Future[None] | None = None

    @property
    def durable_step(self) -> int:
        """The step of the newest commit at the URL; -1 without."""
        return max(map(step_of, self.values), default=-1)

    def publish(self, *, wait: bool) -> None:
        """Begins to upload the newest commit unless it is there; with `wait`, returns when it is.

        Raises:
            CommitError: an upload failed. The next call begins another.
        """
        for _ in range(2):  # the upload that is under way may be of an older one
            newest = self._folder.last
            if self._upload is None and newest is not None and newest.name not in self.values:
                self._thread = self._thread or ThreadPoolExecutor(1, "samebits-upload")
                self._upload = self._thread.submit(self._upload_newest, newest)
            if self._upload is not None and (wait or self._upload.done()):
                upload, self._upload = self._upload, None
                upload.result()

    def close(self) -> None:
        """Ends the thread after the upload that it is in."""
        if self._thread is not None:
            self._thread.shutdown()
        self._thread = self._upload = None

    def _upload_newest(self, newest: Commit) -> None:
        names = {newest.name}
        if self._folder.keep_best:
            names |= best({**self._folder.values(), **self.values}, self._folder.keep_best)
        try:
            for name in sorted(names - self.values.keys() - self._folder.corrupt, reverse=True):
                self._copy(name)
        except (SamebitsError, OSError) as error:
            raise self._error(newest, error) from error
        try:
            self._prune(newest)
        except (SamebitsError, OSError) as error:
            self._folder.troubles.append(f"old commits in {self._files.url} cannot be deleted: {error}")

    def _copy(self, name: str) -> None:
        local, remote = LocalFolder(self._folder.commits / name), f"{COMMITS}/{name}"
        try:  # what is open stays, whoever deletes it
            with local.open(TENSORS)[0] as tensors, local.open(MANIFEST)[0] as manifest:
                text = manifest.read()
                if name in self.damaged:
                    RemoteFolder(self._files, name).delete()
                self._files.write(f"{remote}/{TENSORS}", tensors)
        except FileNotFoundError:
            if any(step_of(other) > step_of(name) for other in commit_names(self._folder.commits)):
                return  # which have replaced it
            raise
        self._claim.check()
        self._files.write(f"{remote}/{MANIFEST}", io.BytesIO(text))
        self.damaged.discard(name)
        self.values = {**self.values, name: json.loads(text)["value"]}

    def _prune(self, newest: Commit) -> None:
        """Deletes what the newest commit replaces, and what kills have left half-written before it."""
        whole, half = list_folders(self._files)
        there = [folder.name for folder in whole]
        replaced = self._folder.replaced(newest, there, self.damaged, self.values.get)
        for folder in (*whole, *half):
            if folder.name in replaced or (folder in half and step_of(folder.name) < newest.step):
                folder.delete()
        self.values = {name: value for name, value in self.values.items() if name not in replaced}

    def _error(self, commit: Commit, error: SamebitsError | OSError) -> CommitError:
        safe = (
            f"The commit of step {self.durable_step} is safe" if self.values else "There is no earlier commit"
        )
        failed = f"commit of step {commit.step} to {self._files.url} failed"
        if isinstance(error, OSError | RemoteStorageError):
            failed += f": it is in {self._folder.commits.parent} alone, from where the next start uploads it"
        return CommitError(f"{failed}. {safe}. {error}")
