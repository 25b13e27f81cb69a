"""The commits at an fsspec URL (s3://, gs://, memory://, file://): a written manifest makes a commit real.

url/samebits-run.json                   marks the folder as ours
url/writer.json                         the process that opened it last (see `writer_claim`)
url/commits/000000000120-1a2b3c4d/      tensors.safetensors first, manifest.json last

Object stores have no rename and no folders, but an object that is written in one call appears whole. A storage where
it does not (file://, killed in the middle) leaves a manifest whose digest does not hold, and the commit before is
read. The durability of a written object is that of the storage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO

from samebits.checkpoint._remote.fsspec_files import FsspecFiles
from samebits.checkpoint._run_directory import COMMITS
from samebits.checkpoint._writer.commit_folder import MANIFEST, NAME, TENSORS, step_of


@dataclass(frozen=True)
class RemoteFolder:
    """A commit at a URL."""

    files: FsspecFiles
    name: str

    def open(self, file: str) -> tuple[BinaryIO, int]:
        """Opens a file of the commit and returns it with its size in bytes."""
        return self.files.open(f"{COMMITS}/{self.name}/{file}")

    def modified(self) -> float | None:
        """Returns when the manifest was written."""
        return self.files.modified(f"{COMMITS}/{self.name}/{MANIFEST}")

    def delete(self) -> None:
        """Deletes the manifest first: without it the rest is no commit."""
        for file in (MANIFEST, TENSORS):
            self.files.remove(f"{COMMITS}/{self.name}/{file}")
        self.files.remove_folder(f"{COMMITS}/{self.name}")

    def __str__(self) -> str:
        return f"{self.files.url}/{COMMITS}/{self.name}"


def remote_folders(files: FsspecFiles) -> list[RemoteFolder]:
    """Returns the commits that have a manifest, newest step first."""
    return list_folders(files)[0]


def list_folders(files: FsspecFiles) -> tuple[list[RemoteFolder], list[RemoteFolder]]:
    """Returns the folders with names of commits, newest step first: those with a manifest, and those without."""
    names = sorted(
        filter(NAME.fullmatch, files.names(COMMITS, links=False)), key=lambda name: (step_of(name), name)
    )
    folders = [RemoteFolder(files, name) for name in reversed(names)]
    whole = [folder for folder in folders if MANIFEST in files.names(f"{COMMITS}/{folder.name}")]
    return whole, [folder for folder in folders if folder not in whole]
