"""The commits of one run in a run directory, a local folder or a URL: written, found again, locked.

run_dir/samebits-run.json                   marks the folder as ours
run_dir/lock                                one writer
run_dir/commits/000000000120-1a2b3c4d/      step and digest: tensors.safetensors, manifest.json
run_dir/commits/tmp-*                       being written or deleted; never read
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from samebits._arguments import require
from samebits._context import is_url, resolve_run_dir
from samebits._inspect import user_code
from samebits.checkpoint import _reading as reading
from samebits.checkpoint._manifest import Manifest
from samebits.checkpoint._part_files import Layouts
from samebits.checkpoint._prepared_commit import CommitPreparer, PreparedCommit
from samebits.checkpoint._remote.fsspec_files import FsspecFiles, RemoteFolder, remote_folders
from samebits.checkpoint._remote.remote_commits import RemoteCommits, staging_folder
from samebits.checkpoint._remote.writer_claim import WriterClaim
from samebits.checkpoint._retention import Retention
from samebits.checkpoint._run_directory import COMMITS, MARKER, RunDirectory, commit_error
from samebits.checkpoint._writer.commit_folder import Commit, CommitFolder, commit_names, folder_identity
from samebits.checkpoint._writer.writer_client import WriterClient
from samebits.errors import CommitError, InvalidArgumentError, RunDirectoryError, SamebitsError


class CommitStore:
    """The commits in the run directory `where`, a path or a URL; `keep`, `keep_best`: see `Retention`.

    Write between `open()` and `close()` (or in a `with` block). `newest()` also works on a store that is not
    open, as long as no other process writes to it at the same time. At a URL, `write` returns when the
    commit is there, and `publish` uploads those of the writer process.
    """

    def __init__(self, where: Path | str, keep: int = 2, keep_best: int = 0) -> None:
        require(keep >= 1, "CommitStore", "at least the newest commit must stay", keep=keep)
        url = str(where) if is_url(where) else None
        self.where = url or Path(where)
        """The path or the URL, for messages."""
        self.skipped: list[tuple[reading.Folder, str]] = []
        """Commits that the last `newest()` could not use, and the reasons."""
        self._directory = RunDirectory(staging_folder(url) if url else Path(where))
        self.folder = CommitFolder(self._directory.commits, Retention(keep, keep_best))
        self._remote = RemoteCommits(url, self.folder) if url else None
        self.writer: WriterClient | None = None
        """The client of the writer process, once there is one."""
        self._preparer = CommitPreparer()
        self._base = 0
        """Number of changes that the writer process learns of with the next snapshot."""
        self._searched = False

    @property
    def run_dir(self) -> Path:
        """The folder of the run on this machine."""
        return self._directory.path

    @property
    def last(self) -> Commit | None:
        """The newest valid commit, once `newest()` or `write()` has been called."""
        return self.folder.last

    def open(self) -> None:
        """Creates the folder if need be, takes the one-writer lock, and becomes the writer at the URL.

        Raises:
            RunDirectoryError: the folder holds other things, is read-only, or a live process writes here.
            RemoteStorageError: the storage of the URL does not answer, or cannot be written.
        """
        if self._remote is not None:
            self._remote.check_contents()
        try:
            self._directory.open()
        except RunDirectoryError as error:
            if self._remote is None:
                raise
            raise RunDirectoryError(
                f"{self.where}: commits are made in a folder of this machine first, below "
                f"SAMEBITS_CACHE_DIR: {error}"
            ) from error
        self.folder.identity = folder_identity(self.folder.commits)
        self.folder.sweep()
        self.warn()
        if self._remote is not None:
            try:
                self._remote.open()
            except BaseException:
                self._directory.close()
                raise

    def close(self) -> None:
        """Ends the upload that is under way and the writer process, and releases the lock."""
        if self._remote is not None and self._directory.owned:
            self._remote.close()
        self.end_writer()
        self._directory.close()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def prepare(self, state: Mapping[str, Any], *, step: int, **facts: Any) -> PreparedCommit:
        """Returns the commit of `state`, to `write` it here and now or to `snapshot` it; nothing is written.

        The tensors must not change until then. `facts`: the other arguments of `CommitPreparer.prepare`, in
        plain JSON: dicts with string keys, lists, finite numbers; `rolling` and `value` as in `Manifest`.

        Raises:
            UnsavableStateError: the state holds something that cannot be saved.
            RunDirectoryError: this process has not opened the store.
            InvalidArgumentError: `step` is before the last commit.
        """
        self.check_step(step)
        return self._preparer.prepare(state, step=step, **facts)

    def write(self, commit: PreparedCommit, on_tensors_written: Callable[[], None] | None = None) -> Manifest:
        """Makes a prepared commit durable, at a URL there, too; returns its manifest.

        It would then survive a power failure. `on_tensors_written` is called when the tensors are on disk and
        the manifest is not. A commit equal to the last one is not written again; one of the same step that
        differs replaces it.

        Raises:
            CommitError: the disk refused; earlier commits are untouched, the half-written one is removed.
        """
        name = self.write_here(commit, on_tensors_written)
        self.publish(wait=True)
        self.warn()
        return reading.read_manifest(self.folder_of(name))

    def write_here(self, commit: PreparedCommit, on_tensors_written: Callable[[], None] | None = None) -> str:
        """Makes a prepared commit durable on this machine, and returns its name. Raises CommitError."""
        self._base += 1  # the writer process, if there is one, continues after this commit
        try:
            return self.folder.write(
                commit.template,
                memoryview(commit.layout.head),
                commit.tensors,
                digests=commit.digests(),
                on_tensors_written=on_tensors_written,
            ).name
        except OSError as error:
            raise self.write_error(error, commit.template.step, commit.nbytes) from error

    def snapshot(self, commit: PreparedCommit) -> int | None:
        """Copies a prepared commit for the writer process, started if there is none; returns its number.

        Later changes of the state are not in it. It replaces the newest that the writer has not begun; None:
        the writer has no room for it. The writer's reports come from `poll` and `drain` of `writer`.

        Raises:
            OSError: there is no memory or process for it.
            WriterDiedError: the writer process has ended by itself.
        """
        if self.writer is None:
            self.writer = self._start_writer()
        facts = {"base": self._base, "last": self.last, "corrupt": sorted(self.folder.corrupt)}
        return self.writer.submit(commit, facts)

    def reserve(self, size: int) -> None:
        """Starts the writer process, and takes memory for `size` bytes beside this thread. Raises OSError."""
        if self.writer is None:
            self.writer = self._start_writer()
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

    def _start_writer(self) -> WriterClient:
        folder = self.folder
        options = {"commits": str(folder.commits), "retention": folder.retention, "identity": folder.identity}
        return WriterClient(self.run_dir, options)

    def write_error(self, error: OSError, step: int, nbytes: int) -> CommitError:
        return commit_error(error, self.run_dir, step, nbytes, self.last)

    def warn(self) -> None:
        """Warns of old commits that could not be deleted."""
        troubles, self.folder.troubles = self.folder.troubles, []
        for trouble in troubles:
            user_code.warn(trouble)

    def newest(
        self,
        check: Callable[[Any], None] | None = None,
        layouts: Layouts | None = None,
        read: reading.ReadState | None = None,
    ) -> tuple[Manifest, Any] | None:
        """Returns the newest commit whose every digest holds, and its state on the CPU; None without commits.

        `check` raises CorruptCommitError for a state that is none of the caller's; `layouts`: where the
        program has DTensors; `read` is called instead of `read_state`. Nothing is executed and nothing
        deleted. Newer commits that are damaged are listed in `skipped`.

        Raises:
            CorruptCommitError: there are commits and none is valid; the message names the reason for each.
            NewerCommitError: a later samebits wrote one of them.
            RemoteStorageError: the storage of a URL failed: its content is unknown, so nothing is skipped.
        """
        self.folder.last, self.folder.corrupt, self._searched = None, set(), True
        remote: list[RemoteFolder] = [] if self._remote is None else remote_folders(self._remote.files)
        folders: list[reading.Folder] = [*map(reading.LocalFolder, local_commits(self.run_dir)), *remote]
        found, self.skipped = reading.newest_valid(
            folders, check, read or partial(reading.read_state, layouts=layouts)
        )
        skipped = [folder for folder, _ in self.skipped]
        if found is None and skipped:
            raise reading.no_valid_commit_error(self.where, self.skipped)
        if found is not None:
            self.folder.last = found[1].commit
            self.folder.corrupt = {
                folder.name for folder in skipped if isinstance(folder, reading.LocalFolder)
            }
        if self._remote is not None:
            self._remote.note(remote, skipped)
            self.publish()
        return None if found is None else found[1:]

    def values(self) -> dict[str, float | None]:
        return {**self.folder.values(), **(self._remote.values if self._remote is not None else {})}

    def would_stay(self, value: float) -> bool:
        return self.folder.retention.would_stay(value, self.values().values())

    @property
    def durable_step(self) -> int:
        """The step up to which commits are durable in the run directory, at a URL there; -1 without."""
        if self._remote is not None:
            return self._remote.durable_step
        return self.last.step if self.last else -1

    def publish(self, *, wait: bool = False) -> None:
        """Begins to make the last commit durable at a URL, and waits with `wait`; in a folder it is already.

        Raises CommitError when one could not be uploaded.
        """
        if self._remote is not None and self._directory.owned:
            self._remote.publish(wait=wait)

    def refresh(self) -> None:
        """Finds the newest commit again: another process may have made one. Its tensors are not read."""
        for path in local_commits(self.run_dir):
            try:
                found = reading.read_manifest(reading.LocalFolder(path)).commit
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
                f"commit(step={step}) to {self.where}, which is at step "
                f"{self.last.step if self.last else 0}. Load the newest commit and resume from it, or use "
                "another run directory."
            )

    def finish_parts(self, temporary: Path, manifest: Manifest) -> None:
        """Makes the part files in a temporary folder a commit, durable at a URL, too. Raises CommitError."""
        self._base += 1
        try:
            self.folder.finish(temporary, manifest.commit, manifest.to_bytes())
        except OSError as error:
            raise self.write_error(error, manifest.step, manifest.nbytes) from error
        self.publish(wait=True)
        self.warn()

    def folder_of(self, name: str) -> reading.Folder:
        """Returns a commit by its name: on this machine, else at the URL."""
        found = reading.LocalFolder(self.folder.commits / name)
        if self._remote is None or found.path.exists():
            return found
        return RemoteFolder(self._remote.files, name)


def local_commits(run_dir: Path) -> list[Path]:
    """Returns the folders in `run_dir` with names of commits, newest step first."""
    folder = run_dir / COMMITS
    return [folder / name for name in commit_names(folder)]


def resolve(run_dir: str | os.PathLike[str], name: str = "run_dir") -> Path | str:
    """Returns the path or URL in argument `name`, after `resolve_run_dir`. Raises InvalidArgumentError."""
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
        raise InvalidArgumentError(f"{name}={text!r:.200} has a NUL character, as no path has. Leave it out.")
    try:
        Path(text).expanduser()
    except RuntimeError:
        raise InvalidArgumentError(
            f"{name}={text!r:.200}: this machine does not know the home directory of ~. Give the whole path."
        ) from None


def commit_folders(run_dir: str | os.PathLike[str]) -> Sequence[reading.Folder]:
    """Returns the commits in a run directory, newest step first. Raises RunDirectoryError without one."""
    where = find_run_directory(run_dir)
    if isinstance(where, str):
        return remote_folders(FsspecFiles(where))
    return [reading.LocalFolder(path) for path in local_commits(where)]


@contextmanager
def lock_run_directory(run_dir: str | os.PathLike[str]) -> Iterator[None]:
    """Holds the lock of a run directory. Raises RunDirectoryError when a live process (perhaps) has it."""
    where = find_run_directory(run_dir)
    directory = RunDirectory(where if isinstance(where, Path) else staging_folder(where))
    directory.open()
    try:
        if isinstance(where, str):
            WriterClaim(FsspecFiles(where), directory.path).check_free()
        yield
    finally:
        directory.close()


def run_directories(root: Path) -> list[Path]:
    return sorted(marker.parent for marker in root.rglob(MARKER))


def find_run_directory(run_dir: str | os.PathLike[str]) -> Path | str:
    """Returns the path or URL of an existing run directory. Raises RunDirectoryError without one.

    Where `verify` has moved run directories, one that it did not move is found, too.
    """
    candidates = [
        resolve(run_dir),
        str(run_dir) if is_url(run_dir) else Path(run_dir).expanduser().absolute(),
    ]
    for where in candidates:
        if FsspecFiles(where).has(MARKER) if isinstance(where, str) else (where / MARKER).is_file():
            return where
    raise RunDirectoryError(
        f"{os.fspath(run_dir)} is no run directory of samebits (there is no {MARKER} in it). Give the "
        "run_dir of a Run."
    )
