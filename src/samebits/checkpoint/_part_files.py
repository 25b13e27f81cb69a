"""The files of tensors of a commit: which rank writes which rows, and the reads of any rows from them.

A commit in parts has one safetensors file for each rank. Its manifest says for each tensor where its rows are
(`parts`: number of the file, first row, number of rows) and the digests of its blocks (`blocks`).
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, BinaryIO

import torch

from samebits._digest import hash_threads
from samebits._dtensors import borders
from samebits.checkpoint import _safetensors_file as safetensors_file
from samebits.checkpoint import _sharded_tensors as sharded_tensors
from samebits.checkpoint._manifest import Manifest
from samebits.checkpoint._safetensors_file import Infos, digest_error, nbytes
from samebits.checkpoint._writer.commit_folder import TENSORS
from samebits.errors import CorruptCommitError

Allocate = Callable[[Mapping[str, Any], str], torch.Tensor]
Layouts = Callable[[Iterable[str]], Mapping[str, torch.Tensor]]
"""Returns for names of a commit's tensors those that the program has as DTensors, with these."""


def part_name(rank: int) -> str:
    return f"part-{rank:05d}.safetensors"


def share_out(infos: Infos, sharded: Collection[str], world_size: int) -> dict[str, list[list[int]]]:
    """Returns the parts of each tensor: (rank, first row, rows). Whole ones go where the fewest bytes are."""
    sizes, parts = [0] * world_size, {}
    for name in sharded:
        shape = infos[name]["shape"]
        begins = borders(shape[0], world_size)
        counts = [after - begin for begin, after in itertools.pairwise(begins)]
        parts[name] = [[rank, begins[rank], count] for rank, count in enumerate(counts) if count]
        for rank, count in enumerate(counts):
            sizes[rank] += nbytes({**infos[name], "shape": [count, *shape[1:]]})
    for name in sorted(infos.keys() - set(sharded), key=lambda name: (-nbytes(infos[name]), name)):
        rows, rank = sharded_tensors.rows_of(infos[name]["shape"]), sizes.index(min(sizes))
        parts[name] = [[rank, 0, rows]] if rows else []
        sizes[rank] += nbytes(infos[name])
    return parts


def infos_of_part(infos: Infos, parts: Mapping[str, Any], number: int) -> dict[str, dict[str, Any]]:
    """Returns the entries of the tensors, or of their rows, in the file of that number."""
    return {
        name: {
            "dtype": infos[name]["dtype"],
            "shape": [rows, *infos[name]["shape"][1:]] if infos[name]["shape"] else [],
        }
        for name in infos
        for file, _, rows in parts[name]
        if file == number
    }


def parts_of(info: Mapping[str, Any]) -> list[list[int]]:
    """Returns (number of the file, first row, rows) of each part of a tensor; of one in one file, too."""
    return info.get("parts", [[0, 0, sharded_tensors.rows_of(info["shape"])]])


def check_blocks(folder: object, manifest: Manifest, name: str, first: int, found: bytes) -> None:
    """Raises CorruptCommitError, naming the file, unless the blocks from `first` on have these digests."""
    info, width = manifest.tensors[name], 2 * sharded_tensors.DIGEST_BYTES
    size = sharded_tensors.block_size(nbytes(info))
    for block, digest in enumerate(re.findall(f".{{{width}}}", found.hex()), first):
        if info["blocks"][block * width :][:width] != digest:
            row = nbytes(info) // sharded_tensors.rows_of(info["shape"])
            files = " or ".join(
                sorted(manifest.files)[number] for number, begin, rows in info["parts"]
                if begin * row < (block + 1) * size and block * size < (begin + rows) * row
            )  # fmt: skip
            raise digest_error(f"{folder}/{files}: tensor {name!r}")


class CommitFiles(AbstractContextManager["CommitFiles"]):
    """The tensors of a commit, read row by row; each file is checked when it is opened.

    Every method raises CorruptCommitError for a file that is not as the manifest describes it, and OSError.
    """

    def __init__(
        self, folder: Any, manifest: Manifest, allocate: Allocate = safetensors_file.allocate
    ) -> None:
        self._allocate = allocate
        self._folder, self._manifest, self.infos = folder, manifest, manifest.tensors
        self._names = sorted(manifest.files) if manifest.in_parts else [TENSORS]
        self._open: dict[int, tuple[BinaryIO, dict[str, int]]] = {}
        self._locks = [threading.Lock() for _ in self._names]
        self.bytes_read = 0

    def __exit__(self, *_: object) -> None:
        for file, _places in self._open.values():
            file.close()

    def where(self, name: str) -> str:
        """Returns a tensor in words, for an error."""
        return f"{self._folder}: tensor {name!r}"

    def rows(self, name: str, first: int, count: int) -> torch.Tensor:
        """Returns rows of a tensor in memory of their own; nothing is verified."""
        info, parts = self.infos[name], parts_of(self.infos[name])
        for number in {number for number, *_ in parts} - self._open.keys():  # before anything is allocated
            with self._locks[number]:
                self._file(number)
        shape = [count, *info["shape"][1:]] if info["shape"] else []
        found = self._allocate({**info, "shape": shape}, self.where(name))
        data = safetensors_file.raw(found)
        size = sharded_tensors.row_bytes(info["shape"], found.dtype)
        filled = 0
        for number, begin, rows in parts:
            start, end = max(begin, first), min(begin + rows, first + count)
            if start >= end:
                continue
            with self._locks[number]:
                file, places = self._file(number)
                file.seek(places[name] + (start - begin) * size)
                into = data[(start - first) * size : (end - first) * size]
                if safetensors_file.fill(file, into) != into.nbytes:
                    raise CorruptCommitError(f"{self._folder}/{self._names[number]} is cut off")
            filled += into.nbytes
        if filled != data.nbytes:
            raise CorruptCommitError(f"{self.where(name)} is not whole")
        self.bytes_read += filled
        return found

    def verified_rows(self, name: str, first: int, count: int) -> torch.Tensor:
        """Returns rows of a tensor, verified; it reads as much more as the blocks of the first and last.

        Without digests of blocks, as in a commit in one file, it reads all.
        """
        info = self.infos[name]
        total, size = sharded_tensors.rows_of(info["shape"]), sharded_tensors.block_size(nbytes(info))
        row = nbytes(info) // max(total, 1)
        start, stop, begin, end = 0, total, 0, nbytes(info)
        if "blocks" in info and row:
            begin, end = first * row // size * size, min(-(-(first + count) * row // size) * size, end)
            start, stop = begin // row, -(-end // row)
        found = self.rows(name, start, stop - start)
        data = safetensors_file.raw(found)[begin - start * row : end - start * row]
        if "blocks" in info:
            digests = sharded_tensors.block_digests([data], size)
            check_blocks(self._folder, self._manifest, name, begin // size, digests)
        else:
            safetensors_file.check_digest(data, info, self.where(name))
        return found[first - start : first - start + count] if info["shape"] else found

    def whole(self, name: str) -> torch.Tensor:
        """Returns a tensor with its strides, verified."""
        info = self.infos[name]
        found = self.verified_rows(name, 0, sharded_tensors.rows_of(info["shape"]))
        return safetensors_file.with_strides_of(info, found, self.where(name))

    def verify(self, on_read: Callable[[int], None]) -> None:
        """Reads all files, several at a time, and compares the digests; `on_read` gets numbers of bytes."""
        for number in range(len(self._names)):
            self._file(number)

        def read(job: tuple[str, int, int]) -> int:
            name, info = job[0], self.infos[job[0]]
            found = self.verified_rows(*job)
            if list(found.shape) == info["shape"]:
                safetensors_file.with_strides_of(info, found, self.where(name))
            return found.nbytes

        jobs = [(name, first, rows) for name, info in self.infos.items() for _, first, rows in parts_of(info)]
        with hash_threads() as pool:
            for size in pool.map(read, jobs):
                on_read(size)

    def _file(self, number: int) -> tuple[BinaryIO, dict[str, int]]:
        if number not in self._open:
            name = self._names[number]
            infos = self.infos
            if self._manifest.in_parts:
                infos = infos_of_part(infos, {one: infos[one]["parts"] for one in infos}, number)
            head, order = safetensors_file.header(infos)
            places, end = {}, len(head)
            for one in order:
                places[one], end = end, end + nbytes(infos[one])
            file, size = self._folder.open(name)
            detach = getattr(file, "detach", None)  # a buffer would read what is not needed
            file = file if detach is None else detach()
            self._open[number] = file, places
            if not size == end == self._manifest.files.get(name, {}).get("bytes"):
                raise CorruptCommitError(
                    f"{self._folder}/{name} has {size} bytes, not the {end} of its tensors"
                )
            if file.read(len(head)) != head:
                raise CorruptCommitError(
                    f"{self._folder}/{name} does not have the header that the manifest describes"
                )
        return self._open[number]
