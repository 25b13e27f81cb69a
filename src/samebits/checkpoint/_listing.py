"""The commits of a run directory, for people and scripts: a list with their status, and pruning by hand."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from samebits._arguments import require
from samebits.checkpoint import _reading as reading
from samebits.checkpoint._manifest import Manifest
from samebits.checkpoint._retention import Retention, step_of
from samebits.checkpoint._store import commit_folders, lock_run_directory
from samebits.errors import CorruptCommitError, NewerCommitError

VALID, WHOLE, NEWER, DAMAGED = "valid", "whole", "newer", "damaged"


@dataclass(frozen=True)
class CommitInfo:
    """One commit, with as much of it as can be read."""

    folder: reading.Folder
    status: str
    """valid: all digests hold. whole: the manifest's holds, the files have their sizes. Or newer, damaged."""
    manifest: Manifest | None
    reason: str = ""
    """The reason that it cannot be used."""

    @property
    def step(self) -> int:
        """Number of batches of the whole run before this commit."""
        return step_of(self.folder.name)

    @property
    def usable(self) -> bool:
        """True if no damage was found."""
        return self.status in (VALID, WHOLE)

    @property
    def size(self) -> int | None:
        """Total size in bytes of the files that the manifest names; None without a manifest."""
        return None if self.manifest is None else self.manifest.nbytes

    @property
    def parts(self) -> list[dict[str, Any]] | None:
        """The files of a commit in parts: name, bytes, and who wrote it (rank, host); None for any other."""
        if self.manifest is None or not self.manifest.in_parts:
            return None
        return [{"name": name, **entry} for name, entry in sorted(self.manifest.files.items())]

    def facts(self) -> dict[str, Any]:
        """Returns the fields for a report, JSON-able."""
        manifest = self.manifest
        return {
            "name": self.folder.name,
            "step": self.step,
            "status": self.status,
            "reason": self.reason or None,
            "written": self.folder.modified(),
            "bytes": self.size,
            "parts": self.parts,
            "position": None if manifest is None else dict(manifest.position),
            "finished": None if manifest is None else manifest.finished,
            "digest": None if manifest is None else manifest.digest,
            "value": None if manifest is None else manifest.value,
            "parent": None if manifest is None else manifest.parent,
        }


def list_commits(
    run_dir: str | os.PathLike[str],
    *,
    verify: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[CommitInfo]:
    """Returns the commits in `run_dir` (path or URL), newest first.

    With `verify` every byte is read, and `on_progress(done, total)` is called with numbers of megabytes. A
    commit that a live run deletes meanwhile is left out.

    Raises:
        RunDirectoryError: there is no run directory.

    Example:
        >>> samebits.set_random_seed(1)
        >>> with samebits.Run("run", save="explicit", keep=3) as run:
        ...     for step, batch in run.steps([1, 2, 3]):
        ...         run.commit()
        >>> commits = samebits.checkpoint.list_commits("run", verify=True)
        >>> [(commit.step, commit.status) for commit in commits]
        [(3, 'valid'), (2, 'valid'), (1, 'valid')]
    """
    found = [inspect_commit(folder, verify=False) for folder in commit_folders(run_dir)]
    done, total = 0, sum(listed.size or 0 for listed in found)

    def on_read(size: int) -> None:
        nonlocal done
        done += size
        if on_progress is not None:
            on_progress(done // 10**6, total // 10**6)

    if verify:
        found = [inspect_commit(listed.folder, verify=True, on_read=on_read) for listed in found]
    if not all(listed.usable for listed in found):
        there = {folder.name for folder in commit_folders(run_dir)}
        found = [listed for listed in found if listed.usable or listed.folder.name in there]
    return _newest_first(found)


def inspect_commit(
    folder: reading.Folder, *, verify: bool, on_read: Callable[[int], None] = lambda _: None
) -> CommitInfo:
    """Reads one commit; with `verify`, every byte of it; `on_read` is called with numbers of bytes."""
    manifest = None
    try:
        manifest = reading.read_manifest(folder)
        if verify:
            reading.verify(folder, manifest, on_read)
        else:
            reading.check_sizes(folder, manifest)
    except NewerCommitError as error:
        return CommitInfo(folder, NEWER, None, str(error))
    except (OSError, CorruptCommitError) as error:
        return CommitInfo(folder, DAMAGED, manifest, reading.failure_reason(error))
    return CommitInfo(folder, VALID if verify else WHOLE, manifest)


def prune(
    run_dir: str | os.PathLike[str], keep: int, keep_best: int = 0
) -> tuple[list[CommitInfo], list[CommitInfo]]:
    """Deletes commits older than the newest `keep` valid ones, and damaged ones before the newest valid one.

    Valid commits with the `keep_best` smallest values stay, too. Every digest of those that stay is verified
    first. Commits newer than the newest valid one, and those that a later samebits wrote, are never deleted.
    Returns (kept, deleted), newest first.

    Raises:
        InvalidArgumentError: `keep` is below 1.
        RunDirectoryError: no run directory, or a live process writes here.

    Example:
        >>> samebits.set_random_seed(1)
        >>> with samebits.Run("run", save="explicit", keep=3) as run:
        ...     for step, batch in run.steps([1, 2, 3]):
        ...         run.commit()
        >>> kept, deleted = samebits.checkpoint.prune("run", keep=1)
        >>> [commit.step for commit in kept], [commit.step for commit in deleted]
        ([3], [2, 1])
    """
    require(keep >= 1, "prune", "at least the newest valid commit must stay", keep=keep)
    with lock_run_directory(run_dir):
        listed = _newest_first([inspect_commit(folder, verify=False) for folder in commit_folders(run_dir)])
        kept, doomed = _split(listed, Retention(keep, keep_best))
        for commit in doomed:
            commit.folder.delete()
    return kept, doomed


def _split(listed: Sequence[CommitInfo], retention: Retention) -> tuple[list[CommitInfo], list[CommitInfo]]:
    """Returns the commits that stay, verified, and the others."""
    found = {commit.folder.name: commit for commit in listed}
    while unverified := [name for name in _staying(found, retention) if found[name].status == WHOLE]:
        found |= {name: inspect_commit(found[name].folder, verify=True) for name in unverified}
    kept: list[CommitInfo] = []
    doomed: list[CommitInfo] = []
    for commit in found.values():
        before_all_valid = not any(c.status == VALID for c in kept)
        (kept if commit.status in (VALID, NEWER) or before_all_valid else doomed).append(commit)
    return kept, doomed


def _staying(found: Mapping[str, CommitInfo], retention: Retention) -> set[str]:
    usable = {name: c.manifest.value for name, c in found.items() if c.usable and c.manifest is not None}
    return retention.staying([*usable], usable)


def _newest_first(listed: Sequence[CommitInfo]) -> list[CommitInfo]:
    parents = {commit.manifest.parent for commit in listed if commit.manifest is not None}

    def key(commit: CommitInfo) -> tuple[int, bool]:
        return (commit.step, False) if commit.manifest is None else reading.sort_key(commit.manifest, parents)

    return sorted(listed, key=key, reverse=True)
