"""The memory of tensors that kernels read and write: its address, and that of large results in huge pages.

A fault for every 4 KiB of a fresh result costs twice as much as its random numbers; for 2 MiB at a time,
a quarter. Linux's usual setting of transparent huge pages, "madvise", waits for this request, which torch
makes with THP_MEM_ALLOC_ENABLE=1 only.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from samebits.errors import UnimplementedError

_LARGE = 1 << 22
_ADVICE = getattr(mmap, "MADV_HUGEPAGE", None)


def fresh(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Returns `torch.empty`, for a result that will be written completely."""
    out = torch.empty(shape, dtype=dtype, device=device)
    if _ADVICE is not None and out.is_cpu and out.nbytes >= _LARGE and (place := out.data_ptr()):
        begin = -(-place // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (place + out.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        _madvise()(begin, end - begin, _ADVICE)  # a refusal makes it slower, nothing else
    return out


@cache
def _madvise() -> Any:
    function = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function


def address(x: torch.Tensor) -> int:
    """Returns the address of `x`. Raises `UnimplementedError` for a tensor with elements and no memory."""
    place = x.data_ptr()
    if place or not x.numel():
        return place
    raise UnimplementedError(
        f"samebits.random cannot draw in fake mode, since there is no memory of a {type(x).__name__}; "
        "draw before it, or with real tensors"
    )
