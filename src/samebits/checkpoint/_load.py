"""Loads the state of a commit, and a module's weights from a commit or from the file of another program.

Nothing is executed: safetensors, files of torch.save, and folders of DCP are read as data.
"""

# ruff: noqa: A002 - `object` is what it is called in a Run

from __future__ import annotations

import copy
import io
import math
import os
import pickle
import re
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import safetensors.torch
import torch

from samebits._context import is_url
from samebits._dtensors import is_dtensor
from samebits.checkpoint import _reading as reading
from samebits.checkpoint._rank_states import KEY as RANKS
from samebits.checkpoint._rank_states import rank_state
from samebits.checkpoint._retention import step_of
from samebits.checkpoint._run_directory import MARKER
from samebits.checkpoint._sharded_tensors import rows_like
from samebits.checkpoint._store import check_path, commit_folders
from samebits.errors import InvalidArgumentError, SamebitsError, WeightsFileError, WeightsMismatchError

MODEL = "model"
RUN_STATE = "run.state"
TENSORS_ONLY = ".safetensors"
DCP_METADATA = ".metadata"
MAX_METADATA_BYTES = 1 << 28
_DCP = "torch.distributed.checkpoint"
_RECORDS = {
    f"{_DCP}.metadata": (
        "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "TensorProperties",
        "ChunkStorageMetadata", "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING",
    ),
    f"{_DCP}.filesystem": ("_StorageInfo",),
    "torch.serialization": ("_get_layout",),
    "pathlib": ("Path", "PosixPath", "WindowsPath", "PurePosixPath"),
}  # fmt: skip
"""The classes in the metadata of a DCP folder."""


def load_commit(run_dir: str | os.PathLike[str], step: int | None = None, *, rank: int = 0) -> dict[str, Any]:
    """Returns the state that a run committed, every digest verified, tensors on the CPU.

    Args:
        run_dir: path or URL of a `Run`. A live run may write to it meanwhile.
        step: of the commit; None: the newest valid one.
        rank: the rank whose state to return, in a run of several processes.

    Returns:
        `objects` (name -> state_dict), `run_state`, `grads` and everything else that `Run` saves.

    Raises:
        RunDirectoryError: there is no run directory.
        InvalidArgumentError: there is no commit, none of that step (the message lists all), or no such rank.
        CorruptCommitError: it is damaged.

    Example:
        >>> samebits.set_random_seed(1)
        >>> model = torch.nn.Linear(2, 1)
        >>> with samebits.Run("run", model=model) as run:
        ...     for step, x in run.steps([1, 2, 3]):
        ...         run.state.total = run.state.get("total", 0) + x
        >>> state = samebits.checkpoint.load_commit("run")
        >>> state["run_state"], torch.equal(state["objects"]["model"]["weight"], model.weight)
        ({'total': 6}, True)
    """
    return copy.deepcopy(read_commit(run_dir, step, rank))  # a large tensor is a view of the file


def read_commit(run_dir: str | os.PathLike[str], step: int | None, rank: int = 0) -> dict[str, Any]:
    """Returns the state as `load_commit`; its large tensors are views of the file."""
    _, _, state = valid(run_dir, step, "load_commit", reading.read_state)
    world_size = len(state.get(RANKS, [])) + 1
    if not 0 <= rank < world_size:
        raise InvalidArgumentError(f"load_commit(rank={rank}): {run_dir} was made by {world_size} processes.")
    return rank_state(state, rank, world_size, os.fspath(run_dir))


def valid(run_dir: str | os.PathLike[str], step: int | None, call: str, read: Any) -> tuple[Any, Any, Any]:
    """Returns folder and manifest of a commit, and the result of `read`; raises as `load_commit`."""
    found, skipped = reading.newest_valid(choose_folders(run_dir, step, call), read=read)
    if found is None:
        raise reading.no_valid_commit_error(run_dir, skipped)
    return found


def choose_folders(run_dir: str | os.PathLike[str], step: int | None, call: str) -> list[reading.Folder]:
    """Returns the commits of a step, newest first; None: of any. Raises InvalidArgumentError for none."""
    folders = commit_folders(run_dir)
    steps = sorted({step_of(folder.name) for folder in folders})
    chosen = [folder for folder in folders if step in (None, step_of(folder.name))]
    if not chosen:
        raise InvalidArgumentError(
            f"{call}({os.fspath(run_dir)!r}, step={step}): there is no such commit. "
            f"There are those of steps {', '.join(map(str, steps))}." if steps else
            f"{call}({os.fspath(run_dir)!r}): the run has not committed anything yet."
        )  # fmt: skip
    return chosen


def load_weights(
    module: torch.nn.Module,
    source: str | os.PathLike[str],
    object: str = MODEL,
    *,
    strict: bool = True,
    step: int | None = None,
) -> Any:
    """Starts `module` from the weights of another run or of a file. Nothing in the source is executed.

    Call it before the new `Run` is entered: a resume puts the new run's own state over it.

    Args:
        module: gets the weights, on its device, in its dtypes (as `Module.load_state_dict` does).
        source: a run_dir or its URL, a .safetensors file, a file of `torch.save` (a state_dict, or a dict
            that holds it under `object`), or a folder of `torch.distributed.checkpoint`.
        object: the module's name there.
        strict: as in `Module.load_state_dict`.
        step: of the commit, where `source` is a run; None: the newest valid one.

    Returns:
        The result of `load_state_dict`: missing and unexpected keys.

    Raises:
        InvalidArgumentError: `module` is not a module, or `source` not a path.
        WeightsMismatchError: names or shapes do not fit; the module is unchanged.
        WeightsFileError: the file is damaged, or cannot be read without executing it.
        CorruptCommitError, RunDirectoryError, RemoteStorageError: as `load_commit`.

    Example:
        >>> samebits.set_random_seed(1)
        >>> with samebits.Run("pretrain", model=torch.nn.Linear(2, 1)) as run:
        ...     for step, batch in run.steps([1, 2]):
        ...         pass
        >>> model = torch.nn.Linear(2, 1)
        >>> samebits.checkpoint.load_weights(model, "pretrain")
        <All keys matched successfully>
    """
    check_path(source, "load_weights: source")
    if not isinstance(module, torch.nn.Module):
        raise InvalidArgumentError(
            f"load_weights({type(module).__name__}, ...): the first argument is the module that gets the "
            f"weights."
        )
    own = module.state_dict()
    state = {
        name: rows_like(own[name], value) if is_dtensor(own.get(name)) else value
        for name, value in _read_source(source, object, step).items()
    }
    before = {name: value.clone() for name, value in own.items() if isinstance(value, torch.Tensor)}
    try:
        return module.load_state_dict(state, strict=strict)
    except RuntimeError as error:  # entries that fit are loaded by now
        for name, value in module.state_dict().items():
            if name in before:
                value.copy_(before[name])
        raise WeightsMismatchError(
            f"load_weights({type(module).__name__}, {os.fspath(source)!r}, object={object!r}): {error}"
        ) from error


def _read_source(source: str | os.PathLike[str], object: str, step: int | None) -> Mapping[str, Any]:
    path = Path(source).expanduser()
    if is_url(source) or (path / MARKER).is_file() or not (path.exists() or path.suffix):
        return object_state(read_commit(source, step), object, source)
    if step is not None:
        raise InvalidArgumentError(
            f"load_weights(..., {str(source)!r}, step={step}): it is a file, not a run."
        )
    return read_weights(path, object)


def object_state(state: Mapping[str, Any], name: str, where: Any) -> Mapping[str, Any]:
    """Returns the state_dict of an object by its name; `run.state`, or an entry: `run.state.weights`."""
    kept = state.get("run_state", {})
    found = {**state.get("objects", {})}
    if kept:
        found |= {RUN_STATE: kept, **{f"{RUN_STATE}.{key}": value for key, value in kept.items()}}
    if name not in found:
        raise InvalidArgumentError(f"{where} has no object {name!r}. It has {', '.join(map(repr, found))}.")
    return found[name] if isinstance(found[name], Mapping) else {name.rpartition(".")[2]: found[name]}


def read_weights(path: Path, name: str) -> Mapping[str, Any]:
    """Returns the state_dict of object `name` in a file or folder of weights, on the CPU.

    A file may hold it alone, in a dict under that name, or as the export of a whole commit; a DCP folder by
    dotted names ("model.0.weight").

    Raises:
        WeightsFileError: it is damaged, of no known kind, or cannot be read without executing it.
        OSError: it cannot be opened.
    """
    if not path.is_dir():
        if not stat.S_ISREG(path.stat().st_mode):
            raise WeightsFileError(f"{path} is neither a file nor a folder.")
        path.open("rb").close()  # what it raises is about the path; what reading raises, about the content
    try:
        if path.is_dir():
            return read_dcp(path, name)
        if path.suffix == TENSORS_ONLY:
            return safetensors.torch.load_file(path)
        with path.open("rb") as file:
            return _select_object(_load(file), name, path)
    except (SamebitsError, MemoryError):
        raise
    except pickle.UnpicklingError as error:
        # Torch advises to execute it
        raise WeightsFileError(
            f"{path} cannot be read: {refusal_reason(error)}. If you trust it, save the weights alone where "
            "it was made: safetensors.torch.save_file(model.state_dict(), 'weights.safetensors'), or "
            "torch.save(model.state_dict(), path)."
        ) from None
    except Exception as error:
        raise WeightsFileError(
            f"{path} cannot be read: {error!r:.500}. Known are {TENSORS_ONLY} files, files of torch.save "
            "that torch.load(weights_only=True) takes, and folders of torch.distributed.checkpoint."
        ) from error


def read_dcp(folder: Path, name: str) -> dict[str, torch.Tensor]:
    """Returns the tensors of object `name` in a torch.distributed.checkpoint folder; without one, all.

    Other values in it are pickled, and left out.
    """
    if not (folder / DCP_METADATA).exists():
        raise WeightsFileError(
            f"{folder} is neither a run directory nor a folder of torch.distributed.checkpoint (there is no "
            f"{DCP_METADATA})."
        )
    file, size = reading.open_regular(folder / DCP_METADATA)
    with file:
        if size > MAX_METADATA_BYTES:
            raise WeightsFileError(f"{folder / DCP_METADATA} is larger than {MAX_METADATA_BYTES} bytes")
        found = _InertUnpickler(file).load()
    chunks: dict[str, list[tuple[Any, Any]]] = {}
    for index, place in found.storage_data.items():
        chunks.setdefault(index.fqn, []).append((index, place))
    entries = {key: entry for key, entry in found.state_dict_metadata.items() if hasattr(entry, "chunks")}
    wanted = {key: key[len(name) + 1 :] for key in entries if key.startswith(f"{name}.")} or {
        key: key for key in entries
    }
    return {own: _read_tensor(folder, key, entries[key], chunks.get(key, [])) for key, own in wanted.items()}


def _read_tensor(folder: Path, name: str, entry: Any, chunks: list[tuple[Any, Any]]) -> torch.Tensor:
    shape, dtype = tuple(entry.size), entry.properties.state[0]
    wanted = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or wanted > sum(place.length for _, place in chunks):
        raise WeightsFileError(f"{folder}: {name!r} of shape {shape} is larger than the bytes that are there")
    whole, filled = torch.empty(shape, dtype=dtype), torch.zeros(shape, dtype=torch.bool)
    for index, place in chunks:
        part = _read_chunk(folder, place)
        target, mark = whole, filled
        begin = index.offset or [0] * part.dim()
        for dimension, (start, length) in enumerate(zip(begin, part.shape, strict=True)):
            target, mark = target.narrow(dimension, start, length), mark.narrow(dimension, start, length)
        target.copy_(part)
        mark.fill_(True)
    if not filled.all():
        raise WeightsFileError(f"{folder}: parts of {name!r} are not there")
    return whole


def _read_chunk(folder: Path, place: Any) -> torch.Tensor:
    if Path(place.relative_path).name != place.relative_path or getattr(place, "transform_descriptors", None):
        raise WeightsFileError(f"{folder} has a part in {place.relative_path!r}, no plain file in it")
    file, size = reading.open_regular(folder / place.relative_path)
    with file:
        if not 0 <= place.offset <= place.offset + place.length <= size:
            raise WeightsFileError(f"{folder / place.relative_path} is cut off")
        file.seek(place.offset)
        return _load(io.BytesIO(file.read(place.length)))


def _load(file: BinaryIO) -> Any:
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                raise WeightsFileError(
                    f"{getattr(file, 'name', 'a part')} is compressed, as files of torch.jit.save are and "
                    "those of torch.save never: its size is not trusted. Save the state_dict with "
                    "torch.save, or as safetensors."
                )
    file.seek(0)
    return torch.load(file, map_location="cpu", weights_only=True)


class _Inert:
    """A stand-in for any class in a pickle: it keeps its arguments and does nothing."""

    def __init__(self, *args: Any) -> None:
        self.args = args

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, Mapping):
            self.__dict__.update(state)
        else:
            self.state = state

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


class _InertUnpickler(pickle._Unpickler):  # type: ignore[name-defined]
    """An unpickler that makes inert records of DCP's metadata. DCP's own reader executes whatever is in it.

    It derives from the unpickler in Python: the one in C allocates the memory that a forged index names.
    """

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self._kinds: dict[str, type] = {}

    def find_class(self, module: str, name: str) -> Any:
        """Returns a dtype, `tuple` or an inert class; none that a pickle could call or change."""
        if module == "torch" and isinstance(vars(torch).get(name), torch.dtype):
            return vars(torch)[name]
        if (module, name) == ("torch", "Size"):
            return tuple
        if name in _RECORDS.get(module, ()):
            return self._kinds.setdefault(name, type(name, (_Inert,), {"offset": None}))
        if (module, name) == ("builtins", "getattr"):
            return self._member
        raise WeightsFileError(
            f"its metadata asks for {module}.{name}, which does not belong in a checkpoint; nothing was "
            "executed"
        )

    def _member(self, kind: Any, name: str) -> _Inert:
        """Returns a record for an enumeration's member, which Python before 3.11.4 writes as `getattr`."""
        if kind in self._kinds.values() and isinstance(name, str):
            return kind(name)
        raise WeightsFileError(
            f"its metadata asks for attribute {name!r} of {kind!r}, which does not belong in a checkpoint; "
            "nothing was executed"
        )


def _select_object(found: Any, name: str, path: Path) -> Mapping[str, Any]:
    if not isinstance(found, Mapping):
        raise WeightsFileError(f"{path} holds a {type(found).__name__}, not a state_dict.")
    if isinstance(found.get("objects"), Mapping):
        found = found["objects"]
    return found[name] if isinstance(found.get(name), Mapping) else found


def refusal_reason(error: Exception) -> str:
    """Returns the content of a file that torch refused, without torch's advice to execute it."""
    found = re.search(r"GLOBAL (\S+)", str(error))
    what = found[1] if found else "more than tensors and plain values"
    return f"it holds {what}, which only executing the file would read, and that is never done"
