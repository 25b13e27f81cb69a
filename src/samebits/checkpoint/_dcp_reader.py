"""Commits as a storage of torch.distributed.checkpoint, whose planner computes which rows a rank needs."""

# ruff: noqa: A002 - `object` is what it is called in a Run

from __future__ import annotations

import io
import os
from typing import Any

import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future
from typing_extensions import override

from samebits.checkpoint._load import choose_folders, object_state
from samebits.checkpoint._part_files import CommitFiles
from samebits.checkpoint._reading import check_sizes, no_valid_commit_error, outline, read_manifests


class DCPReader(StorageReader):
    """Reads a commit by `torch.distributed.checkpoint.load`: any layout, any number of ranks, no pickle.

    Names are those of the objects of the Run, joined by dots: "model.0.weight". Each rank reads the rows that
    it needs, up to the next block whose digest is known, and compares the digests.

    Args:
        run_dir: path or URL of a `Run`. All ranks must see it.
        step: of the commit; None: the newest one. Damage is an error: no other commit is read instead.
        object: one object alone, whose names then have no first part: "0.weight".

    Raises:
        InvalidArgumentError, RunDirectoryError, CorruptCommitError, RemoteStorageError: as `load_commit`. In
            `dcp.load` torch raises a CheckpointException that names the error.

    Example:
        >>> import torch.distributed.checkpoint as dcp
        >>> samebits.set_random_seed(1)
        >>> with samebits.Run("run", model=torch.nn.Linear(2, 1)) as run:
        ...     for step, batch in run.steps([1, 2]):
        ...         pass
        >>> state = {"model": torch.nn.Linear(2, 1).state_dict()}
        >>> dcp.load(state, storage_reader=samebits.checkpoint.DCPReader("run"), no_dist=True)
        >>> torch.equal(state["model"]["weight"], run.objects["model"].weight)
        True
    """

    def __init__(
        self, run_dir: str | os.PathLike[str], step: int | None = None, *, object: str | None = None
    ) -> None:
        good, skipped = read_manifests(choose_folders(run_dir, step, "DCPReader"))
        if not good:
            raise no_valid_commit_error(run_dir, skipped)
        self._folder, self._manifest = good[0]
        check_sizes(self._folder, self._manifest)
        state: Any
        state, names = outline(self._folder, self._manifest)
        state = state.get("objects", state) if object is None else object_state(state, object, run_dir)
        self._values, _ = flatten_state_dict(dict(state))
        self._tensors = {path: names[id(value)] for path, value in self._values.items() if id(value) in names}

    @override
    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Does nothing: a reader reads one commit."""

    @classmethod
    @override
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False  # torch must not choose this reader for a path

    @override
    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Returns the names, dtypes and shapes of what the commit holds."""
        return Metadata({path: self._metadata(path, value) for path, value in self._values.items()})

    def _metadata(self, path: str, value: Any) -> Any:
        if path not in self._tensors:
            return BytesStorageMetadata()
        shape = torch.Size(value.shape)
        chunk = ChunkStorageMetadata(torch.Size([0] * len(shape)), shape)
        return TensorStorageMetadata(TensorProperties(dtype=value.dtype), shape, [chunk])

    @override
    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Does nothing."""

    @override
    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    @override
    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    @override
    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Reads what the plan names into the program's tensors; the digests are compared first."""
        with CommitFiles(self._folder, self._manifest) as files:
            for item in plan.items:
                path = item.storage_index.fqn
                if item.type is LoadItemType.BYTE_IO:
                    data = io.BytesIO()
                    torch.save(self._values[path], data)
                    data.seek(0)
                    planner.load_bytes(item, data)
                    continue
                first, *others = [*zip(item.storage_offsets, item.lengths, strict=True)] or [(0, 1)]
                found = files.verified_rows(self._tensors[path], *first)
                for dimension, (begin, length) in enumerate(others, 1):
                    found = found.narrow(dimension, begin, length)
                target = planner.resolve_tensor(item).detach()
                target.copy_(found)
                planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done
