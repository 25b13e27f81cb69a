"""Memory that a worker writes its results into, and this process reads: files without a name, gone with the last of both."""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

ALIGNMENT = 64


class Slot:
    """One result's memory. It is made before the worker is started, and grows where a result needs more."""

    def __init__(self, fd: int | None = None) -> None:
        self.fd = os.memfd_create("samebits-slot") if fd is None else fd
        self._map: mmap.mmap | None = None
        self.used = 0

    def clear(self) -> None:
        """What follows is a new result."""
        self.used = 0

    def reserve(self, size: int) -> tuple[int, np.ndarray]:
        """(offset, writable uint8 array) of the next `size` bytes."""
        offset = -(-self.used // ALIGNMENT) * ALIGNMENT
        self.used = offset + size
        return offset, self._array(self.used)[offset : offset + size]

    def owns(self, array: np.ndarray) -> int | None:
        """The offset of a contiguous array that lies in this slot, else None."""
        if self._map is None or not array.flags.c_contiguous:
            return None
        offset = array.__array_interface__["data"][0] - self._array(0).__array_interface__["data"][0]
        return offset if offset >= 0 and offset + array.nbytes <= len(self._map) else None

    def lease(self, size: int, released: Callable[[], None]) -> np.ndarray:
        """The first `size` bytes; `released` is called when nothing refers to them any more."""
        whole = np.frombuffer(self._mapped(size), np.uint8)
        returned: Any = weakref.finalize(whole, released)
        returned.atexit = False
        return whole

    def close(self) -> None:
        """Lets go of the file; what was leased stays readable."""
        os.close(self.fd)

    def _array(self, size: int) -> np.ndarray:
        return np.frombuffer(self._mapped(size), np.uint8)

    def _mapped(self, size: int) -> mmap.mmap:
        """A mapping of at least `size` bytes. An older one lives on as long as arrays refer to it: it is the same memory."""
        if self._map is None or len(self._map) < size:
            length = max(os.fstat(self.fd).st_size, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE, mmap.PAGESIZE)
            if length > os.fstat(self.fd).st_size:
                length = max(length, 2 * os.fstat(self.fd).st_size)
                os.ftruncate(self.fd, length)
            self._map = mmap.mmap(self.fd, length)
        return self._map
