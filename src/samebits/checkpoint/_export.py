"""Exports commits for other programs: safetensors, torch.save, torch.distributed.checkpoint.

A file appears whole or not at all; equal tensors give equal bytes.
"""

# ruff: noqa: A002 - `object` is what it is called in a Run

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch

from samebits import _digest as digest
from samebits._disk import sync_folder
from samebits.checkpoint import _safetensors_file as safetensors_file
from samebits.checkpoint._load import MODEL, TENSORS_ONLY, object_state, read_commit, refusal_reason, valid
from samebits.checkpoint._part_files import CommitFiles
from samebits.checkpoint._reading import verify
from samebits.checkpoint._writer.commit_folder import BUFFER_BYTES
from samebits.errors import InvalidArgumentError, UnsavableStateError

PICKLED = (".pt", ".pth")
SUFFIXES = (TENSORS_ONLY, *PICKLED)


def export(
    run_dir: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    object: str | None = None,
    step: int | None = None,
    max_shard_size: int | str = "5GB",
) -> Path:
    """Writes a commit in the format of the suffix (.safetensors, .pt, .pth, none: DCP); returns the path.

    .safetensors: the tensors of one object, bit for bit, without strides (channels_last is restored as
    contiguous, with equal values) and ties (each name has its own copy): a module that loads it has both
    already. One tensor at a time is in memory. A model larger than `max_shard_size` is written as Hugging
    Face's libraries do: m-00001-of-00002.safetensors, ..., and m.safetensors.index.json, whose path is
    returned. .pt, .pth: for `torch.load(weights_only=True)`, the result of `load_commit` or one object's
    state_dict: strides, ties and every bit are those of the commit. No suffix: a new folder, which
    `torch.distributed.checkpoint.load({"model": model.state_dict()}, checkpoint_id=path)` reads.

    Args:
        run_dir: path or URL of a `Run`.
        path: of the new file or folder.
        object: the object to export; None: all of them, the model for .safetensors.
        step: of the commit; None: the newest valid one.
        max_shard_size: of a .safetensors file, in bytes or as "5GB" (10^9 bytes), "200MB"; a larger tensor
            has a file of its own.

    Raises:
        InvalidArgumentError: there is no such commit, object or folder, a folder for DCP is there already, or
            safetensors cannot hold a value.
        UnsavableStateError: it holds a type that `weights_only=True` refuses (arrays, deques, frozensets).
        OSError: the file cannot be written.
        CorruptCommitError, RunDirectoryError, RemoteStorageError: as `load_commit`.

    Example:
        >>> samebits.set_random_seed(1)
        >>> with samebits.Run("run", model=torch.nn.Linear(2, 1)) as run:
        ...     for step, batch in run.steps([1, 2]):
        ...         pass
        >>> path = samebits.checkpoint.export("run", "model.safetensors")
        >>> samebits.checkpoint.load_weights(torch.nn.Linear(2, 1), path)
        <All keys matched successfully>
    """
    suffix, where = Path(path).suffix, Path(path)
    if suffix and suffix != TENSORS_ONLY and suffix not in PICKLED:
        raise InvalidArgumentError(
            f"export to {os.fspath(path)}: the name must end in {TENSORS_ONLY}, {' or '.join(PICKLED)}; "
            "without an ending it is a folder for torch.distributed.checkpoint."
        )
    folder = where.absolute().parent
    if not folder.is_dir():
        why = "is a file" if folder.exists() else "is not there"
        raise InvalidArgumentError(
            f"export to {where}: the folder {folder} {why}. Make it, or choose another path."
        )
    if not suffix and where.exists():
        raise InvalidArgumentError(f"export to {where}: it is there already. Choose another folder.")
    limit = _bytes_of(max_shard_size)
    if suffix == TENSORS_ONLY:
        folder, manifest, (state, names) = valid(run_dir, step, "export", verify)
        state = object_state(state, MODEL if object is None else object, run_dir)
        with CommitFiles(folder, manifest, safetensors_file.mapped) as files:
            return _export_safetensors(state, where, limit, lambda one: files.whole(names[id(one)]))
    state = read_commit(run_dir, step)
    if object is not None:
        state = object_state(state, object, run_dir)
    if suffix:
        _export_pickled(state, where)
    else:
        _export_dcp(state.get("objects", state) if object is None else {object: state}, where)
    return where


def _bytes_of(size: int | str) -> int:
    parts = re.fullmatch(r"(\d+)([KMGT]?)B?", str(size).replace(" ", "").upper())
    number = int(parts[1]) * 1000 ** " KMGT".index(parts[2] or " ") if parts else 0
    if number < 1:
        raise InvalidArgumentError(
            f"export(max_shard_size={size!r}): must be bytes, or as in '5GB', '200MB'."
        )
    return number


def _export_safetensors(
    state: Mapping[str, Any], path: Path, limit: int, read: Callable[[torch.Tensor], torch.Tensor]
) -> Path:
    """Writes one file, or several and their index; `read` returns the content of a tensor of `state`."""
    check_safetensors(state, path)
    shards: list[dict[str, torch.Tensor]] = [{}]
    room = limit
    for name, tensor in state.items():
        if shards[-1] and tensor.nbytes > room:
            shards.append({})
            room = limit
        shards[-1][name] = tensor
        room -= tensor.nbytes
    if len(shards) == 1:
        _write_safetensors(state, path, read)
        return path
    index = path.with_name(f"{path.name}.index.json")
    index.unlink(missing_ok=True)  # it would name files of two exports
    places = {}
    for number, shard in enumerate(shards, 1):
        file = path.with_name(f"{path.stem}-{number:05d}-of-{len(shards):05d}{TENSORS_ONLY}")
        _write_safetensors(shard, file, read)
        places |= dict.fromkeys(shard, file.name)
    size = sum(tensor.nbytes for tensor in state.values())
    text = json.dumps({"metadata": {"total_size": size}, "weight_map": places}, indent=2, sort_keys=True)
    write_whole(index, lambda file: file.write(f"{text}\n".encode()))
    path.unlink(missing_ok=True)  # readers would prefer one file
    return index


def _export_pickled(state: Any, path: Path) -> None:
    """Writes a file for `torch.load(weights_only=True)`; it is read and compared before it gets its name."""
    proof = path.with_name(f".{path.name}.proof")
    try:
        save_pickled(state, proof)
        _check_round_trip(state, proof, path)
        proof.replace(path)
        sync_folder(path.parent)
    finally:
        proof.unlink(missing_ok=True)


def _export_dcp(objects: Mapping[str, Any], target: Path) -> None:
    """Writes a new folder for `torch.distributed.checkpoint` (one rank): state_dicts by name of object."""
    import torch.distributed.checkpoint as dcp  # noqa: PLC0415 - half a second; some builds lack it

    fresh = target.with_name(f".{target.name}.tmp")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # no_dist=True disables it
            dcp.save(dict(objects), storage_writer=dcp.FileSystemWriter(fresh), no_dist=True)
        fresh.rename(target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    sync_folder(target.parent)


def _check_round_trip(state: Any, file: Path, path: Path) -> None:
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        # Torch advises to execute it
        raise UnsavableStateError(
            f"export to {path}: torch.load(weights_only=True) would refuse the file: "
            f"{refusal_reason(error)}. "
            "Export one object (object=...), or as safetensors."
        ) from None
    if digest.of_value(found) != digest.of_value(state):
        raise UnsavableStateError(f"export to {path}: the file is not restored bit for bit.")


def save_weights(state: Mapping[str, Any], path: Path) -> None:
    """Writes `state` in the format of `path`'s suffix; `InvalidArgumentError` for what it cannot hold."""
    if path.suffix == TENSORS_ONLY:
        check_safetensors(state, path)
        _write_safetensors(state, path)
    else:
        save_pickled(dict(state), path)


def check_safetensors(state: Mapping[str, Any], path: Path) -> None:
    """Raises InvalidArgumentError for a value that safetensors cannot hold."""
    for name, value in state.items():
        if not isinstance(value, torch.Tensor) or value.dtype not in safetensors_file.NAMES:
            what = value.dtype if isinstance(value, torch.Tensor) else type(value).__name__
            raise InvalidArgumentError(
                f"{path}: state_dict()[{name!r}] is a {what}, which safetensors cannot hold. Use a .pt file."
            )


def _write_safetensors(
    state: Mapping[str, torch.Tensor],
    path: Path,
    read: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor,
) -> None:
    """Writes a file, tied weights under each of their names, as readers expect; `read` returns contents."""
    head, order = safetensors_file.header(
        {name: safetensors_file.describe(tensor) for name, tensor in state.items()}
    )

    def write(file: BinaryIO) -> None:
        file.write(head)
        file.writelines(safetensors_file.raw(read(state[name])).data for name in order)

    write_whole(path, write)


def save_pickled(value: Any, path: Path) -> None:
    """Writes `value` as `torch.save` does; to a file object, since torch puts a file's name into the file."""
    write_whole(path, lambda file: torch.save(value, file))


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Writes to a temporary file, fsyncs it, and renames it to `path`. Raises OSError."""
    # Always this name: what a kill leaves is gone with the next save
    fresh = path.with_name(f".{path.name}.tmp")
    fresh.unlink(missing_ok=True)
    try:
        with fresh.open("xb", buffering=BUFFER_BYTES) as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    sync_folder(path.parent)
