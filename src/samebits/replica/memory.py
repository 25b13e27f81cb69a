"""What the bytes of each storage hold at one time of the program: a partition per range of bytes.

A tensor is a view of a storage; two tensors that share bytes share their fate. So a value is known by its storage and
the time of the last write, never by the name of the tensor that it was written through.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from samebits.replica.partitions import Partitions

_END = 1 << 62


@dataclass(frozen=True, slots=True)
class Place:
    """The bytes that a tensor covers."""

    storage: Hashable
    low: int = 0
    high: int = _END
    dense: bool = True
    """Whether it covers every byte from `low` to `high`, once."""

    def anywhere(self) -> Place:
        """Somewhere in the same storage: where ranks do not look at the same bytes."""
        return Place(self.storage, dense=False)


class Cell(NamedTuple):
    """Bytes that were written together."""

    low: int
    high: int
    partition: int
    event: int


class Memory:
    """Storages and what they hold. Bytes that nobody wrote differ on every rank."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._cells: dict[Hashable, list[Cell]] = {}

    def copy(self) -> Memory:
        """A memory that is written to on its own."""
        other = Memory(self._partitions)
        other._cells = dict(self._cells)  # lists are replaced, never changed
        return other

    def read(self, place: Place) -> tuple[int, tuple[int, ...]]:
        """The partition of the bytes of a place, and the events that wrote them."""
        found = self._partitions.equal
        cells = self._overlapping(place)
        for cell in cells:
            found = self._partitions.meet(found, cell.partition)
        return found, tuple(cell.event for cell in cells)

    def known(self, place: Place) -> bool:
        """Whether anything was written to the storage of a place."""
        return place.storage in self._cells

    def write(self, place: Place, partition: int, event: int) -> None:
        """Makes the bytes from `low` to `high` hold `partition`. Where a place has gaps, the caller mixes in what was there."""
        kept = []
        for cell in self._cells.get(place.storage, ()):
            if cell.low < place.low:
                kept.append(cell._replace(high=min(cell.high, place.low)))
            if cell.high > place.high:
                kept.append(cell._replace(low=max(cell.low, place.high)))
        self._cells[place.storage] = [*kept, Cell(place.low, place.high, partition, event)]

    def _overlapping(self, place: Place) -> list[Cell]:
        cells = self._cells[place.storage]
        return [cell for cell in cells if cell.low < place.high and place.low < cell.high]


def place_of(tensor: torch.Tensor, storage: Hashable) -> Place:
    """The bytes of a (fake) tensor; the whole storage, not dense, where the shape is not known."""
    shape, strides, offset = tensor.shape, tensor.stride(), tensor.storage_offset()
    if not all(isinstance(number, int) for number in (*shape, *strides, offset)):
        return Place(storage).anywhere()
    size, count = tensor.element_size(), tensor.numel()
    low = int(offset) * size
    if not count or tensor.is_contiguous():
        return Place(storage, low, low + int(count) * size)
    reach = sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
    return Place(storage, low, low + (reach + 1) * size, _dense(tensor))


def _dense(tensor: torch.Tensor) -> bool:
    expected = 1
    for stride, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length != 1:
            if stride != expected:
                return False
            expected *= length
    return True
