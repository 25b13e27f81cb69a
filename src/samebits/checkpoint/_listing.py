"""The commits of a run directory, for people and scripts: what is there, whether it holds, and pruning by hand."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from samebits.checkpoint._async_writer.writer.commit_folder import best, step_of
from samebits.checkpoint._manifest import Manifest
from samebits.checkpoint._open_store import commit_folders, locked
from samebits.checkpoint._reading import Folder, check_sizes, newness, read_manifest, read_state, why
from samebits.errors import CorruptCommitError, InvalidArgumentError, NewerCommitError

VALID, WHOLE, NEWER, DAMAGED = "valid", "whole", "newer", "damaged"


@dataclass(frozen=True)
class Listed:
    """One commit, as far as it can be read."""

    folder: Folder
    status: str
    """valid: every digest holds. whole: the manifest's does, and files have their sizes. Or newer, or damaged."""
    manifest: Manifest | None
    reason: str = ""
    """Why it cannot be used."""

    @property
    def step(self) -> int:
        """Batches of the whole run that it stands after."""
        return step_of(self.folder.name)

    @property
    def usable(self) -> bool:
        """Whether nothing speaks against it."""
        return self.status in (VALID, WHOLE)

    @property
    def size(self) -> int | None:
        """Bytes of the files that the manifest names."""
        if self.manifest is None:
            return None
        return sum(entry["bytes"] for entry in self.manifest.files.values())

    def facts(self) -> dict[str, Any]:
        """What there is to say, JSON-able."""
        manifest = self.manifest
        return {
            "name": self.folder.name,
            "step": self.step,
            "status": self.status,
            "reason": self.reason or None,
            "written": self.folder.written(),
            "bytes": self.size,
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
    looked: Callable[[int, int], None] | None = None,
) -> list[Listed]:
    """The commits in `run_dir` (a path or URL), newest first; `looked` is told how many are done, of how many.

    With `verify` every byte is read. A commit that a live run deletes meanwhile is left out.

    Errors:
        RunDirectoryError: there is no run directory.
    """
    folders = commit_folders(run_dir)
    found = []
    for number, folder in enumerate(folders):
        found.append(look(folder, verify=verify))
        if looked is not None:
            looked(number + 1, len(folders))
    if not all(listed.usable for listed in found):
        there = {folder.name for folder in commit_folders(run_dir)}
        found = [listed for listed in found if listed.usable or listed.folder.name in there]
    return _in_order(found)


def look(folder: Folder, *, verify: bool) -> Listed:
    """One commit; with `verify`, after reading every byte of it."""
    manifest = None
    try:
        manifest = read_manifest(folder)
        if verify:
            read_state(folder, manifest)
        else:
            check_sizes(folder, manifest)
    except NewerCommitError as error:
        return Listed(folder, NEWER, None, str(error))
    except (OSError, CorruptCommitError) as error:
        return Listed(folder, DAMAGED, manifest, why(error))
    return Listed(folder, VALID if verify else WHOLE, manifest)


def prune(
    run_dir: str | os.PathLike[str], keep: int, keep_best: int = 0
) -> tuple[list[Listed], list[Listed]]:
    """Deletes what is older than the newest `keep` valid commits, and damaged ones older than the newest valid one.

    The valid ones of the `keep_best` smallest values stay, too. Every digest of those that stay is verified first. Returns (kept, deleted), newest first. What is newer than the
    newest valid commit, and what a later samebits wrote, is never deleted.

    Errors:
        InvalidArgumentError: `keep` is below 1.
        RunDirectoryError: no run directory, or a live process writes here.
    """
    if keep < 1:
        raise InvalidArgumentError(f"prune(keep={keep}): at least the newest valid commit must stay.")
    with locked(run_dir):
        listed = _in_order([look(folder, verify=False) for folder in commit_folders(run_dir)])
        best_names = best(
            {c.folder.name: c.manifest.value for c in listed if c.manifest is not None}, keep_best
        )
        kept, doomed = _chosen(listed, keep, best_names)
        for commit in doomed:
            commit.folder.delete()
    return kept, doomed


def _chosen(
    listed: Sequence[Listed], keep: int, best_names: Collection[str]
) -> tuple[list[Listed], list[Listed]]:
    kept: list[Listed] = []
    doomed: list[Listed] = []
    valid = 0
    for commit in listed:
        if commit.usable and (valid < keep or commit.folder.name in best_names):
            commit = look(commit.folder, verify=True)  # noqa: PLW2901 - now it is known
        stays = commit.status in (VALID, NEWER) or valid == 0
        (kept if stays else doomed).append(commit)
        valid += commit.status == VALID
    return kept, doomed


def _in_order(listed: Sequence[Listed]) -> list[Listed]:
    parents = {commit.manifest.parent for commit in listed if commit.manifest is not None}

    def key(commit: Listed) -> tuple[int, bool]:
        return (commit.step, False) if commit.manifest is None else newness(commit.manifest, parents)

    return sorted(listed, key=key, reverse=True)
