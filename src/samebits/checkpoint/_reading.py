"""Reading commits that anybody may have written: nothing is executed, no link followed, sizes are checked first.

The digests find damage, not malice: whoever forges a commit computes them anew. So that a digest holds is no reason
to trust what it covers.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar

from samebits.checkpoint import _safetensors_file as safetensors_file
from samebits.checkpoint._async_writer.writer.commit_folder import BUFFER_BYTES, MANIFEST, TENSORS, TMP
from samebits.checkpoint._codec import decode
from samebits.checkpoint._manifest import MAX_MANIFEST_BYTES, Manifest
from samebits.errors import CorruptCommitError, NewerCommitError, SamebitsError


class Folder(Protocol):
    """The files of one commit, wherever they are."""

    @property
    def name(self) -> str:
        """What `commit.name` says of the manifest, in a commit that nobody renamed."""
        ...

    def open(self, file: str) -> tuple[BinaryIO, int]:
        """A file to read and its size in bytes. Raises OSError or CorruptCommitError."""
        ...

    def written(self) -> float | None:
        """When it became a commit, in seconds since 1970; None where the storage does not tell."""
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
        """The folder's name."""
        return self.path.name

    def open(self, file: str) -> tuple[BinaryIO, int]:
        """The file, if folder and file are what their names say: a link leads elsewhere, a pipe has no end."""
        if self.path.is_symlink():
            raise CorruptCommitError(f"{self.path} is a symbolic link")
        return open_regular(self.path / file)

    def written(self) -> float | None:
        """When the manifest was written; None when there is none."""
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
    """The regular file `path` and its size. Raises OSError, or CorruptCommitError for links, pipes and devices."""
    if not stat.S_ISREG(path.lstat().st_mode):  # before open: opening a device may do something
        raise CorruptCommitError(f"{path} is no regular file")
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    return os.fdopen(descriptor, "rb", BUFFER_BYTES), os.fstat(descriptor).st_size


def read_manifest(folder: Folder) -> Manifest:
    """The manifest of a commit, well-formed.

    Errors:
        NewerCommitError: a later samebits wrote it.
        CorruptCommitError: it is damaged, or belongs to another folder.
        OSError: it cannot be read.
    """
    where = f"{folder}/{MANIFEST}"
    file, size = folder.open(MANIFEST)
    with file:
        if size > MAX_MANIFEST_BYTES:
            raise CorruptCommitError(f"{where} is larger than {MAX_MANIFEST_BYTES} bytes")
        manifest = Manifest.from_bytes(file.read(size), where)
    if folder.name != manifest.commit.name:
        raise CorruptCommitError(f"{folder} was renamed: its manifest says {manifest.commit.name}")
    return manifest


def check_sizes(folder: Folder, manifest: Manifest) -> None:
    """Raises CorruptCommitError or OSError unless each file is there and as long as it was written."""
    for name, entry in manifest.files.items():
        file, size = folder.open(name)
        file.close()
        if size != entry["bytes"]:
            raise CorruptCommitError(f"{folder}/{name} has {size} bytes, not {entry['bytes']}")


def read_state(folder: Folder, manifest: Manifest) -> dict[str, Any]:
    """The state of a commit, of which every digest holds; tensors on the CPU.

    Errors:
        CorruptCommitError: a file is damaged, or the manifest holds what `encode` does not write.
        OSError: a file cannot be read.
        MemoryError: the tensors, which really are that large, do not fit into memory.
    """
    check_sizes(folder, manifest)
    file, size = folder.open(TENSORS)
    try:
        with file:
            tensors = safetensors_file.read(file, size, manifest.tensors, f"{folder}/{TENSORS}")
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


def readable(folders: Iterable[F]) -> tuple[list[tuple[F, Manifest]], list[tuple[F, str]]]:
    """The folders whose manifests hold, newest first, and those whose do not, each with the reason.

    Errors:
        NewerCommitError: a later samebits wrote one of them, and going on from an older one would drop it.
    """
    good: list[tuple[F, Manifest]] = []
    bad: list[tuple[F, str]] = []
    for folder in folders:
        try:
            good.append((folder, read_manifest(folder)))
        except NewerCommitError:
            raise
        except (OSError, CorruptCommitError) as error:
            bad.append((folder, why(error)))
    parents = {manifest.parent for _, manifest in good}
    good.sort(key=lambda item: newness(item[1], parents), reverse=True)
    return good, bad


def newness(manifest: Manifest, parents: Collection[str | None]) -> tuple[int, bool]:
    """What commits are sorted by. A kill between replacing and deleting leaves two of one step: the child is newer."""
    return manifest.step, manifest.digest not in parents


def newest_valid(folders: Iterable[F]) -> tuple[tuple[F, Manifest, Any] | None, list[tuple[F, str]]]:
    """The newest commit whose every digest holds, with its state, and what was skipped for it, with the reasons.

    Errors:
        NewerCommitError: a later samebits wrote one of them.
    """
    good, skipped = readable(folders)
    for folder, manifest in good:
        try:
            return (folder, manifest, read_state(folder, manifest)), skipped
        except (OSError, CorruptCommitError) as error:
            skipped.append((folder, why(error)))
    return None, skipped


def why(error: OSError | SamebitsError) -> str:
    """Why a commit cannot be used, without the operating system's numbers."""
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        return f"{error.filename} is missing"
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        return f"{error.filename} cannot be read: {error.strerror}"
    return str(error)


def none_valid(run_dir: object, skipped: Iterable[tuple[Folder, str]]) -> CorruptCommitError:
    """The error for commits of which none is valid: each with its reason, and the cure."""
    reasons = "\n".join(f"  {folder}: {why}" for folder, why in skipped)
    return CorruptCommitError(
        f"no commit in {run_dir} is valid:\n{reasons}\nTo start again from the first step, remove {run_dir}."
    )
