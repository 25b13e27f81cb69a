"""The commits of one run in a local folder: written to a temporary folder, fsynced, renamed; read newest valid first.

run_dir/samebits-run.json                   marks the folder as ours
run_dir/lock                                one writer
run_dir/commits/000000000120-1a2b3c4d/      step and digest: tensors.safetensors, manifest.json
run_dir/commits/tmp-*                       being written or deleted; never read
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from samebits._inspect import user_code
from samebits.checkpoint._disk_error_messages import commit_error
from samebits.checkpoint._manifest import Manifest
from samebits.checkpoint._prepared_commit import CommitMetadata, CommitPreparer, PreparedCommit
from samebits.checkpoint._reading import (
    Folder,
    LocalFolder,
    newest_valid,
    no_valid_commit_error,
    read_manifest,
)
from samebits.checkpoint._run_directory import COMMITS, RunDirectory
from samebits.checkpoint._writer.commit_folder import Commit, CommitFolder, commit_names, folder_identity
from samebits.checkpoint._writer.writer_client import WriterClient
from samebits.errors import CommitError, InvalidArgumentError, RunDirectoryError, SamebitsError


class CommitStore:
    """The commits in `run_dir/commits`; the newest `keep` stay, and the `keep_best` with the smallest value.

    Write between `open()` and `close()` (or in a `with` block). `newest()` also works on a store that is not
    open, as long as no other process writes to it at the same time.
    """

    def __init__(self, run_dir: Path, keep: int = 2, keep_best: int = 0) -> None:
        if keep < 1:
            raise InvalidArgumentError(f"CommitStore(keep={keep}): at least the newest commit must stay")
        self.where: Path | str = Path(run_dir)
        """The run directory, for messages."""
        self.skipped: list[tuple[Folder, str]] = []
        """Commits that the last `newest()` could not use, and the reasons."""
        self._directory = RunDirectory(Path(run_dir))
        self.folder = CommitFolder(self._directory.commits, keep, keep_best)
        self.writer: WriterClient | None = None
        """The client of the writer process, once there is one."""
        self._preparer = CommitPreparer()
        self._base = 0
        """Number of changes that the writer process learns of with the next snapshot."""
        self._searched = False

    @property
    def run_dir(self) -> Path:
        """The folder of the run."""
        return self._directory.path

    @property
    def last(self) -> Commit | None:
        """The newest valid commit, once `newest()` or `commit()` has been called."""
        return self.folder.last

    def open(self) -> None:
        """Creates the folder if need be and takes the one-writer lock.

        Raises:
            RunDirectoryError: the folder holds other things, cannot be written, or a live process writes here.
        """
        self._directory.open()
        self.folder.identity = folder_identity(self.folder.commits)
        self.folder.sweep()
        self.warn()

    def close(self) -> None:
        """Ends the writer process and releases the lock."""
        self.end_writer()
        self._directory.close()

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
        """Makes `state` durable as the commit of `step`; returns when it would survive a power failure.

        `position`, `program` and `environment` are plain JSON: dicts with string keys, lists, finite numbers.
        The tensors must not change meanwhile. `on_tensors_written` is called when the tensors are on disk
        and the manifest is not. A commit equal to the last one is not written again; one of the same step that
        differs replaces it. `rolling` and `value` are those of `Manifest`.

        Raises:
            UnsavableStateError: the state holds something that cannot be saved; nothing was written.
            CommitError: the disk refused; earlier commits are untouched, the half-written one is removed.
            RunDirectoryError: this process has not opened the store.
            InvalidArgumentError: `step` is before the last commit.
        """
        metadata = CommitMetadata(step, position, finished, program, environment, rolling, value)
        return self.write(self.prepare(state, metadata), on_tensors_written)

    def prepare(self, state: Mapping[str, Any], metadata: CommitMetadata) -> PreparedCommit:
        """Returns the commit of `state`, to `write` it here and now or to `snapshot` it; nothing is written.

        Raises those of `commit`, except CommitError.
        """
        self.check_step(metadata.step)
        return self._preparer.prepare(state, metadata)

    def write(self, commit: PreparedCommit, on_tensors_written: Callable[[], None] | None = None) -> Manifest:
        """Makes a prepared commit durable, and returns its manifest. Raises CommitError."""
        self._base += 1  # the writer process, if there is one, continues after this commit
        try:
            written = self.folder.write(
                commit.template,
                memoryview(commit.layout.head),
                commit.tensors,
                digests=commit.digests(),
                on_tensors_written=on_tensors_written,
            )
        except OSError as error:
            raise self.write_error(error, commit.template.step, commit.nbytes) from error
        self.warn()
        return read_manifest(self._folder(written.name))

    def snapshot(self, commit: PreparedCommit) -> int | None:
        """Copies a prepared commit for the writer process, which is started if there is none; returns its number.

        Later changes of the state are not in it. It replaces the newest that the writer has not begun; None: the writer has
        no room for it. The writer's reports come from `poll` and `drain` of `writer`.

        Raises:
            OSError: there is no memory or process for it.
            WriterDiedError: the writer process has ended by itself.
        """
        if self.writer is None:
            self.writer = WriterClient(self.run_dir, self._writer_options())
        facts = {"base": self._base, "last": self.last, "corrupt": sorted(self.folder.corrupt)}
        return self.writer.submit(commit, facts)

    def reserve(self, size: int) -> None:
        """Starts the writer process, and takes memory for a snapshot of `size` bytes beside this thread. Raises OSError."""
        if self.writer is None:
            self.writer = WriterClient(self.run_dir, self._writer_options())
            self.writer.reserve(size)

    def mark_written(self, fields: Mapping[str, Any]) -> None:
        """Notes a commit that the writer process has reported."""
        self.folder.last = Commit(*fields["commit"])
        self.folder.troubles += fields["troubles"]

    def end_writer(self, *, kill: bool = False) -> None:
        """Ends the writer process, if there is one; it first writes its snapshots, unless it is killed."""
        writer, self.writer = self.writer, None
        if writer is not None:
            writer.close(kill=kill)
        self._base += 1

    def _writer_options(self) -> dict[str, Any]:
        return {
            "commits": str(self.folder.commits),
            "keep": self.folder.keep,
            "keep_best": self.folder.keep_best,
            "identity": self.folder.identity,
        }

    def write_error(self, error: OSError, step: int, nbytes: int) -> CommitError:
        """Returns the error for a commit of `step`, of `nbytes` bytes, that the disk refused."""
        return commit_error(error, self.run_dir, step, nbytes, self.last)

    def warn(self) -> None:
        """Warns of old commits that could not be deleted."""
        troubles, self.folder.troubles = self.folder.troubles, []
        for trouble in troubles:
            user_code.warn(trouble)

    def newest(self) -> tuple[Manifest, Any] | None:
        """Returns the newest commit whose every digest holds, with its state (tensors on the CPU); None without commits.

        Nothing is executed and nothing deleted. Newer commits that are damaged are listed in `skipped`.

        Raises:
            CorruptCommitError: there are commits and none is valid; the message names the reason for each.
            NewerCommitError: a later samebits wrote one of them.
        """
        self.folder.last, self.folder.corrupt, self._searched = None, set(), True
        found, self.skipped = newest_valid(self._folders())
        if found is not None:
            _, manifest, state = found
            self.folder.last = manifest.commit
            damaged = [folder for folder, _ in self.skipped if isinstance(folder, LocalFolder)]
            self.folder.corrupt = {folder.name for folder in damaged}
            return manifest, state
        if self.skipped:
            raise no_valid_commit_error(self.where, self.skipped)
        return None

    def values(self) -> dict[str, float | None]:
        """Returns the `Manifest.value` of the existing commits, by name."""
        return self.folder.values()

    @property
    def durable_step(self) -> int:
        """The step up to which commits are durable in the run directory; -1 without."""
        return self.last.step if self.last else -1

    def publish(self, *, wait: bool = False) -> None:
        """Begins to make the last commit durable at a URL and, with `wait`, returns when it is; in a folder it is already.

        Raises:
            CommitError: one could not be uploaded.
        """

    def refresh(self) -> None:
        """Finds the newest commit again, where another process may have made one. Its tensors are not read."""
        for path in self._commits():
            try:
                found = read_manifest(LocalFolder(path)).commit
            except (OSError, SamebitsError):
                continue
            if self.last is None or found.step >= self.last.step:
                self.folder.last = found
            return

    def check_step(self, step: int) -> None:
        """Raises unless this process may commit `step` next."""
        if not self._directory.owned:
            raise RunDirectoryError(
                f"commit to {self.where}, which this process (pid {os.getpid()}) has not opened. "
                "Call open() first, in the process that commits."
            )
        if not self._searched:
            self.newest()
        if step < 0 or (self.last and step < self.last.step):
            raise InvalidArgumentError(
                f"commit(step={step}) to {self.where}, which is at step {self.last.step if self.last else 0}. "
                "Load the newest commit and resume from it, or use another run directory."
            )

    def _folder(self, name: str) -> Folder:
        return LocalFolder(self.folder.commits / name)

    def _folders(self) -> list[Folder]:
        return list(map(LocalFolder, self._commits()))

    def _commits(self) -> list[Path]:
        return local_commits(self._directory.path)


def local_commits(run_dir: Path) -> list[Path]:
    """Returns the folders in `run_dir` with names of commits, newest step first."""
    folder = run_dir / COMMITS
    return [folder / name for name in commit_names(folder)]
