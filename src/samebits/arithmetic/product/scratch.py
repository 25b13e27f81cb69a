"""Memory in which kernels pack and sum: kept from call to call.

Allocated and freed by each call beside its result, it would make the allocator return both to the system, and
each call would wait for fresh pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits._native import inlined
from samebits._native.kernel_threads import symbol
from samebits._native.torch_threads import openmp

LINE = 64
"""Bytes of a line of the caches, at which each thread's part begins."""
_SMALLEST = 1 << 18
_kept: list[tuple[int, int, Any]] = []
"""Those that no call uses: bytes, address, the memory."""


def borrow(size: int) -> tuple[int, int, Any]:
    """Returns memory of at least that size: its size, its address, its owner. `give_back` takes it back."""
    made = _kept.pop() if _kept else None
    if made is None or made[0] < size:
        memory = np.empty(max(size, _SMALLEST) + LINE, np.uint8)
        made = max(size, _SMALLEST), -(-memory.ctypes.data // LINE) * LINE, memory
    return made


give_back = _kept.append
_LARGEST = 1 << 24


@contextmanager
def scratch_tensor(elements: int, dtype: torch.dtype) -> Iterator[Tensor]:
    """A flat tensor of that number of elements, whose memory is kept afterwards unless it is large."""
    size = elements * dtype.itemsize
    if size > _LARGEST:
        yield torch.empty(elements, dtype=dtype)
        return
    memory = borrow(size)
    start = memory[1] - memory[2].ctypes.data
    yield torch.from_numpy(memory[2][start : start + size]).view(dtype)
    give_back(memory)


@inlined
def _first() -> Any:
    return 0


_number = (symbol(openmp, "omp_get_thread_num", "int32") if openmp is not None else None) or _first


@inlined
def part_of_thread(address: Any, parts: Any, size: Any) -> Any:
    """Returns the address of this thread's part. With one part there is one thread, whatever its number."""
    return address + (np.int64(_number()) * size if parts > 1 else 0)
