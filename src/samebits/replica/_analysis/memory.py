"""The bits of each storage at one time of the program: a partition per range of bytes.

A tensor is a view of a storage; two tensors that share bytes change together. So a value is known by its
storage and the time of the last write, never by the name of the tensor that it was written through.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import torch

from samebits._objects.memory import reach
from samebits._strides import is_dense
from samebits.replica._analysis.partitions import Partitions

_END = 1 << 62


class ByteRange(NamedTuple):
    """The bytes that a tensor covers."""

    storage: Hashable
    low: int = 0
    high: int = _END
    dense: bool = True
    """True if it covers every byte from `low` to `high`, once."""

    def anywhere(self) -> ByteRange:
        """Returns the whole storage, not dense: the place of a view whose offsets depend on the rank."""
        return ByteRange(self.storage, dense=False)


class Cell(NamedTuple):
    """Bytes that were written together."""

    low: int
    high: int
    partition: int
    event: int


class Memory:
    """Storages and the partitions of their bytes. Bytes that were never written differ on every rank.

    The cells of a storage are sorted and do not overlap: a view of a large buffer costs no walk over it.
    """

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._cells: dict[Hashable, list[Cell]] = {}

    def read(self, place: ByteRange) -> tuple[int, tuple[int, ...]]:
        cells = self._cells[place.storage]
        first, last = _span(cells, place)
        if last - first == 1:
            _, _, found, event = cells[first]
            return found, (event,)
        found = self._partitions.equal
        for _, _, partition, _ in cells[first:last]:
            found = self._partitions.meet(found, partition)
        return found, tuple(cell.event for cell in cells[first:last])

    def is_written(self, place: ByteRange) -> bool:
        return place.storage in self._cells

    def write(self, place: ByteRange, partition: int, event: int) -> None:
        """Makes the bytes from `low` to `high` hold `partition`; where a place has gaps, the caller mixes."""
        cells = self._cells.setdefault(place.storage, [])
        if place.low == place.high:
            return
        first, last = _span(cells, place)
        new = [Cell(place.low, place.high, partition, event)]
        if first < last:
            before, after = cells[first], cells[last - 1]
            if before.low < place.low:
                new.insert(0, before._replace(high=place.low))
            if after.high > place.high:
                new.append(after._replace(low=place.high))
        cells[first:last] = new if len(new) == 1 else _join_cells(new)


def _span(cells: Sequence[Cell], place: ByteRange) -> tuple[int, int]:
    """Returns the first and the end index of the cells that share bytes with a place."""
    if place.low == place.high:
        return 0, 0
    if len(cells) == 1 and cells[0].low <= place.low and place.high <= cells[0].high:
        return 0, 1  # as it is with most storages
    first = bisect_right(cells, (place.low, _END))
    last = bisect_left(cells, (place.high,), first)
    return first - (first > 0 and cells[first - 1].high > place.low), last


def _join_cells(cells: Sequence[Cell]) -> list[Cell]:
    """Joins adjacent cells of one event: equal bytes stay one cell, however often they are written."""
    joined = [cells[0]]
    for cell in cells[1:]:
        last = joined[-1]
        if (cell.partition, cell.event) == (last.partition, last.event):
            joined[-1] = last._replace(high=cell.high)
        else:
            joined.append(cell)
    return joined


def place_of(tensor: torch.Tensor, storage: Hashable) -> ByteRange:
    """Returns the bytes of a (fake) tensor; the whole storage, not dense, where the shape is not known."""
    if tensor._has_symbolic_sizes_strides or tensor.layout is not torch.strided:
        return ByteRange(storage).anywhere()
    size, count = tensor.element_size(), tensor.numel()
    low = int(tensor.storage_offset()) * size
    if not count or tensor.is_contiguous():
        return ByteRange(storage, low, low + count * size)
    end = low + (reach(tensor.shape, tensor.stride()) + 1) * size
    return ByteRange(storage, low, end, is_dense(tensor))
