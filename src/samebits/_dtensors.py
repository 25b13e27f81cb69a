"""DTensors (torch.distributed.tensor): told apart, and cut into rows, without the 2 seconds of its import."""

from __future__ import annotations

from typing import Any

import torch


def is_dtensor(value: Any) -> bool:
    """Returns True for a DTensor, of which this process has a part."""
    return isinstance(value, torch.Tensor) and local(value) is not value


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the rows of a DTensor that this process has; any other tensor as it is."""
    return getattr(tensor, "_local_tensor", tensor)


def borders(rows: int, world_size: int) -> list[int]:
    """Returns the first row of each rank, as `torch.chunk` gives them, and after them the number of rows.

    >>> borders(5, 4)
    [0, 2, 4, 5, 5]
    """
    most = -(-rows // world_size)
    return [min(rank * most, rows) for rank in range(world_size + 1)]
