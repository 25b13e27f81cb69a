"""Memory that a worker writes its results into, and this process reads: files without a name, gone with the last of both."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from samebits._shared_memory import SharedMemory

ALIGNMENT = 64

_current: ResultMemory | None = None
"""The slot that the result under way will lie in, while whoever makes the result may write it there at once."""
_offer: tuple[Any, ResultMemory] | None = None
"""Whose result that is, and its slot."""


class ResultMemory:
    """One result's memory. It is made before the worker is started, and grows where a result needs more."""

    def __init__(self, fd: int | None = None) -> None:
        self._memory = SharedMemory("samebits-slot", fd)
        self.fd = self._memory.fd
        self._whole = np.empty(0, np.uint8)
        self._lent = False  # whether something may lie in it before it is encoded
        self.used = 0

    def clear(self) -> None:
        """What follows is a new result."""
        self.used, self._lent = 0, False

    def reserve(self, size: int) -> tuple[int, np.ndarray]:
        """(offset, writable uint8 array) of the next `size` bytes."""
        offset = -(-self.used // ALIGNMENT) * ALIGNMENT
        self.used = offset + size
        return offset, self._array(self.used)[offset : offset + size]

    def write(self, data: bytes) -> int:
        """Puts `data` behind what is there; its offset."""
        offset, place = self.reserve(len(data))
        place[:] = np.frombuffer(data, np.uint8)
        return offset

    def read(self, offset: int, size: int) -> memoryview:
        """What `write` put there."""
        return self._array(offset + size)[offset : offset + size].data

    def owns(self, array: np.ndarray) -> int | None:
        """The offset of a contiguous array that was made in this slot's memory by `empty`, else None."""
        if not self._lent:
            return None
        offset = array.__array_interface__["data"][0] - self._whole.__array_interface__["data"][0]
        return offset if offset >= 0 and offset + array.nbytes <= self._whole.size else None

    def lease(self, size: int, released: Callable[[], None] | None = None) -> np.ndarray:
        """The first `size` bytes; `released` is called when nothing refers to them any more."""
        whole = np.frombuffer(self._memory.mapped(size), np.uint8)
        if released is not None:
            returned: Any = weakref.finalize(whole, released)
            returned.atexit = False
        return whole

    def close(self) -> None:
        """Lets go of the file; what was leased stays readable."""
        self._memory.close()

    @contextmanager
    def filled(self) -> Iterator[None]:
        """`empty` gives memory of this slot in the block."""
        global _current
        _current, self._lent = self, True
        try:
            yield
        finally:
            _current = None

    def _array(self, size: int) -> np.ndarray:
        if self._whole.size < size:
            self._whole = np.frombuffer(self._memory.mapped(size), np.uint8)
        return self._whole


@contextmanager
def offered(maker: Any, slot: ResultMemory) -> Iterator[None]:
    """In the block, `maker` may take `slot` for what it makes: nobody else, who could keep it for longer."""
    global _offer
    _offer = maker, slot
    try:
        yield
    finally:
        _offer = None


def taken(maker: Any) -> AbstractContextManager[None]:
    """A block in which `empty` gives memory of the slot that `maker` was offered, if it was."""
    return _offer[1].filled() if _offer is not None and _offer[0] is maker else nullcontext()


def in_place() -> bool:
    """Whether `empty` gives memory where the result will be read."""
    return _current is not None


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """`numpy.empty`; in a worker that is making a batch, where the batch will be read."""
    if _current is None:
        return np.empty(shape, dtype)
    _, place = _current.reserve(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
    return place.view(dtype).reshape(shape)
