"""Files behind an fsspec URL. What is not there is FileNotFoundError; every other failure says what to look at.

The difference decides what a run may do: a commit that is not there is skipped for an older one, a storage that does
not answer is not.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, Self, cast

from samebits.errors import CorruptCommitError, RemoteStorageError

CURE = "Check the connection, the credentials and the URL, then run again: what was committed before is untouched."


class FsspecFiles:
    """The files below `url`, named by paths relative to it.

    Errors:
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
        """What lies in `folder`; nothing when there is no such folder. Links (of a file system that has them) if asked."""
        with self._named(f"list {folder or 'it'}"):
            self._files.invalidate_cache()
            path = self._path(folder)
            try:
                # `ls` in each folder: `find` takes a connection that fails for an empty folder.
                found = self._files.ls(path, detail=True)
            except FileNotFoundError:
                return set()
        return {
            str(entry["name"]).rstrip("/").rpartition("/")[2]
            for entry in found
            if links or not entry.get("islink")
        }

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        with self._named(f"look for {name}"), suppress(FileNotFoundError):
            return self._files.info(self._path(name))["type"] == "file"
        return False

    def open(self, name: str) -> tuple[BinaryIO, int]:
        """A file to read, and its size in bytes.

        Errors:
            FileNotFoundError: it is not there.
            CorruptCommitError: it is a link, a pipe or a folder.
        """
        with self._named(f"open {name}"):
            info = self._files.info(self._path(name))
            if info.get("type") != "file" or info.get("islink"):
                raise CorruptCommitError(f"{self.url}/{name} is no regular file")
            file = _RemoteReader(self, name, self._files.open(self._path(name), "rb"))
            return cast("BinaryIO", file), info["size"]

    def read(self, name: str, limit: int) -> bytes:
        """The first `limit` bytes of a file. Raises FileNotFoundError."""
        file, _ = self.open(name)
        with file:
            return file.read(limit)

    def write(self, name: str, blocks: Iterable[bytes | memoryview]) -> None:
        """Makes a file of `blocks`; where the storage can be told to, it is durable when this returns."""
        with self._named(f"write {name}"):
            try:
                self._write(name, blocks := list(blocks))
            except FileNotFoundError:  # a storage with real folders
                self._files.makedirs(self._files._parent(self._path(name)), exist_ok=True)
                self._write(name, blocks)

    def create(self, name: str, data: bytes) -> bool:
        """Makes a file that was not there, in one step where the storage can do that; False when it was there."""
        with self._named(f"create {name}"):
            try:
                self._files.pipe_file(self._path(name), data, mode="create")
            except FileExistsError:
                return False
            except FileNotFoundError:
                self._files.makedirs(self._files._parent(self._path(name)), exist_ok=True)
                self._files.pipe_file(self._path(name), data, mode="create")
        return True

    def remove(self, name: str) -> None:
        """Removes a file that may be gone already."""
        with self._named(f"remove {name}"), suppress(FileNotFoundError):
            self._files.rm_file(self._path(name))

    def remove_folder(self, name: str) -> None:
        """Removes an empty folder, where the storage has such things."""
        with suppress(Exception):  # each storage that has none says so in its own way
            self._files.rmdir(self._path(name))

    def modified(self, name: str) -> float | None:
        """When a file was written, in seconds since 1970; None where the storage does not tell."""
        try:
            return self._files.modified(self._path(name)).timestamp()
        except Exception:  # half of all storages have no such method, each with an error of its own
            return None

    def _write(self, name: str, blocks: Iterable[bytes | memoryview]) -> None:
        with self._files.open(self._path(name), "wb") as file:
            for block in blocks:
                file.write(block)
            file.flush()
            with suppress(
                AttributeError, io.UnsupportedOperation
            ):  # only files of this machine have a number
                os.fsync(file.fileno())

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}" if name else self._root

    @contextmanager
    def _named(self, what: str) -> Iterator[None]:
        """Storages raise errors of their own libraries, without a common base."""
        try:
            yield
        except (FileNotFoundError, CorruptCommitError):
            raise
        except Exception as error:
            raise RemoteStorageError(f"{self.url}: could not {what}: {error!r:.300}. {CURE}") from error


class _RemoteReader:
    """A file under way: a connection that breaks in the middle is no damaged file."""

    def __init__(self, bucket: FsspecFiles, name: str, file: Any) -> None:
        self._bucket, self._name, self._file = bucket, name, file

    def read(self, size: int = -1) -> bytes:
        with self._bucket._named(f"read {self._name}"):
            return self._file.read(size)

    def readinto(self, buffer: memoryview) -> int:
        with self._bucket._named(f"read {self._name}"):
            return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
