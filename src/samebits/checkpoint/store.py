"""Commits of one run: written beside, fsynced, renamed; read back newest valid first.

run_dir/samebits-run.json                   says that the folder is ours
run_dir/lock                                one writer
run_dir/commits/000000000120-1a2b3c4d/      step and digest: tensors.safetensors, manifest.json
run_dir/commits/tmp-*                       being written or deleted; never read
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from samebits.checkpoint import tensorfile
from samebits.checkpoint.assembly import Assembled, assemble
from samebits.checkpoint.diskerror import commit_error
from samebits.checkpoint.manifest import Manifest
from samebits.checkpoint.reading import (
    MANIFEST,
    NAME,
    TENSORS,
    TMP,
    LocalFolder,
    commit_name,
    newest_valid,
    none_valid,
    step_of,
)
from samebits.checkpoint.rundir import COMMITS, RunDirectory, sync_folder
from samebits.errors import InvalidArgumentError, RunDirectoryError


class CommitStore:
    """The commits in `run_dir/commits`; `keep` of them stay, older ones are deleted after each commit.

    Write between `open()` and `close()` (or in a `with` block). `newest()` also works on a store that is not
    open, as long as no other process writes to it at the same time.
    """

    def __init__(self, run_dir: Path, keep: int = 2) -> None:
        if keep < 1:
            raise InvalidArgumentError(f"CommitStore(keep={keep}): at least the newest commit must stay")
        self.keep = keep
        self.skipped: list[tuple[Path, str]] = []
        """Commits that the last `newest()` could not use, and why."""
        self.last: Manifest | None = None
        """The newest valid commit, once `newest()` or `commit()` has been called."""
        self._directory = RunDirectory(Path(run_dir))
        self._corrupt: set[Path] = set()
        self._looked = False

    @property
    def run_dir(self) -> Path:
        """The folder of the run."""
        return self._directory.path

    def open(self) -> None:
        """Creates the folder if need be and takes the one-writer lock.

        Errors:
            RunDirectoryError: the folder holds other things, cannot be written, or a live process writes here.
        """
        self._directory.open()
        self._sweep()

    def close(self) -> None:
        """Gives the lock back."""
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
        on_tensors_written: Callable[[], None] | None = None,
    ) -> Manifest:
        """Makes `state` durable as the commit of `step`; returns when it would survive a power failure.

        `position`, `program` and `environment` are plain JSON: dicts with string keys, lists, finite numbers.
        Nobody may write to the tensors meanwhile. `on_tensors_written` is called when the tensors are on disk
        and the manifest is not. A commit equal to the last one is not written again; one of the same step that
        differs replaces it.

        Errors:
            UnsavableStateError: the state holds something that cannot be saved; nothing was written.
            CommitError: the disk refused; earlier commits are untouched, the half-written one is removed.
            RunDirectoryError: this process has not opened the store.
            InvalidArgumentError: `step` lies before the last commit.
        """
        self._check_step(step)
        made = assemble(
            step, state, position=position, finished=finished, program=program, environment=environment,
            parent=self.last.digest if self.last else None,
        )  # fmt: skip
        if self.last and self.last.same_content(made.manifest):
            return self.last
        self._write(made, on_tensors_written)
        self.last = made.manifest
        self._prune(made.manifest)
        return made.manifest

    def newest(self) -> tuple[Manifest, Any] | None:
        """The newest commit whose every digest holds, with its state (tensors on the CPU); None without commits.

        Nothing is executed and nothing deleted. Newer commits that do not hold are listed in `skipped`.

        Errors:
            CorruptCommitError: there are commits and none is valid; the message says why for each.
            NewerCommitError: a later samebits wrote one of them.
        """
        self.skipped, self.last, self._corrupt, self._looked = [], None, set(), True
        found, skipped = newest_valid(map(LocalFolder, self._commits()))
        self.skipped = [(folder.path, why) for folder, why in skipped]
        if found is not None:
            _, self.last, state = found
            self._corrupt = {path for path, _ in self.skipped}
            return self.last, state
        if skipped:
            raise none_valid(self.run_dir, skipped)
        return None

    def _check_step(self, step: int) -> None:
        if not self._directory.owned:
            raise RunDirectoryError(
                f"commit to {self.run_dir}, which this process (pid {os.getpid()}) has not opened. "
                "Call open() first, in the process that commits."
            )
        if not self._looked:
            self.newest()
        if step < 0 or (self.last and step < self.last.step):
            raise InvalidArgumentError(
                f"commit(step={step}) to {self.run_dir}, which is at step {self.last.step if self.last else 0}. "
                "Load the newest commit and go on from there, or use another run directory."
            )

    def _commits(self) -> list[Path]:
        return local_commits(self._directory.path)

    def _write(self, made: Assembled, hook: Callable[[], None] | None) -> None:
        commits, manifest = self._directory.commits, made.manifest
        temporary: Path | None = None
        try:
            temporary = commits / f"{TMP}{uuid4().hex}"
            temporary.mkdir()
            tensorfile.write(temporary / TENSORS, made.blocks)
            if hook is not None:
                hook()
            tensorfile.write(temporary / MANIFEST, [memoryview(made.text)])
            sync_folder(temporary)
            final = commits / commit_name(manifest)
            if final.exists():  # the same bits, of which some were corrupt when this process looked
                final.rename(commits / f"{TMP}{uuid4().hex}")
            temporary.rename(final)
            temporary = None
            self._corrupt.discard(final)
            sync_folder(commits)
        except OSError as error:
            raise commit_error(error, self.run_dir, manifest.step, made.nbytes, self.last) from error
        finally:
            if temporary is not None:
                shutil.rmtree(temporary, ignore_errors=True)

    def _prune(self, newest: Manifest) -> None:
        """Deletes commits beyond `keep`, corrupt and replaced ones, and what kills left half-written."""
        older = [
            path
            for path in self._commits()
            if step_of(path.name) <= newest.step and path.name != commit_name(newest)
        ]
        valid = [path for path in older if path not in self._corrupt and step_of(path.name) < newest.step]
        keep = set(valid[: self.keep - 1])
        try:
            for path in older:
                if path not in keep:
                    path.rename(path.with_name(f"{TMP}{path.name}"))
        except OSError as error:
            warnings.warn(f"old commits in {self.run_dir} cannot be deleted: {error}", stacklevel=3)
        self._sweep()

    def _sweep(self) -> None:
        """Deletes what is being deleted, and what kills left half-written."""
        for path in self._directory.commits.glob(f"{TMP}*"):
            try:
                shutil.rmtree(path)
            except OSError as error:
                warnings.warn(f"{path} cannot be deleted: {error}", stacklevel=4)


def local_commits(run_dir: Path) -> list[Path]:
    """The folders in `run_dir` with names of commits, newest step first."""
    folder = run_dir / COMMITS
    names = os.listdir(folder) if folder.is_dir() and not folder.is_symlink() else []
    return [folder / name for name in sorted(filter(NAME.fullmatch, names), key=step_of, reverse=True)]
