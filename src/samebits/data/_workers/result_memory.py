"""Memory that a worker writes results into and this process reads: unnamed files that end with their last user."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np

from samebits._shared_memory import SharedMemory

ALIGNMENT = 64

_current: ResultMemory | None = None
"""The slot of the current result, while its maker may write the result there at once."""
_NO_SLOT = nullcontext()
_offer: tuple[Any, ResultMemory] | None = None
"""The maker of that result, and its slot."""


class ResultMemory:
    """One result's memory. It is made before the worker is started, and grows where a result needs more."""

    def __init__(self, fd: int | None = None) -> None:
        self._memory = SharedMemory("samebits-slot", fd)
        self.fd = self._memory.fd
        self._whole = np.empty(0, np.uint8)
        self._lent = False  # True if it may have content before the result is encoded
        self.used = 0

    def clear(self) -> None:
        """Empties the slot for a new result."""
        self.used, self._lent = 0, False

    def reserve(self, size: int) -> tuple[int, np.ndarray]:
        """Returns (offset, writable uint8 array) of the next `size` bytes."""
        offset = -(-self.used // ALIGNMENT) * ALIGNMENT
        self.used = offset + size
        return offset, self._array(self.used)[offset : offset + size]

    def write(self, data: bytes) -> int:
        """Appends `data` and returns its offset."""
        offset, place = self.reserve(len(data))
        place[:] = np.frombuffer(data, np.uint8)
        return offset

    def read(self, offset: int, size: int) -> memoryview:
        """Returns the bytes that `write` put there."""
        return self._array(offset + size)[offset : offset + size].data

    def owns(self, array: np.ndarray) -> int | None:
        """Returns the offset of a contiguous array that `empty` made in this slot's memory, else None."""
        if not self._lent:
            return None
        offset = array.__array_interface__["data"][0] - self._whole.__array_interface__["data"][0]
        return offset if offset >= 0 and offset + array.nbytes <= self._whole.size else None

    def lease(self, size: int, released: Callable[[], None] | None = None) -> np.ndarray:
        """Returns the first `size` bytes; `released` is called when nothing refers to them any more."""
        whole = np.frombuffer(self._memory.mapped(size), np.uint8)
        if released is not None:
            returned: Any = weakref.finalize(whole, released)
            returned.atexit = False
        return whole

    def close(self) -> None:
        """Closes the file; leased memory stays readable."""
        self._memory.close()

    @contextmanager
    def use_for_empty(self) -> Iterator[None]:
        """Lets `empty` use this slot's memory in the block."""
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
def offer_memory(maker: Any, slot: ResultMemory) -> Iterator[None]:
    """Lets `maker`, and no other code, use `slot` for its result in the block: other code could keep it longer."""
    global _offer
    _offer = maker, slot
    try:
        yield
    finally:
        _offer = None


def use_offered_memory(maker: Any) -> AbstractContextManager[None]:
    """Returns a block in which `empty` uses the slot that was offered to `maker`, if one was."""
    return _offer[1].use_for_empty() if _offer is not None and _offer[0] is maker else _NO_SLOT


def writes_in_place() -> bool:
    """Returns True if `empty` uses the memory from which the result will be read."""
    return _current is not None


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """`numpy.empty`; in a worker that computes a batch, in the memory from which the batch will be read."""
    if _current is None:
        return np.empty(shape, dtype)
    _, place = _current.reserve(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
    return place.view(dtype).reshape(shape)
