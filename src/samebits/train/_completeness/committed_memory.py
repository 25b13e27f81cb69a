"""The memory that a commit holds: the containers and tensors inside the values that it saves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from samebits import _digest as digest
from samebits._inspect.tree import PLAIN


def inner(value: Any) -> Iterator[Any]:
    """Yields the value, the containers inside it, and the tensors in them."""
    for _, one, parts in digest.walk(value, parts_of=_containers):
        if parts is not None or isinstance(one, list | tuple | torch.Tensor):
            yield one


def _containers(value: Any) -> digest.Parts | None:
    if isinstance(value, dict):
        return [pair for pair in value.items() if type(pair[1]) not in PLAIN]
    if isinstance(value, list | tuple) and len(value) <= 1024:
        return [pair for pair in enumerate(value) if type(pair[1]) not in PLAIN]
    return None


def of_tensor(tensor: torch.Tensor) -> int:
    """Returns the address of the tensor's memory, equal for all views of it; for a sparse, empty or lazy tensor `-id(tensor)`."""
    if tensor.layout is not torch.strided or tensor.numel() == 0 or torch.nn.parameter.is_lazy(tensor):
        return -id(tensor)
    return tensor.untyped_storage().data_ptr()
