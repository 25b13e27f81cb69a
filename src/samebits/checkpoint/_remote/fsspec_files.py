"""Files and commits at an fsspec URL (s3://, gs://, file://): a written manifest makes a commit real.

url/samebits-run.json                   marks the folder as ours
url/writer.json                         the process that opened it last (see `writer_claim`)
url/commits/000000000120-1a2b3c4d/      tensors.safetensors first, manifest.json last

Object stores have no rename and no folders, but an object that is written in one call appears whole. A
storage where it does not (file://, killed in the middle) leaves a manifest whose digest does not hold, and
the commit before is read. The durability of a written object is that of the storage.

A missing file raises FileNotFoundError; every other failure names what to check. The difference matters to a
run: it skips a missing commit for an older one, but stops when the storage does not answer.
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

from samebits.checkpoint._retention import step_of
from samebits.checkpoint._run_directory import COMMITS
from samebits.checkpoint._writer.commit_folder import BUFFER_BYTES, MANIFEST, NAME, TENSORS
from samebits.errors import CorruptCommitError, RemoteStorageError

CURE = "Check the connection, the credentials and the URL, then run again: earlier commits are untouched."


class FsspecFiles:
    """The files below `url`, named by paths relative to it.

    Raises:
        RemoteStorageError: no installed package opens such URLs, or (from every method) the storage failed.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        try:
            import fsspec  # noqa: PLC0415 - optional
        except ImportError as error:
            raise RemoteStorageError(
                f"{url}: needs the package fsspec. Install it: pip install 'samebits[remote]'."
            ) from error
        try:
            self._files, self._root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError, TypeError) as error:
            raise RemoteStorageError(
                f"{url} cannot be opened: {error}. Install the package for this protocol, or use another URL."
            ) from error

    def names(self, folder: str = "", *, links: bool = True) -> set[str]:
        """Returns the names in `folder`, none where it is missing. `links`: include symbolic links."""
        with self._translate_errors(f"list {folder or 'it'}"):
            self._files.invalidate_cache()
            path = self._path(folder)
            try:
                # `ls` in each folder: `find` mistakes a failed connection for an empty folder.
                found = self._files.ls(path, detail=True)
            except FileNotFoundError:
                return set()
        kept = [str(entry["name"]) for entry in found if links or not entry.get("islink")]
        return {name.rstrip("/").rpartition("/")[2] for name in kept}

    def has(self, name: str) -> bool:
        """Returns True if there is such a file."""
        with self._translate_errors(f"look for {name}"), suppress(FileNotFoundError):
            return self._files.info(self._path(name))["type"] == "file"
        return False

    def open(self, name: str) -> tuple[BinaryIO, int]:
        """Opens a file and returns it with its size in bytes.

        Raises FileNotFoundError without one, CorruptCommitError for a link, a pipe or a folder.
        """
        with self._translate_errors(f"open {name}"):
            self._files.invalidate_cache()
            info = self._files.info(self._path(name))
            if info.get("type") != "file" or info.get("islink"):
                raise CorruptCommitError(f"{self.url}/{name} is no regular file")
            file = _RemoteReader(self, name, self._files.open(self._path(name), "rb"))
            return cast("BinaryIO", file), info["size"]

    def read(self, name: str, limit: int) -> bytes:
        """Returns the first `limit` bytes of a file. Raises FileNotFoundError."""
        file, _ = self.open(name)
        with file:
            return file.read(limit)

    def write(self, name: str, source: BinaryIO) -> None:
        """Creates a file with the rest of `source`; durable on return where the storage supports it."""
        with self._translate_errors(f"write {name}", passing=()), self._create(name) as file:
            shutil.copyfileobj(source, file, BUFFER_BYTES)
            file.flush()
            # Only files of this machine have a number
            with suppress(AttributeError, io.UnsupportedOperation):
                os.fsync(file.fileno())

    def remove(self, name: str) -> None:
        with self._translate_errors(f"remove {name}"), suppress(FileNotFoundError):
            self._files.rm_file(self._path(name))

    def remove_folder(self, name: str) -> None:
        """Removes an empty folder, where the storage has folders."""
        with suppress(Exception):  # each storage without folders raises another error
            self._files.rmdir(self._path(name))

    def modified(self, name: str) -> float | None:
        """Returns when a file was written, in seconds since 1970; None where the storage has no such time."""
        try:
            return self._files.modified(self._path(name)).timestamp()
        except Exception:  # half of all storages have no such method, each with another error
            return None

    def _create(self, name: str) -> Any:
        path = self._path(name)
        try:
            return self._files.open(path, "wb")
        except FileNotFoundError:  # a storage with real folders
            self._files.makedirs(self._files._parent(path), exist_ok=True)
            return self._files.open(path, "wb")

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}" if name else self._root

    @contextmanager
    def _translate_errors(
        self, what: str, passing: tuple[type[Exception], ...] = (FileNotFoundError, CorruptCommitError)
    ) -> Iterator[None]:
        """Turns a storage's errors, which have no common base, into `RemoteStorageError`; not `passing`."""
        try:
            yield
        except passing:
            raise
        except Exception as error:
            raise RemoteStorageError(f"{self.url}: could not {what}: {error!r:.300}. {CURE}") from error


class _RemoteReader(AbstractContextManager[Any]):
    """An open remote file. A broken connection is reported as such, not as a damaged file."""

    def __init__(self, files: FsspecFiles, name: str, file: Any) -> None:
        self._files, self._name, self._file = files, name, file

    def read(self, size: int = -1) -> bytes:
        with self._files._translate_errors(f"read {self._name}"):
            return self._file.read(size)

    def readinto(self, buffer: memoryview) -> int:
        with self._files._translate_errors(f"read {self._name}"):
            return self._file.readinto(buffer)

    def seek(self, place: int) -> int:
        return self._file.seek(place)

    def close(self) -> None:
        self._file.close()

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class RemoteFolder:
    """A commit at a URL."""

    files: FsspecFiles
    name: str

    def open(self, file: str) -> tuple[BinaryIO, int]:
        """Opens a file of the commit and returns it with its size in bytes."""
        return self.files.open(f"{COMMITS}/{self.name}/{file}")

    def modified(self) -> float | None:
        return self.files.modified(f"{COMMITS}/{self.name}/{MANIFEST}")

    def delete(self) -> None:
        """Deletes the manifest first: without it the rest is no commit."""
        others = self.files.names(f"{COMMITS}/{self.name}") - {MANIFEST, TENSORS}
        for file in (MANIFEST, TENSORS, *others):
            self.files.remove(f"{COMMITS}/{self.name}/{file}")
        self.files.remove_folder(f"{COMMITS}/{self.name}")

    def __str__(self) -> str:
        return f"{self.files.url}/{COMMITS}/{self.name}"


def remote_folders(files: FsspecFiles) -> list[RemoteFolder]:
    """Returns the commits that have a manifest, newest step first."""
    return list_folders(files)[0]


def list_folders(files: FsspecFiles) -> tuple[list[RemoteFolder], list[RemoteFolder]]:
    """Returns the folders named as commits, newest step first: those with a manifest, and those without."""
    names = sorted(
        filter(NAME.fullmatch, files.names(COMMITS, links=False)), key=lambda name: (step_of(name), name)
    )
    folders = [RemoteFolder(files, name) for name in reversed(names)]
    whole = [folder for folder in folders if MANIFEST in files.names(f"{COMMITS}/{folder.name}")]
    return whole, [folder for folder in folders if folder not in whole]
