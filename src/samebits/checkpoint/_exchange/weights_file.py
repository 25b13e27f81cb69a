"""A state_dict as one file that other programs read. It appears whole or not at all; equal tensors give equal bytes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch

from samebits.checkpoint import _safetensors_file as safetensors_file
from samebits.checkpoint._writer.commit_folder import BUFFER_BYTES, sync_folder
from samebits.errors import InvalidArgumentError

TENSORS_ONLY = ".safetensors"
PICKLED = (".pt", ".pth")
SUFFIXES = (TENSORS_ONLY, *PICKLED)


def save_weights(state: Mapping[str, Any], path: Path) -> None:
    """Writes `state` in the format of `path`'s suffix.

    Raises:
        InvalidArgumentError: safetensors cannot hold a value of it.
        OSError: the disk refuses.
    """
    if path.suffix == TENSORS_ONLY:
        save_safetensors(state, path)
    else:
        save_pickled(dict(state), path)


def save_safetensors(state: Mapping[str, Any], path: Path) -> None:
    """Writes `state` as safetensors. Tied weights are written under each of their names, as readers of the format expect."""
    for name, value in state.items():
        if not isinstance(value, torch.Tensor) or value.dtype not in safetensors_file.NAMES:
            what = value.dtype if isinstance(value, torch.Tensor) else type(value).__name__
            raise InvalidArgumentError(
                f"{path}: state_dict()[{name!r}] is a {what}, which safetensors cannot hold. Use a .pt file."
            )
    data = {name: safetensors_file.raw(tensor) for name, tensor in state.items()}
    head, order = safetensors_file.header(
        {name: safetensors_file.describe(tensor) for name, tensor in state.items()}
    )

    def write(file: BinaryIO) -> None:
        file.writelines((memoryview(head), *(data[name].data for name in order)))

    write_whole(path, write)


def save_pickled(value: Any, path: Path) -> None:
    """Writes `value` as `torch.save` does; to a file object, since with a file name torch puts the name into the file."""
    write_whole(path, lambda file: torch.save(value, file))


def refusal_reason(error: Exception) -> str:
    """Returns the content of a file that torch's reader of plain tensors refused, without torch's advice to execute it."""
    found = re.search(r"GLOBAL (\S+)", str(error))
    what = found[1] if found else "more than tensors and plain values"
    return f"it holds {what}, which only executing the file would read, and that is never done"


def write_whole(path: Path, write: Callable[[BinaryIO], None]) -> None:
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
