"""A state_dict as one file, whole or not there; equal tensors give equal bytes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from samebits.checkpoint import tensorfile
from samebits.checkpoint.writer.shelf import sync_folder, write_file
from samebits.errors import InvalidArgumentError

SUFFIXES = (".safetensors", ".pt", ".pth")


def save_weights(state: Mapping[str, Any], path: Path) -> None:
    """Writes beside, fsyncs, renames. The suffix of `path` tells the format. Raises OSError."""
    fresh = path.with_name(
        f".{path.name}.tmp"
    )  # always this name: what a kill leaves is gone with the next save
    fresh.unlink(missing_ok=True)
    try:
        if path.suffix == ".safetensors":
            _save_tensors(state, fresh)
        else:
            with fresh.open("xb") as file:  # by a name torch.save would put the name into the file
                torch.save(dict(state), file)
                file.flush()
                os.fsync(file.fileno())
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    sync_folder(path.parent)


def _save_tensors(state: Mapping[str, Any], path: Path) -> None:
    """Tied weights are written under each of their names, as readers of the format expect."""
    for name, value in state.items():
        if not isinstance(value, torch.Tensor) or value.dtype not in tensorfile.NAMES:
            what = value.dtype if isinstance(value, torch.Tensor) else type(value).__name__
            raise InvalidArgumentError(
                f"ModelCheckpoint: state_dict()[{name!r}] is a {what}, which safetensors cannot hold. Use a .pt file."
            )
    data = {name: tensorfile.raw(tensor) for name, tensor in state.items()}
    head, order = tensorfile.header({name: tensorfile.describe(tensor) for name, tensor in state.items()})
    write_file(path, [memoryview(head), *(data[name].data for name in order)])
