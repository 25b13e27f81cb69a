"""Memory that several processes map: a file without a name, gone with the last process that has it."""

from __future__ import annotations

import ctypes
import mmap
import os

_LIBC = ctypes.CDLL(None)  # whose calls release Python's lock
_MADV_POPULATE_WRITE = 23
"""Linux: include/uapi/asm-generic/mman-common.h. Python's `mmap` does not name it."""
_POPULATED_AT_ONCE = 1 << 24
"""Bytes of one call, which holds a lock of the process's memory."""


class SharedMemory:
    """One such file, which takes memory from its first use on, and grows.

    Args:
        name: what /proc shows of it.
        fd: the file descriptor of one that another process has made; None: a new one is made.
        reserved: growing takes the memory at once, and raises OSError when there is none. Else each page is
            taken when it is first written, and a lack of memory is a signal that ends the process.
    """

    def __init__(self, name: str, fd: int | None = None, *, reserved: bool = False) -> None:
        self.fd = os.memfd_create(name) if fd is None else fd
        self._reserved = reserved
        self._map: mmap.mmap | None = None

    def __len__(self) -> int:
        """Bytes that are mapped here."""
        return 0 if self._map is None else len(self._map)

    def mapped(self, size: int) -> mmap.mmap:
        """A mapping of at least `size` bytes; the same as long as it is large enough.

        What refers to an older one keeps it: it is the same memory.
        """
        if self._map is None or len(self._map) < size:
            self._map = mmap.mmap(self.fd, self._resize_file(size))
        return self._map

    def populate(self, size: int) -> None:
        """Maps `size` bytes page by page: the first write is as fast as later ones; other threads continue.

        A kernel before Linux 5.14 does nothing.
        """
        memory = self.mapped(size)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for at in range(0, _pages(size), _POPULATED_AT_ONCE):
            length = min(_POPULATED_AT_ONCE, _pages(size) - at)
            if _LIBC.madvise(ctypes.c_void_p(start + at), ctypes.c_size_t(length), _MADV_POPULATE_WRITE):
                return

    def unmap(self) -> None:
        """Forgets the mapping; the file stays."""
        self._map = None

    def close(self) -> None:
        """Lets go of the file; what refers to a mapping keeps that."""
        os.close(self.fd)

    def _resize_file(self, size: int) -> int:
        """Makes the file large enough and returns its length: reserved with an eighth more, else doubled."""
        there = os.fstat(self.fd).st_size
        if self._reserved:
            length = max(there, _pages(size + size // 8) + mmap.PAGESIZE)
            os.posix_fallocate(self.fd, 0, length)
        else:
            length = max(there, _pages(size), mmap.PAGESIZE)
            if length > there:
                length = max(length, 2 * there)
                os.ftruncate(self.fd, length)
        return length


def _pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
