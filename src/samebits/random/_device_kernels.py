"""The choice of kernels by a key's device."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch

from samebits.errors import UnimplementedError
from samebits.random._cpu import (
    bernoulli_masks,
    bounded_integers,
    philox,
    transformed_kernels,
    uniform_normal_kernels,
)
from samebits.random._draws import feistel
from samebits.random._triton import launchers


def _folded(keys: torch.Tensor, first: int, out: torch.Tensor) -> None:
    """Folds `first` + i into all `keys`, (keys, 2), for row i of `out`, (number, keys, 2)."""
    philox.fold_all(keys.numpy(), first, out.numpy())


_CPU = SimpleNamespace(
    folded=_folded,
    words=uniform_normal_kernels.words,
    uniform=uniform_normal_kernels.uniform,
    normal=uniform_normal_kernels.normal,
    bernoulli=bernoulli_masks.bernoulli,
    dropout=bernoulli_masks.dropout,
    integers=bounded_integers.integers,
    images=feistel.images,
    transformed=transformed_kernels.transformed,
)


def kernels(caller: str, key: torch.Tensor) -> Any:
    """Returns the functions that fill tensors on the key's device; their signatures are those of `_CPU`.

    Raises `UnimplementedError`, naming samebits.random.`caller`, for a device without kernels of the same
    bits, and for CUDA without Triton.
    """
    if key.is_cpu:
        return _CPU
    if key.is_cuda:
        return launchers(caller)
    raise UnimplementedError(
        f"samebits.random.{caller} has no kernel for {key.device} that gives the bits of the CPU; "
        f"draw on the CPU and move the result: {caller}(key.cpu(), ...).to({str(key.device)!r})"
    )


# Memory for large results in huge pages, where the system gives them on request.
#
# A fault for every 4 KiB of a fresh result costs twice as much as its random numbers; for 2 MiB at a time,
# a quarter. Linux's usual setting of transparent huge pages, "madvise", waits for this request, which torch
# makes with THP_MEM_ALLOC_ENABLE=1 only.


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
