"""The commits of one run at a URL: made in a local folder, the staging folder, and uploaded from there.

$SAMEBITS_CACHE_DIR/runs/<URL>/         a run directory (see `_store`), locked; a cache, once all is uploaded
url/...                                 see `fsspec_files`

A run resumes from the newest valid commit of both. A commit that only the staging folder has counts if the
run has not gone on without it: no process of another machine has opened the URL since, or the newest commit
there is in the staging folder, too. Else it is dropped, with a line on stderr: a run killed on one machine,
resumed on another and then again on the first never resumes from the first one's old commit. So a URL that
was removed is not filled again from this machine.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

from samebits._context import cache_root, url_folder
from samebits.checkpoint._manifest import marker_text
from samebits.checkpoint._reading import LocalFolder, read_manifests
from samebits.checkpoint._remote.fsspec_files import FsspecFiles, RemoteFolder, list_folders, remote_folders
from samebits.checkpoint._remote.writer_claim import WRITER, WriterClaim
from samebits.checkpoint._retention import step_of
from samebits.checkpoint._run_directory import COMMITS, MARKER
from samebits.checkpoint._writer.commit_folder import MANIFEST, Commit, CommitFolder, commit_names
from samebits.errors import CommitError, RemoteStorageError, RunDirectoryError, SamebitsError


class RemoteCommits:
    """The commits at `url`: uploads the newest of `folder` and the best ones; skips those that were replaced.

    A thread uploads. A commit there is deleted, by the rule of `folder`, when the newer one is whole.
    """

    def __init__(self, url: str, folder: CommitFolder) -> None:
        self.values: dict[str, float | None] = {}
        """The `Manifest.value` of the commits at the URL, by name."""
        self.files = FsspecFiles(url)
        self._folder, self._staging = folder, folder.commits.parent
        self._claim = WriterClaim(self.files, self._staging)
        self._damaged: set[str] = set()
        """Names of damaged commits at the URL."""
        self._thread: ThreadPoolExecutor | None = None
        self._upload: Future[None] | None = None

    def check_contents(self) -> None:
        """Raises RunDirectoryError if the URL holds other things than a run's."""
        top = self.files.names()
        if MARKER not in top and top - {MARKER, WRITER, COMMITS}:
            raise RunDirectoryError(
                f"{self.files.url} is not empty and not a run directory of samebits "
                f"(it has {min(top - {MARKER, WRITER, COMMITS})!r} and no {MARKER}). "
                "Choose a URL where nothing is; nothing was written."
            )

    def open(self) -> None:
        """Names this process, which has locked the staging folder, as the writer at the URL.

        Raises RemoteStorageError: it does not answer, or cannot be written.
        """
        ours = self._claim.take()
        if not self.files.has(MARKER):
            self.files.write(MARKER, io.BytesIO(marker_text().encode()))
        if not ours:
            self._drop_stale()
            self._claim.settle()

    def close(self) -> None:
        """Ends the thread after the upload that it is in, and releases the directory."""
        if self._thread is not None:
            self._thread.shutdown()
        self._thread = self._upload = None
        with suppress(RemoteStorageError, RunDirectoryError):  # the next process takes over
            self._claim.end()

    def note(self, folders: Collection[RemoteFolder], skipped: Collection[Any]) -> None:
        """Notes the commits that are at the URL, and those that cannot be used."""
        whole = [(one, manifest) for one, manifest in read_manifests(folders)[0] if one not in skipped]
        self.values = {folder.name: manifest.value for folder, manifest in whole}
        self._damaged = {folder.name for folder in folders} - self.values.keys()

    @property
    def durable_step(self) -> int:
        """The step of the newest commit at the URL; -1 without."""
        return max(map(step_of, self.values), default=-1)

    def publish(self, *, wait: bool) -> None:
        """Begins to upload the newest commit unless it is there; with `wait`, returns when it is.

        Raises CommitError when an upload has failed; the next call begins another.
        """
        for _ in range(2):  # the upload that is under way may be of an older one
            newest = self._folder.last
            if self._upload is None and newest is not None and newest.name not in self.values:
                self._thread = self._thread or ThreadPoolExecutor(1, "samebits-upload")
                self._upload = self._thread.submit(self._upload_newest, newest)
            if self._upload is not None and (wait or self._upload.done()):
                upload, self._upload = self._upload, None
                upload.result()

    def _upload_newest(self, newest: Commit) -> None:
        names = {newest.name}
        if self._folder.retention.keep_best:
            names |= self._folder.retention.best({**self._folder.values(), **self.values})
        try:
            for name in sorted(names - self.values.keys() - self._folder.corrupt, reverse=True):
                self._copy(name)
        except (SamebitsError, OSError) as error:
            raise self._error(newest, error) from error
        try:
            self._prune(newest)
        except (SamebitsError, OSError) as error:
            self._folder.troubles.append(f"old commits in {self.files.url} cannot be deleted: {error}")

    def _copy(self, name: str) -> None:
        local, remote = LocalFolder(self._folder.commits / name), f"{COMMITS}/{name}"
        try:  # what is open stays, whoever deletes it
            with ExitStack() as opened:
                text = opened.enter_context(local.open(MANIFEST)[0]).read()
                files = {one: opened.enter_context(local.open(one)[0]) for one in json.loads(text)["files"]}
                if name in self._damaged:
                    RemoteFolder(self.files, name).delete()
                for one, file in files.items():
                    self.files.write(f"{remote}/{one}", file)
        except FileNotFoundError:
            if any(step_of(other) > step_of(name) for other in commit_names(self._folder.commits)):
                return  # which have replaced it
            raise
        self._claim.check()
        self.files.write(f"{remote}/{MANIFEST}", io.BytesIO(text))
        self._damaged.discard(name)
        self.values = {**self.values, name: json.loads(text)["value"]}

    def _prune(self, newest: Commit) -> None:
        """Deletes what the newest commit replaces, and what kills have left half-written before it."""
        whole, half = list_folders(self.files)
        names = [folder.name for folder in whole]
        replaced = self._folder.replaced(newest, names, self._damaged, lambda: self.values)
        for folder in (*whole, *half):
            if folder.name in replaced or (folder in half and step_of(folder.name) < newest.step):
                folder.delete()
        self.values = {name: value for name, value in self.values.items() if name not in replaced}

    def _error(self, commit: Commit, error: SamebitsError | OSError) -> CommitError:
        step = self.durable_step
        safe = f"The commit of step {step} is safe" if self.values else "There is no earlier commit"
        failed = f"commit of step {commit.step} to {self.files.url} failed"
        if isinstance(error, OSError | RemoteStorageError):
            failed += f": it is in {self._staging} alone, from where the next start uploads it"
        return CommitError(f"{failed}. {safe}. {error}")

    def _drop_stale(self) -> None:
        """Deletes the commits after the newest that the URL has, too, unless that is the newest there."""
        folders = remote_folders(self.files)
        there = {folder.name for folder in folders}
        whole, _ = read_manifests(folders)
        here = commit_names(self._folder.commits)
        stale = list(takewhile(lambda name: name not in there, here))
        if not stale or (whole and whole[0][0].name in here):
            return
        steps = ", ".join(str(step_of(name)) for name in reversed(stale))
        print(
            f"samebits: {self.files.url} continued on another machine, or was removed: commits that only "
            f"this machine has are deleted (of step {steps})",
            file=sys.stderr,
        )
        for name in stale:
            LocalFolder(self._folder.commits / name).delete()


def staging_folder(url: str) -> Path:
    """Returns the local folder for the commits of a URL. RunDirectoryError without a home directory."""
    try:
        return (cache_root() / "runs" / url_folder(url)).absolute()
    except RuntimeError as error:
        raise RunDirectoryError(
            f"{url}: this user has no home directory, in which commits are made before they are uploaded. "
            "Set SAMEBITS_CACHE_DIR to a folder."
        ) from error
