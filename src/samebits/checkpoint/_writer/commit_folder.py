"""The folder of a run's commits: each is written beside, fsynced, renamed; old ones are pruned.

Imports the standard library and xxhash only, as all that the writer process imports.
"""

from __future__ import annotations

import errno
import fcntl
import json
import mmap
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from samebits._byte_digest import of_bytes
from samebits._disk import sync_folder
from samebits.checkpoint._retention import Retention, step_of


class Commit(NamedTuple):
    """A commit that is durable."""

    step: int
    digest: str
    content: str
    """The digest that the manifest would have without a parent: equal for commits of equal content."""

    @property
    def name(self) -> str:
        return f"{self.step:012d}-{self.digest.split(':')[1][:8]}"


class ManifestTemplate(NamedTuple):
    """The canonical JSON of a manifest, cut where the digests of the tensors and of the parent belong."""

    step: int
    before: str
    """Up to the value of "parent"."""
    middle: str
    """From there to the value of "tensors"."""
    after: str
    pieces: Sequence[str]
    """The value of "tensors"; between each two of them a digest belongs."""
    order: Sequence[int]
    """The tensor of each digest, by its place in the file."""
    note: str = ""
    """The text of `note_entry`: no digest of the commit covers it, as time decides if a note is taken."""

    @property
    def size(self) -> int:
        """An upper bound of the manifest's bytes."""
        texts = (self.before, self.middle, self.after, self.note, *self.pieces)
        return sum(map(len, texts)) + 41 * (len(self.order) + 3)

    def body(self, parent: str | None, digests: Sequence[str]) -> bytes:
        """Returns the JSON without the manifest's own digest; `digests` are in the order of the file."""
        tensors = "".join(
            piece + digests[place] for piece, place in zip(self.pieces, self.order, strict=False)
        )
        follows = "null" if parent is None else f'"{parent}"'
        return "".join((self.before, follows, self.middle, tensors, self.pieces[-1], self.after)).encode()

    def sign(self, parent: str | None, digests: Sequence[str]) -> tuple[Commit, bytes]:
        """Returns the commit, and the bytes of its manifest, in which the digest sorts first."""
        body = self.body(parent, digests)
        content = of_bytes(body if parent is None else self.body(None, digests))
        own = of_bytes(body)
        return Commit(self.step, own, content), signed(own, self.note, body)


def note_entry(text: str | None) -> str:
    """Returns the entry of a note in the file of a manifest, with a digest of its own."""
    return "" if text is None else f'"note":{json.dumps([of_bytes(text.encode()), text])},'


def signed(digest: str, note: str, body: bytes) -> bytes:
    """Returns the content of a manifest's file: the digest of the body, a note's entry, the body."""
    return f'{{"digest":"{digest}",{note}'.encode() + body[1:]


TENSORS = "tensors.safetensors"
MANIFEST = "manifest.json"
NAME = re.compile(r"([0-9]{12,19})-([0-9a-f]{8})")
TMP = "tmp-"
BUFFER_BYTES = 1 << 20
LARGE = 1 << 23
"""Bytes from which on a file is written past the page cache."""


class CommitFolder:
    """The commits in the folder `commits`: those that `retention` keeps."""

    def __init__(self, commits: Path, retention: Retention) -> None:
        self.commits, self.retention = commits, retention
        self.last: Commit | None = None
        """The newest valid commit."""
        self.corrupt: set[str] = set()
        """Names of damaged commits."""
        self.troubles: list[str] = []
        """Messages about commits that could not be deleted."""
        self.identity: list[int] | None = None
        """Device and inode of the folder, once the run has locked it."""
        self._values: dict[str, float | None] = {}

    def write(
        self,
        template: ManifestTemplate,
        head: memoryview,
        tensors: Sequence[memoryview],
        image: memoryview | None = None,
        digests: Sequence[str] | None = None,
        on_tensors_written: Callable[[], None] | None = None,
    ) -> Commit:
        """Makes a commit durable and prunes old ones; one with the content of the last is not written again.

        `head` and `tensors` make up the file; `image` is both in one piece of memory, if they are contiguous;
        `digests` are those of the tensors, if they are known. Raises OSError.
        """
        digests = digests or list(map(of_bytes, tensors))
        commit, manifest = template.sign(self.last.digest if self.last else None, digests)
        if self.last and self.is_last(commit):
            return self.last
        temporary = self.begin()
        try:
            if image is None:
                write_file(temporary / TENSORS, (head, *tensors))
            else:
                write_image(temporary / TENSORS, image)
            if on_tensors_written is not None:
                on_tensors_written()
            self.finish(temporary, commit, manifest)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        return commit

    def is_last(self, commit: Commit) -> bool:
        return bool(self.last and (self.last.step, self.last.content) == (commit.step, commit.content))

    def begin(self) -> Path:
        """Returns a new temporary folder for the files of a commit. Raises OSError."""
        if self.identity is not None and self.identity != folder_identity(self.commits):
            # renamed: another run may have its name now
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(self.commits))
        temporary = self.commits / f"{TMP}{os.urandom(16).hex()}"
        temporary.mkdir()
        return temporary

    def finish(self, temporary: Path, commit: Commit, manifest: bytes) -> None:
        """Makes the files in a temporary folder a commit, and prunes old ones. Raises OSError."""
        write_file(temporary / MANIFEST, (memoryview(manifest),))
        sync_folder(temporary)
        final = self.commits / commit.name
        if final.exists():  # the same commit, which was damaged when this process read it
            final.rename(self.commits / f"{TMP}{os.urandom(16).hex()}")
        temporary.rename(final)
        self.corrupt.discard(commit.name)
        sync_folder(self.commits)
        self.last = commit
        self._prune(commit)

    def values(self) -> dict[str, float | None]:
        return {name: self._value(name) for name in commit_names(self.commits)}

    def sweep(self) -> None:
        """Deletes the temporary folders: half-deleted commits, and those that a kill left half-written."""
        for path in self.commits.glob(f"{TMP}*"):
            try:
                path.unlink() if path.is_symlink() else shutil.rmtree(path)
            except OSError as error:
                self.troubles.append(f"{path} cannot be deleted: {error}")

    def replaced(
        self,
        newest: Commit,
        names: Sequence[str],
        corrupt: Collection[str],
        values: Callable[[], Mapping[str, float | None]],
    ) -> list[str]:
        """Returns those of the commits `names`, latest step first, that go after `newest` was written."""
        older = [name for name in names if step_of(name) <= newest.step and name != newest.name]
        valid = [name for name in older if name not in corrupt and step_of(name) < newest.step]
        stay = self.retention.staying([newest.name, *valid], values() if self.retention.keep_best else {})
        return [name for name in older if name not in stay]

    def _prune(self, newest: Commit) -> None:
        try:
            for name in self.replaced(newest, commit_names(self.commits), self.corrupt, self.values):
                (self.commits / name).rename(self.commits / f"{TMP}{name}")
        except OSError as error:
            self.troubles.append(f"old commits in {self.commits.parent} cannot be deleted: {error}")
        self.sweep()

    def _value(self, name: str) -> float | None:
        if name not in self._values:
            try:
                manifest = json.loads((self.commits / name / MANIFEST).read_bytes())
                self._values[name] = None if manifest["value"] is None else float(manifest["value"])
            except (OSError, ValueError, TypeError, KeyError):
                return None
        return self._values[name]


def folder_identity(folder: Path) -> list[int]:
    """Returns device and inode: the folder itself, whatever its name. Raises OSError."""
    status = os.stat(folder)
    return [status.st_dev, status.st_ino]


def commit_names(commits: Path) -> list[str]:
    """Returns the folders with names of commits, the latest step first."""
    found = os.listdir(commits) if commits.is_dir() and not commits.is_symlink() else []
    return sorted(filter(NAME.fullmatch, found), key=step_of, reverse=True)


def write_file(path: Path, blocks: Sequence[memoryview]) -> None:
    """Writes `blocks` to a new file and fsyncs it; large ones past the page cache, if possible. OSError."""
    if sum(map(len, blocks)) >= LARGE:
        _write_pages(path, _aligned(blocks))
        return
    with path.open("xb", buffering=BUFFER_BYTES) as file:
        for block in blocks:
            file.write(block)
        file.flush()
        os.fsync(file.fileno())


def write_image(path: Path, image: memoryview) -> None:
    """Writes aligned memory past the page cache, if possible (a seventh of the CPU time). Raises OSError."""
    _write_pages(path, (image,))


def _aligned(blocks: Sequence[memoryview]) -> Iterator[memoryview]:
    """Yields the bytes of `blocks` in page-aligned parts; each is overwritten by the next."""
    with mmap.mmap(-1, LARGE) as memory:
        filled = 0
        for block in blocks:
            done = 0
            while done < len(block):
                count = min(len(block) - done, LARGE - filled)
                memory[filled : filled + count] = block[done : done + count]
                done, filled = done + count, filled + count
                if filled == LARGE:
                    with memoryview(memory) as part:
                        yield part
                    filled = 0
        with memoryview(memory)[:filled] as part:
            yield part


def _write_pages(path: Path, parts: Iterable[memoryview]) -> None:
    """Writes page-aligned parts to a new file and fsyncs it; only the last part may end inside a page."""
    descriptor = _open_past_cache(path)
    try:
        for part in parts:
            done = _write_past_cache(descriptor, part)
            if done < len(part):  # the rest is not a whole page
                fcntl.fcntl(descriptor, fcntl.F_SETFL, 0)
            while done < len(part):
                done += os.write(descriptor, part[done:])
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _open_past_cache(path: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        return os.open(path, flags | os.O_DIRECT, 0o666)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    path.unlink(missing_ok=True)  # open created it before it refused
    return os.open(path, flags, 0o666)


def _write_past_cache(descriptor: int, part: memoryview) -> int:
    """Writes as many whole pages as can bypass the page cache; returns the number of bytes."""
    done, whole = 0, len(part) // mmap.PAGESIZE * mmap.PAGESIZE
    while done < whole and done % mmap.PAGESIZE == 0:
        try:
            done += os.write(descriptor, part[done:whole])
        except OSError as error:
            if error.errno == errno.EINVAL:  # the file system allows O_DIRECT in open, but not in write
                break
            raise
    return done
