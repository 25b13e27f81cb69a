"""Commits in parts: each rank writes the rows that it has, and reads those that it needs; no rank has all.

All ranks call each function in the same place. Rank 0 alone has opened the run directory: it names the
temporary folder, writes the manifest last, and renames. What one rank raises, all raise.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from samebits import errors
from samebits._byte_digest import of_bytes
from samebits._disk import sync_folder
from samebits._dtensors import borders, is_dtensor, local
from samebits.checkpoint import _part_files as part_files
from samebits.checkpoint import _safetensors_file as safetensors_file
from samebits.checkpoint import _sharded_tensors as sharded_tensors
from samebits.checkpoint._codec import Tensors, encode
from samebits.checkpoint._manifest import IN_PARTS, Manifest, samebits_version
from samebits.checkpoint._reading import decode_state, failure_reason
from samebits.checkpoint._store import CommitStore
from samebits.checkpoint._writer.commit_folder import write_file

T = TypeVar("T")
PATIENCE = 10.0
"""Seconds until a folder that rank 0 has made must be seen by all ranks."""


Group = Any
"""A `samebits.distributed` GlooGroup: its package is above this one."""


def write_parts(
    group: Group,
    store: CommitStore,
    state: Mapping[str, Any],
    *,
    step: int,
    on_tensors_written: Callable[[], None],
    **facts: Any,
) -> None:
    """Makes a commit of a state that is equal on all ranks, but for the rows of DTensors.

    `facts`: fields of the manifest; those of rank 0 count. Raises CommitError when a disk refuses: earlier
    commits are untouched; UnsavableStateError as `encode`.
    """
    doing = "in a commit"

    def begin() -> _Contents:
        if group.rank == 0:
            store.check_step(step)
        return _Contents(state, group)

    contents = together(group, doing, begin)
    blocks = {**contents.whole_blocks(), **hash_rows(group, contents.sharded, doing)}
    text = json.dumps([socket.gethostname(), {name: one.hex() for name, one in blocks.items()}])
    others = group.gather(text.encode(), doing)

    def make_folder() -> tuple[str, Manifest | None]:
        if group.rank:
            return "", None
        parent = store.last.digest if store.last else None
        manifest = contents.manifest(map(json.loads, [text, *others]), step=step, parent=parent, **facts)
        if store.folder.is_last(manifest.commit):
            return "", manifest
        try:
            return store.folder.begin().name, manifest
        except OSError as error:
            raise store.write_error(error, step, manifest.nbytes) from error

    name, manifest = together(group, doing, make_folder)
    name = group.broadcast(name.encode(), doing).decode()
    if not name:  # the last commit is this one
        return
    temporary = store.folder.commits / name

    def finish() -> None:
        if manifest is not None:
            on_tensors_written()
            store.finish_parts(temporary, manifest)

    try:
        together(group, doing, lambda: contents.write(temporary, step))
        together(group, doing, finish)
    except BaseException:
        if group.rank == 0:
            shutil.rmtree(temporary, ignore_errors=True)
        raise


def together(group: Group, doing: str, work: Callable[[], T]) -> T:
    """Does `work` on each rank; raises on all what one of them has raised, the lowest rank's."""
    value: Any = None
    raised: errors.SamebitsError | None = None
    try:
        value = work()
    except errors.SamebitsError as error:
        raised = error
    except OSError as error:
        raised = errors.CorruptCommitError(failure_reason(error))
    own = [] if raised is None else [type(raised).__name__, str(raised)]
    for rank, found in enumerate(group.gather_values(own, doing)):
        if found and rank == group.rank:
            raise raised or errors.RanksError(found[1])
        if found:
            kind = getattr(errors, found[0], errors.RanksError)
            raise kind(f"rank {rank}: {found[1].removeprefix('rank 0: ')}")
    return value


def hash_rows(group: Group, tensors: Mapping[str, torch.Tensor], doing: str) -> dict[str, bytes]:
    """Returns for DTensors, in the order of all ranks, the digests of the blocks that begin on this rank.

    The rank with the first byte of a block that a border cuts gets the rest of it: at most one block.
    """
    cuts = {name: _Cut(tensor, group) for name, tensor in tensors.items()}
    led = [(name, cut) for name, cut in cuts.items() if cut.lead]
    sent = [(cut.owner, safetensors_file.raw(local(tensors[name]))[: cut.lead]) for name, cut in led]
    wanted = [part for cut in cuts.values() for part in cut.tail]
    received = iter(group.exchange(sent, wanted, doing))
    found = {}
    for name, cut in cuts.items():
        pieces = [safetensors_file.raw(local(tensors[name]))[cut.lead :], *(next(received) for _ in cut.tail)]
        found[name] = sharded_tensors.block_digests(pieces, cut.size)
    next(received, None)  # all that was sent has come
    return found


class _Cut:
    """The rows of one DTensor on this rank, in bytes, and the blocks that the borders of ranks cut."""

    def __init__(self, tensor: torch.Tensor, group: Group) -> None:
        shape, row = tensor.shape, sharded_tensors.row_bytes(tensor.shape, tensor.dtype)
        bounds = [first * row for first in borders(shape[0], group.world_size)]
        begin, end = bounds[group.rank], bounds[group.rank + 1]
        self.size = sharded_tensors.block_size(bounds[-1])
        self.lead = min(-(-begin // self.size) * self.size, end) - begin
        """Bytes before the first block that begins here; they belong to `owner`."""
        block = begin // self.size * self.size
        self.owner = max(rank for rank in range(group.rank + 1) if bounds[rank] <= block)
        self.first_block = (begin + self.lead) // self.size
        self.tail: list[tuple[int, int]] = []
        """(rank, bytes) that complete the last block that begins here."""
        if begin + self.lead < end:
            until = min(-(-end // self.size) * self.size, bounds[-1])
            pairs = [
                (rank, bounds[rank], bounds[rank + 1]) for rank in range(group.rank + 1, group.world_size)
            ]
            self.tail = [(rank, min(b, until) - a) for rank, a, b in pairs if a < min(b, until)]


class _Contents:
    """The tensors of a commit in parts, and which rank writes what."""

    def __init__(self, state: Mapping[str, Any], group: Group) -> None:
        self._group = group
        self.tree, self.tensors = encode(dict(state))
        self.sharded: Tensors = {name: one for name, one in self.tensors.items() if is_dtensor(one)}
        for name, tensor in self.sharded.items():
            check_mesh(name, tensor, group)
        self.infos = {name: safetensors_file.describe(one) for name, one in self.tensors.items()}
        self.parts = part_files.share_out(self.infos, self.sharded, group.world_size)

    def whole_blocks(self) -> dict[str, bytes]:
        """Returns the digests of the blocks of the other tensors that this rank writes."""
        found = {}
        for name in self.tensors.keys() - self.sharded:
            if any(rank == self._group.rank for rank, _, _ in self.parts[name]):
                data = safetensors_file.raw(self.tensors[name])
                size = sharded_tensors.block_size(data.nbytes)
                found[name] = sharded_tensors.block_digests([data], size)
        return found

    def write(self, folder: Path, step: int) -> None:
        """Writes the file of this rank, durably. Raises CommitError."""
        head, order = safetensors_file.header(self._of_part(self._group.rank))
        blocks = [memoryview(head), *(safetensors_file.raw(local(self.tensors[name])).data for name in order)]
        path = folder / part_files.part_name(self._group.rank)
        try:
            write_file(path, blocks)
            sync_folder(folder)
        except OSError as error:
            raise errors.CommitError(
                f"commit of step {step}: {path} cannot be written: {error.strerror or error} "
                f"({sum(map(len, blocks)) / 1e6:.3f} MB wanted). Earlier commits are untouched; remove the "
                "cause and run again."
            ) from error

    def manifest(self, found: Iterable[Sequence[Any]], *, step: int, **facts: Any) -> Manifest:
        """Returns the manifest; `found`: of each rank its host and the digests of its blocks, as hex."""
        hosts, blocks = zip(*found, strict=True)
        joined = {name: "".join(one.get(name, "") for one in blocks) for name in self.tensors}
        for name, text in joined.items():
            wanted = sharded_tensors.block_count(safetensors_file.nbytes(self.infos[name]))
            if len(text) != 2 * sharded_tensors.DIGEST_BYTES * wanted:
                raise errors.RanksError(
                    f"a commit: the parts of {name} do not cover it. Nothing was committed."
                )
        files = {}
        for rank, host in enumerate(hosts):
            infos = self._of_part(rank)
            size = len(safetensors_file.header(infos)[0]) + sum(map(safetensors_file.nbytes, infos.values()))
            files[part_files.part_name(rank)] = {"bytes": size, "rank": rank, "host": host}
        return Manifest(
            step=step, tree=self.tree, files=files, samebits=samebits_version(), schema=IN_PARTS,
            tensors={
                name: {
                    **info, "parts": self.parts[name], "blocks": joined[name],
                    "digest": of_bytes(bytes.fromhex(joined[name])),
                }
                for name, info in self.infos.items()
            },
            **facts,
        )  # fmt: skip

    def _of_part(self, rank: int) -> dict[str, dict[str, Any]]:
        return part_files.infos_of_part(self.infos, self.parts, rank)


def check_mesh(name: str, tensor: Any, group: Group) -> None:
    """Raises UnimplementedError for a DTensor whose rows are not shared out over all ranks in order."""
    mesh = tensor.device_mesh
    layout = [(type(one).__name__, getattr(one, "dim", None)) for one in tensor.placements]
    if layout != [("Shard", 0)] or (mesh.size(), mesh.get_local_rank()) != (group.world_size, group.rank):
        raise errors.UnimplementedError(
            f"{name} is a DTensor with placements {tuple(tensor.placements)} on a mesh of {mesh.ndim} "
            f"dimensions and size {mesh.size()}. Commits support rows that are shared out over all ranks: "
            "fully_shard(model)."
        )


class RanksReader:
    """Reads commits on all ranks at once: rank 0 finds them, and each rank reads what it needs.

    `layouts`: part_files.Layouts; `check` raises for a commit that is none of the program's.
    """

    def __init__(
        self, group: Group, store: CommitStore, layouts: Any, check: Callable[[Manifest, Any], None]
    ) -> None:
        self._group, self._store, self._layouts, self._check = group, store, layouts, check
        self._doing = f"in opening {store.where}"
        self.bytes_read = 0
        """Bytes of tensors that this rank has read."""

    def open(self, find: Callable[[], T]) -> T | tuple[Manifest, Any] | None:
        """Returns the result of `find`, which rank 0 calls: it calls `check_seen` and `read`."""
        if self._group.rank:
            return self._follow()
        try:
            found = find()
        except BaseException as error:
            self._send({"error": [type(error).__name__, str(error)]})
            raise
        self._send({})
        return found

    def check_seen(self) -> None:
        """Raises `RunDirectoryError` unless all ranks see the run directory of rank 0."""
        temporary = self._store.folder.begin()
        try:
            self._send({"look": temporary.name})
            blind = [rank for rank, (seen,) in enumerate(self._look(temporary.name)) if not seen]
        finally:
            temporary.rmdir()
        if blind:
            cure = "Give all ranks one folder of a shared file system"
            if str(self._store.where) != str(self._store.run_dir):
                cure = "Commits are made in a folder first: set SAMEBITS_CACHE_DIR to one that all ranks see"
            raise errors.RunDirectoryError(
                f"{self._store.where}: the model is sharded, so each rank writes its part of a commit, and "
                f"rank {', '.join(map(str, blind))} does not see the folder {self._store.run_dir} of rank 0, "
                f"or may not write there. {cure}. Nothing was trained."
            )

    def read(self, folder: Any, manifest: Manifest) -> dict[str, Any]:
        """Returns the state of a commit on rank 0, while the others read theirs. Raises as `read_state`."""
        self._send({"read": folder.name})
        self._group.broadcast(manifest.to_bytes(), self._doing)
        return self._read(folder, manifest)

    def _follow(self) -> tuple[Manifest, Any] | None:
        found = None
        while True:
            message = json.loads(self._group.broadcast(b"", self._doing))
            if "look" in message:
                self._look(message["look"])
            elif "read" in message:
                manifest = Manifest.from_bytes(self._group.broadcast(b"", self._doing))
                try:
                    found = manifest, self._read(self._store.folder_of(message["read"]), manifest)
                except errors.SamebitsError:  # rank 0 has the same, and decides
                    found = None
            elif "error" in message:
                name, text = message["error"]
                kind = getattr(errors, name, errors.RanksError)
                raise kind(f"rank 0: {text}" if text else f"rank 0 ended {self._doing} ({name})")
            else:
                return found

    def _send(self, message: Mapping[str, Any]) -> None:
        self._group.broadcast(json.dumps(message).encode(), self._doing)

    def _look(self, name: str) -> list[list[Any]]:
        path, end = self._store.folder.commits / name, time.monotonic() + PATIENCE
        while not path.is_dir() and time.monotonic() < end:  # a network file system may be late
            time.sleep(0.05)
        return self._group.gather_values([os.access(path, os.W_OK)], self._doing)

    def _read(self, folder: Any, manifest: Manifest) -> dict[str, Any]:
        group = self._group

        def read_rows() -> tuple[Tensors, Tensors]:
            like = self._layouts(manifest.tensors)
            tensors: Tensors = {}
            with part_files.CommitFiles(folder, manifest) as files:
                for number, (name, info) in enumerate(manifest.tensors.items()):
                    live = like.get(name)
                    if live is None or list(live.shape) != info["shape"]:
                        tensors[name] = files.whole(name)
                        continue
                    check_mesh(name, live, group)
                    first = sharded_tensors.first_row(live)
                    tensors[name] = sharded_tensors.with_rows(live, files.rows(name, first, len(local(live))))
                    if not manifest.in_parts and number % group.world_size == group.rank:
                        files.whole(name)  # no digest of rows is known: each rank verifies some in whole
                self.bytes_read += files.bytes_read
            return tensors, {name: one for name, one in tensors.items() if is_dtensor(one)}

        tensors, sharded = together(group, self._doing, read_rows)
        blocks = hash_rows(group, sharded, self._doing) if manifest.in_parts else {}

        def finish() -> dict[str, Any]:
            for name, found in blocks.items():
                part_files.check_blocks(folder, manifest, name, _Cut(sharded[name], group).first_block, found)
            state = decode_state(folder, manifest, tensors)
            self._check(manifest, state)
            return state

        return together(group, self._doing, finish)
