"""Reads commits of any origin: nothing is executed, no link is followed, sizes are checked first.

The digests find damage, not malice: a forger computes them anew. So a valid digest is no reason for trust.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar

import torch

from samebits.checkpoint import _safetensors_file as safetensors_file
from samebits.checkpoint._codec import decode
from samebits.checkpoint._manifest import MAX_MANIFEST_BYTES, Manifest
from samebits.checkpoint._part_files import CommitFiles, Layouts
from samebits.checkpoint._sharded_tensors import rows_like
from samebits.checkpoint._writer.commit_folder import BUFFER_BYTES, MANIFEST, TENSORS, TMP
from samebits.errors import CorruptCommitError, NewerCommitError, SamebitsError


class Folder(Protocol):
    """The files of one commit, wherever they are."""

    @property
    def name(self) -> str:
        """The folder's name; `manifest.commit.name`, unless somebody renamed the folder."""
        ...

    def open(self, file: str) -> tuple[BinaryIO, int]:
        """Opens a file and returns it with its size in bytes. Raises OSError or CorruptCommitError."""
        ...

    def modified(self) -> float | None:
        """Returns when it became a commit, in seconds since 1970; None where the storage has no such time."""
        ...

    def delete(self) -> None:
        """Makes it no commit at once, then removes it. Raises OSError."""
        ...


F = TypeVar("F", bound=Folder)


@dataclass(frozen=True)
class LocalFolder:
    """A commit on a disk."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    def open(self, file: str) -> tuple[BinaryIO, int]:
        """Opens a file, unless folder or file is a link (it leads elsewhere) or a pipe (it has no end)."""
        if self.path.is_symlink():
            raise CorruptCommitError(f"{self.path} is a symbolic link")
        return open_regular(self.path / file)

    def modified(self) -> float | None:
        """Returns when the manifest was written; None when there is none."""
        try:
            return (self.path / MANIFEST).lstat().st_mtime
        except OSError:
            return None

    def delete(self) -> None:
        """Renames it, so that no reader sees half of it, and removes it; of a link, the link."""
        if self.path.is_symlink():
            self.path.unlink()
            return
        doomed = self.path.rename(self.path.with_name(f"{TMP}{self.path.name}"))
        shutil.rmtree(doomed)

    def __str__(self) -> str:
        return str(self.path)


def open_regular(path: Path) -> tuple[BinaryIO, int]:
    """Opens a regular file; returns it and its size. Raises OSError; CorruptCommitError for another kind."""
    if not stat.S_ISREG(path.lstat().st_mode):  # before open: opening a device may do something
        raise CorruptCommitError(f"{path} is no regular file")
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    return os.fdopen(descriptor, "rb", BUFFER_BYTES), os.fstat(descriptor).st_size


def read_manifest(folder: Folder) -> Manifest:
    """Returns the manifest of a commit, well-formed.

    Raises NewerCommitError for one of a later samebits, OSError for one that cannot be read, and
    CorruptCommitError for one that is damaged or belongs to another folder.
    """
    where = f"{folder}/{MANIFEST}"
    file, size = folder.open(MANIFEST)
    with file:
        if size > MAX_MANIFEST_BYTES:
            raise CorruptCommitError(f"{where} is larger than {MAX_MANIFEST_BYTES} bytes")
        manifest = Manifest.from_bytes(file.read(size), where)
    if folder.name != manifest.commit.name:
        raise CorruptCommitError(f"{folder} was renamed: its manifest names {manifest.commit.name}")
    return manifest


def check_sizes(folder: Folder, manifest: Manifest) -> None:
    """Raises CorruptCommitError or OSError unless each file is there and as long as it was written."""
    for name, entry in manifest.files.items():
        file, size = folder.open(name)
        file.close()
        if size != entry["bytes"]:
            raise CorruptCommitError(f"{folder}/{name} has {size} bytes, not {entry['bytes']}")


def read_state(folder: Folder, manifest: Manifest, layouts: Layouts | None = None) -> dict[str, Any]:
    """Returns the state of a commit after verifying every digest; tensors on the CPU.

    `layouts`: where the program, of one process, has DTensors.

    Raises:
        CorruptCommitError: a file is damaged, or the manifest holds a tree that `encode` does not write.
        OSError: a file cannot be read.
        MemoryError: the tensors, which really are that large, do not fit into memory.
    """
    check_sizes(folder, manifest)
    if manifest.in_parts:
        with CommitFiles(folder, manifest) as files:
            tensors = {name: files.whole(name) for name in manifest.tensors}
    else:
        file, size = folder.open(TENSORS)
        with file:
            tensors = safetensors_file.read(file, size, manifest.tensors, f"{folder}/{TENSORS}")
    like = {} if layouts is None else layouts(tensors)
    return decode_state(
        folder, manifest, {n: rows_like(like[n], one) if n in like else one for n, one in tensors.items()}
    )


def verify(
    folder: Folder, manifest: Manifest, on_read: Callable[[int], None] = lambda _: None
) -> tuple[dict[str, Any], dict[int, str]]:
    """Reads every byte of a commit without keeping it; `on_read` is called with numbers of bytes.

    Returns the `outline`. Raises as `read_state` does.
    """
    check_sizes(folder, manifest)
    with CommitFiles(folder, manifest, safetensors_file.mapped) as files:
        files.verify(on_read)
    return outline(folder, manifest)


def outline(folder: Folder, manifest: Manifest) -> tuple[dict[str, Any], dict[int, str]]:
    """Returns a state whose tensors have no content, and their names in the commit, by `id`; none is read."""
    tensors = {name: safetensors_file.mapped(info, str(folder)) for name, info in manifest.tensors.items()}
    return decode_state(folder, manifest, tensors), {id(one): name for name, one in tensors.items()}


def decode_state(folder: Folder, manifest: Manifest, tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Returns the state of verified tensors. Raises CorruptCommitError for a tree that no state has."""
    try:
        state = decode(manifest.tree, tensors)
        if not isinstance(state, dict):
            raise TypeError(f"a state is a dict, not a {type(state).__name__}")
        return state
    except (SamebitsError, OSError, MemoryError):
        raise
    except Exception as error:  # its digest holds, so whoever wrote it did not use `encode`
        raise CorruptCommitError(
            f"{folder}/{MANIFEST} holds a state that cannot be decoded: {error!r}"
        ) from error


def read_manifests(folders: Iterable[F]) -> tuple[list[tuple[F, Manifest]], list[tuple[F, str]]]:
    """Returns the folders with valid manifests, newest first, and the others, each with the reason.

    Raises NewerCommitError for one of a later samebits: resuming from an older commit would drop it.
    """
    good: list[tuple[F, Manifest]] = []
    bad: list[tuple[F, str]] = []
    for folder in folders:
        try:
            good.append((folder, read_manifest(folder)))
        except NewerCommitError:
            raise
        except (OSError, CorruptCommitError) as error:
            bad.append((folder, failure_reason(error)))
    parents = {manifest.parent for _, manifest in good}
    good.sort(key=lambda item: sort_key(item[1], parents), reverse=True)
    return good, bad


def sort_key(manifest: Manifest, parents: Collection[str | None]) -> tuple[int, bool]:
    """Returns the key that sorts commits. A kill may leave two of one step: the child is newer."""
    return manifest.step, manifest.digest not in parents


ReadState = Callable[[Any, Manifest], Any]


def newest_valid(
    folders: Iterable[F], check: Callable[[Any], None] | None = None, read: ReadState = read_state
) -> tuple[tuple[F, Manifest, Any] | None, list[tuple[F, str]]]:
    """Returns the newest valid commit with its state, and the skipped ones with the reasons.

    `check` raises CorruptCommitError for a state that is none of the caller's; `read` as `read_state`. Raises
    NewerCommitError for a commit of a later samebits.
    """
    good, skipped = read_manifests(folders)
    for folder, manifest in good:
        try:
            state = read(folder, manifest)
            if check is not None:
                check(state)
            return (folder, manifest, state), skipped
        except (OSError, CorruptCommitError) as error:
            skipped.append((folder, failure_reason(error)))
    return None, skipped


def failure_reason(error: OSError | SamebitsError) -> str:
    """Returns why a commit cannot be used, without the operating system's numbers."""
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        return f"{error.filename} is missing"
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        return f"{error.filename} cannot be read: {error.strerror}"
    return str(error)


def no_valid_commit_error(run_dir: object, skipped: Iterable[tuple[Folder, str]]) -> CorruptCommitError:
    """Returns the error for a run directory without a valid commit: each commit's reason, and the cure."""
    reasons = "\n".join(f"  {folder}: {why}" for folder, why in skipped)
    return CorruptCommitError(
        f"no commit in {run_dir} is valid:\n{reasons}\nTo start again from the first step, remove {run_dir}."
    )
