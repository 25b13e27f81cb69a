"""Loads the state of a commit, and a module's weights from a commit or from the file of another program."""

# ruff: noqa: A002 - `object` is what it is called in a Run
from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from samebits._context import is_url
from samebits.checkpoint._exchange.safe_unpickling import read_weights
from samebits.checkpoint._open_store import check_path, commit_folders
from samebits.checkpoint._rank_states import KEY as RANKS
from samebits.checkpoint._rank_states import rank_state
from samebits.checkpoint._reading import newest_valid, no_valid_commit_error
from samebits.checkpoint._run_directory import MARKER
from samebits.checkpoint._writer.commit_folder import step_of
from samebits.errors import InvalidArgumentError, WeightsMismatchError

MODEL = "model"
RUN_STATE = "run.state"


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
        InvalidArgumentError: there is no commit, none of that step (the message lists the existing ones), or no such rank.
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
    folders = commit_folders(run_dir)
    steps = sorted({step_of(folder.name) for folder in folders})
    chosen = [folder for folder in folders if step in (None, step_of(folder.name))]
    if not chosen:
        raise InvalidArgumentError(
            f"load_commit({os.fspath(run_dir)!r}, step={step}): there is no such commit. "
            f"There are those of steps {', '.join(map(str, steps))}." if steps else
            f"load_commit({os.fspath(run_dir)!r}): the run has not committed anything yet."
        )  # fmt: skip
    found, skipped = newest_valid(chosen)
    if found is None:
        raise no_valid_commit_error(run_dir, skipped)
    state, world_size = found[2], len(found[2].get(RANKS, [])) + 1
    if not 0 <= rank < world_size:
        raise InvalidArgumentError(
            f"load_commit(rank={rank}): {os.fspath(run_dir)} was made by {world_size} processes."
        )
    return rank_state(state, rank, world_size, os.fspath(run_dir))


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
        source: a run_dir or its URL, a .safetensors file, a file of `torch.save` (a state_dict, or a dict that holds
            it under `object`), or a folder of `torch.distributed.checkpoint`.
        object: the module's name there.
        strict: as in `Module.load_state_dict`.
        step: of the commit, where `source` is a run; None: the newest valid one.

    Returns:
        The result of `load_state_dict`: missing and unexpected keys.

    Raises:
        InvalidArgumentError: `module` is not a module, or `source` not a path.
        WeightsMismatchError: names or shapes do not fit; the module is unchanged.
        WeightsFileError: the file is damaged, or cannot be read without executing it.
        Those of `load_commit`.

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
            f"load_weights({type(module).__name__}, ...): the first argument is the module that gets the weights."
        )
    state = _read_source(source, object, step)
    before = {
        name: value.clone() for name, value in module.state_dict().items() if isinstance(value, torch.Tensor)
    }
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
            f"load_weights(..., {os.fspath(source)!r}, step={step}): it is a file, not a run."
        )
    return read_weights(path, object)


def object_state(state: Mapping[str, Any], name: str, where: Any) -> Mapping[str, Any]:
    """Returns the state_dict of an object by its name; `run.state`, or an entry of it by `run.state.weights`."""
    kept = state.get("run_state", {})
    found = {**state.get("objects", {})}
    if kept:
        found |= {RUN_STATE: kept, **{f"{RUN_STATE}.{key}": value for key, value in kept.items()}}
    if name not in found:
        raise InvalidArgumentError(
            f"{os.fspath(where)} has no object {name!r}. It has {', '.join(map(repr, found))}."
        )
    return found[name] if isinstance(found[name], Mapping) else {name.rpartition(".")[2]: found[name]}
