"""Collate functions: torch's default, with rows written into the batch's memory; and padding to one size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from samebits.data._workers.results import empty, writes_in_place
from samebits.errors import PipelineError

_KINDS = "?bBhHiIlLqQefdFD"
"""NumPy's types that torch has too."""
_LARGE = 1 << 14
"""Bytes from which a tensor is copied straight into the batch: one copy fewer is then faster."""


def default_collate(rows: list[Any]) -> Any:
    """Returns the batch of `torch.utils.data.default_collate`, with the same bits, types and strides."""
    return collate(rows, collate_fn_map=_STACKED)


def _collate_arrays(rows: list[Any], *, collate_fn_map: Any = None) -> Any:
    first = rows[0]
    shape, dtype = first.shape, first.dtype
    if (
        not first.size
        or dtype.char not in _KINDS
        or not dtype.isnative
        or not all(_is_like(row, shape, dtype) for row in rows)
    ):
        return default_collate_fn_map[np.ndarray](rows, collate_fn_map=collate_fn_map)  # type: ignore[index]
    batch = empty((len(rows), *shape), dtype)
    for number, row in enumerate(rows):  # three times as fast as numpy.stack on small rows
        batch[number] = row
    return torch.from_numpy(batch)


def _is_like(row: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    return type(row) is np.ndarray and row.dtype == dtype and row.shape == shape and row.flags.c_contiguous


def _collate_tensors(rows: list[Any], *, collate_fn_map: Any = None) -> Any:
    first = rows[0]
    if first.nbytes < _LARGE or not writes_in_place() or not all(_is_plain(row, first) for row in rows):
        return default_collate_fn_map[torch.Tensor](rows, collate_fn_map=collate_fn_map)
    return torch.stack(rows, out=empty_tensor((len(rows), *first.shape), first.dtype))


def empty_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """`torch.empty`; in a worker that computes a batch, in the memory from which the batch will be read."""
    if not math.prod(shape):  # torch refuses to view zero bytes as elements of another size
        return torch.empty(shape, dtype=dtype)
    place = empty((math.prod(shape) * dtype.itemsize,), np.dtype(np.uint8))
    return torch.from_numpy(place).view(dtype).view(shape)


def _is_plain(row: Any, first: torch.Tensor) -> bool:
    return (
        type(row) is torch.Tensor
        and row.shape == first.shape
        and row.dtype == first.dtype
        and row.is_contiguous()
        and row.device.type == "cpu"
        and row.layout is torch.strided
        and not (row.requires_grad or row.is_quantized or row.is_conj() or row.is_neg())
    )


_STACKED = {**default_collate_fn_map, torch.Tensor: _collate_tensors, np.ndarray: _collate_arrays}


class PadCollate:
    """Stacks arrays and tensors, padded with `value`; collates dicts and tuples by field, others as torch."""

    def __init__(self, value: float, sizes: Sequence[int] | None) -> None:
        """`sizes`: of a padded element; -1 is the largest of the batch; None is -1 in every dimension."""
        self.value, self.sizes = value, sizes
        self.__qualname__ = f"pad(value={value}, sizes={None if sizes is None else list(sizes)})"

    def __call__(self, rows: list[Any]) -> Any:
        """Returns the batch of these rows."""
        first = rows[0]
        if isinstance(first, Mapping):
            return {name: self([row[name] for row in rows]) for name in first}
        if isinstance(first, tuple | list) and not (
            first and all(isinstance(one, int | float) for one in first)
        ):
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
