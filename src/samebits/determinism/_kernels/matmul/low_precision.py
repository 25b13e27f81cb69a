"""Products of bfloat16 and float16 matrices: cut by size into columns of the result, each done by oneDNN on one thread.

oneDNN blocks a product by the thread count, and with it changes the bits: which products differs from one CPU to the
next (with AMX half of those with an inner dimension over 1,024, in any layout; with plain AVX-512 a tenth, also short
ones), so none is left to it whole. The inner dimension is never cut, since parts of a sum would be rounded twice.
"""

from __future__ import annotations

import ctypes
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from samebits._native.torch_threads import torch_cpu
from samebits.determinism._kernels import openmp_tasks

_PARTS = 8
"""Parts of a product, at most: each costs some 30 us of calls, and reads the first factor again."""
_NARROW = 192
"""Columns (or rows) of a part, at least: with AMX, parts of 96 take 1.3 times as long in all."""
_COLUMNS = 64
"""Parts begin at multiples of this."""
_FLAT = 128
"""Rows of a first factor that is worth a second one read in parts of its rows: with fewer, oneDNN takes 4 times as long."""
_ADDRESS = ctypes.sizeof(ctypes.c_void_p)


@cache
def _part(dtype: torch.dtype) -> int:
    """Multiply-adds of a part, at least: some 0.2 ms. Of the CPU it depends on what this costs, nothing else."""
    with_amx = {
        torch.bfloat16: torch.cpu._is_amx_tile_supported,
        torch.float16: torch.cpu._is_amx_fp16_supported,
    }
    return 1 << (27 if with_amx[dtype]() else 23)


@cache
def _with_onednn() -> frozenset[torch.dtype]:
    """The short types that oneDNN multiplies on this machine; torch's own loops do not look at the thread count."""
    supported = {
        torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported(),
        torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported(),
    }
    return frozenset(dtype for dtype, with_onednn in supported.items() if with_onednn)


def by_onednn(dtype: torch.dtype) -> bool:
    """Returns True if torch leaves products of matrices of this type to oneDNN."""
    return dtype in _with_onednn() and torch._C._get_mkldnn_enabled()


@cache
def _matmul() -> Any:
    """`at::native::mkldnn_matmul(a, b, out, beta, alpha)`, None in a torch without it.

    Returns the function that torch's own kernels call. Those cannot be called from several threads: under an override
    of ours they hold the GIL, and what a dispatcher's call finds is the override.
    """
    function = getattr(torch_cpu, "_ZN2at6native13mkldnn_matmulERKNS_6TensorES3_S3_ff", None)
    if function is not None:
        function.argtypes = (*[ctypes.c_void_p] * 3, ctypes.c_float, ctypes.c_float)
        function.restype = None
    return function


def _into(a: Tensor, b: Tensor, out: Tensor, alpha: float, beta: float) -> None:
    """`out` becomes alpha a b + beta out."""
    # A tensor of C++ is a pointer to what `_cdata` is the address of.
    tensors = (ctypes.c_void_p * 3)(a._cdata, b._cdata, out._cdata)
    first = ctypes.addressof(tensors)
    _matmul()(first, first + _ADDRESS, first + 2 * _ADDRESS, beta, alpha)


@cache
def smallest(dtype: torch.dtype) -> int:
    """Multiply-adds of the smallest product that is cut; 0 if torch has loops of its own for this type."""
    return 2 * _part(dtype) if dtype in _with_onednn() else 0


def _parts(m: int, n: int, k: int, batch: int, dtype: torch.dtype) -> tuple[int, int]:
    """Returns the number of parts, and the dimension of the result that is cut: items of a batch, else columns, else rows."""
    parts = min(_PARTS, batch * m * n * k // _part(dtype))
    if batch > 1:
        return min(parts, batch), -3
    if n >= 2 * _NARROW:
        return min(parts, n // _NARROW), -1
    return min(parts, m // _NARROW), -2


def _is_swapped(a: Tensor, b: Tensor) -> bool:
    """Returns True if the transposed product is faster: oneDNN transposes the first factor for each part, better the
    smaller one.

    It costs a transposed copy of the result.
    """
    if a.dim() > 2 or a.is_contiguous() or b.t().is_contiguous():
        return False
    (m, k), n = a.shape, b.shape[1]
    return (m - n) * k > m * n


def is_cut(a: Tensor, b: Tensor) -> bool:
    """Returns True if a product of matrices of one type (or of equal batches of them) is worth cutting."""
    if _is_swapped(a, b):
        a, b = b.t(), a.t()
    batch = a.shape[0] if a.dim() == 3 else 1
    parts, dim = _parts(a.shape[-2], b.shape[-1], a.shape[-1], batch, a.dtype)
    if parts < 2 or _matmul() is None:
        return False
    if dim == -2:
        return a.is_contiguous() and b.shape[-1] > 1
    return dim == -3 or a.shape[-2] >= _FLAT or b.mT.is_contiguous()


def _dense(x: Tensor) -> Tensor:
    """The matrices, copied unless rows or columns are without gaps: others oneDNN may not know."""
    rows, columns = x.shape[-2:]
    down, across = x.stride()[-2:]
    return x if (across == 1 and down >= columns) or (down == 1 and across >= rows) else x.contiguous()


def multiply(a: Tensor, b: Tensor, out: Tensor, alpha: float = 1, beta: float = 0) -> None:
    """`out` (contiguous, rows x columns, perhaps batched) becomes alpha a b + beta out."""
    if a.dim() == 3 and len(a) == 1:
        a, b, out = a[0], b[0], out[0]
    if beta == 0 and _is_swapped(a, b):
        transposed = out.new_empty((out.shape[1], out.shape[0]))
        multiply(b.t(), a.t(), transposed, alpha)
        out.copy_(transposed.t())
        return
    batch = len(a) if a.dim() == 3 else 1
    parts, dim = _parts(a.shape[-2], b.shape[-1], a.shape[-1], batch, a.dtype)
    # Rows of a factor that is stored by columns are slow, whole columns are not.
    a, b = a.contiguous() if dim == -2 else _dense(a), _dense(b)
    unit = 1 if dim == -3 else _COLUMNS
    length = out.shape[dim]
    width = -(-length // (parts * unit)) * unit

    def part(start: int) -> None:
        size = min(width, length - start)
        first = a if dim == -1 else a.narrow(dim, start, size)
        second = b if dim == -2 else b.narrow(dim, start, size)
        _into(first, second, out.narrow(dim, start, size), alpha, beta)

    openmp_tasks.run([partial(part, start) for start in range(0, length, width)])
