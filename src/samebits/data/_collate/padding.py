"""Batches of elements of different sizes, padded at the end to the largest or to given sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from samebits.data._collate.collate import default_collate, empty_tensor
from samebits.errors import PipelineError


class PadCollate:
    """Stacks arrays and tensors, padded with `value`; collates dicts and tuples by field, all else as torch's default."""

    def __init__(self, value: float, sizes: Sequence[int] | None) -> None:
        """`sizes`: of a padded element; -1 is the largest of the batch; None is -1 in every dimension."""
        self.value, self.sizes = value, sizes
        self.__qualname__ = f"pad(value={value}, sizes={None if sizes is None else list(sizes)})"

    def __call__(self, rows: list[Any]) -> Any:
        """Returns the batch of these rows."""
        first = rows[0]
        if isinstance(first, Mapping):
            return {name: self([row[name] for row in rows]) for name in first}
        if isinstance(first, tuple | list) and not _is_number_sequence(first):
            return type(first)(self(list(column)) for column in zip(*rows, strict=True))
        if isinstance(first, np.ndarray | torch.Tensor | list | tuple):
            return self._pad_and_stack([torch.as_tensor(row) for row in rows])
        return default_collate(rows)

    def _pad_and_stack(self, rows: list[torch.Tensor]) -> torch.Tensor:
        dims = {row.dim() for row in rows}
        if len(dims) != 1:
            raise PipelineError(f"elements of {sorted(dims)} dimensions cannot be padded to one batch")
        largest = [max(sizes) for sizes in zip(*(row.shape for row in rows), strict=True)]
        wanted = largest if self.sizes is None else list(self.sizes)
        sizes = [most if want == -1 else want for want, most in zip(wanted, largest, strict=True)]
        if any(most > size for most, size in zip(largest, sizes, strict=True)):
            raise PipelineError(f"an element of sizes {largest} does not fit into the padded sizes {sizes}")
        batch = empty_tensor((len(rows), *sizes), rows[0].dtype).fill_(self.value)
        for number, row in enumerate(rows):
            batch[(number, *(slice(size) for size in row.shape))] = row
        return batch


def _is_number_sequence(row: Sequence[Any]) -> bool:
    return len(row) > 0 and all(isinstance(one, int | float) for one in row)
