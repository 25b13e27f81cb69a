"""Products of matrices in tiles: one call of torch's own BLAS each, on one thread each, on torch's own threads."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits import _native as native
from samebits._native.kernel_threads import OnTeam, float32_at, float64_at, int64_at, on_team, symbol
from samebits._native.torch_threads import torch_cpu
from samebits.determinism._kernels.matmul.tiling import ceil, plan


def _gemm(name: str, itemsize: int) -> OnTeam | None:
    """Tiles of batched C = alpha A B + beta C by one BLAS function (column-major, 32-bit sizes)."""
    blas = symbol(torch_cpu, name, "void", *["int64"] * 13)
    alone = symbol(torch_cpu, "MKL_Set_Num_Threads_Local", "int32", "int32")
    if blas is None or alone is None:
        return None

    def tile(chunk: int, args: Any) -> None:
        # args: 1-3 A B C, 4-6 lda ldb ldc, 7-9 batch strides, 10-12 m n k, 13-15 tile m n k, 16-18 tiles in m n k,
        # 19 stride of C between parts of k, 20 two letters, 21 alpha, 22 beta, 23 batch, 24 batch items a chunk
        tiles = args[16] * args[17] * args[18]
        first = (chunk // tiles) * args[24]
        within = chunk % tiles
        part = within // (args[16] * args[17])
        i = within % args[16] * args[13]
        j = within // args[16] % args[17] * args[14]
        p = part * args[15]
        letters = native.carray(int64_at(args[20]), (2,))
        sizes = np.empty(6, np.int32)
        sizes[0] = min(args[13], args[10] - i)
        sizes[1] = min(args[14], args[11] - j)
        sizes[2] = min(args[15], args[12] - p)
        sizes[3], sizes[4], sizes[5] = args[4], args[5], args[6]
        at = sizes.ctypes.data
        a_moves = i * args[4] + p if letters[0] == _TRANSPOSED else i + p * args[4]
        b_moves = j + p * args[5] if letters[1] == _TRANSPOSED else j * args[5] + p
        before = alone(1)
        for item in range(first, min(first + args[24], args[23])):
            a = args[1] + itemsize * (item * args[7] + a_moves)
            b = args[2] + itemsize * (item * args[8] + b_moves)
            c = args[3] + itemsize * (item * args[9] + part * args[19] + i + j * args[6])
            blas(
                args[20], args[20] + 8, at, at + 4, at + 8, args[21], a, at + 12, b, at + 16, args[22], c, at + 20
            )  # fmt: skip
        alone(before)

    return on_team(tile, name=f"tile_{name}")


_TRANSPOSED = ord("T")
_PLAIN = ord("N")
_LETTERS = {
    (a, b): (
        letters := np.array((_TRANSPOSED if a else _PLAIN, _TRANSPOSED if b else _PLAIN), np.int64),
        letters.ctypes.data,
    )
    for a in (False, True)
    for b in (False, True)
}
_NUMPY = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.complex64: np.complex64,
    torch.complex128: np.complex128,
}
TILED = {
    torch.float32: _gemm("sgemm_", 4),
    torch.float64: _gemm("dgemm_", 8),
    torch.complex64: _gemm("cgemm_", 8),
    torch.complex128: _gemm("zgemm_", 16),
}


def _blas_matrix(x: Tensor) -> tuple[Tensor, bool, int]:
    """The last two dimensions of `x` as BLAS takes them: the tensor (copied if need be), transposed?, leading dimension."""
    rows, columns = x.shape[-2:]
    down, across = x.stride()[-2:]
    if across == 1 and down >= max(1, columns):
        return x, False, down
    if down == 1 and across >= max(1, rows):
        return x, True, across
    return x.contiguous(), False, max(1, columns)


def multiply(a: Tensor, b: Tensor, out: Tensor, alpha: Any = 1, beta: Any = 0) -> Tensor:
    """`out` (contiguous, rows x columns, perhaps batched) becomes alpha a b + beta out."""
    # Row-major C = A B is column-major C' = B' A': the second factor comes first.
    n, m = out.shape[-2:]
    batch = out.shape[0] if out.dim() == 3 else 1
    first, first_transposed, lda = _blas_matrix(b)
    second, second_transposed, ldb = _blas_matrix(a)
    cut = plan(m, n, a.shape[-1], batch, second_transposed if n > m else not first_transposed)
    parts = cut.sizes[-1]
    if parts > 1 and batch > 1:  # few products, each with a long inner dimension: one after the other
        for item in range(batch):
            multiply(a[item], b[item], out[item], alpha, beta)
        return out
    target = out if parts == 1 else out.new_empty((parts, n, m))
    moves = (first.stride(0), second.stride(0), n * m) if batch > 1 else (0, 0, 0)
    scale = _scale(out.dtype, alpha, beta if parts == 1 else 0)
    TILED[out.dtype](  # type: ignore[misc]
        cut.chunks,
        *(first.data_ptr(), second.data_ptr(), target.data_ptr(), lda, ldb, m, *moves, *cut.sizes, n * m),
        *(_LETTERS[first_transposed, second_transposed][1], scale[1], scale[1] + out.element_size()),
        *(batch, cut.items),
    )
    if parts > 1:
        _into(out, target, beta)
    return out


@lru_cache(maxsize=256)
def _scale(dtype: torch.dtype, alpha: Any, beta: Any) -> tuple[Any, int]:
    """Alpha and beta in memory, and where."""
    both = np.array((alpha, beta), _NUMPY[dtype])
    return both, both.ctypes.data


def _into(out: Tensor, parts: Tensor, beta: Any) -> None:
    """`out` becomes the sum of `parts` (P x rows x columns, overwritten) + beta out."""
    numbers = torch.view_as_real(parts) if parts.is_complex() else parts
    length = numbers[0].numel()
    target = parts[0] if beta else out
    tree = _sum_parts_32 if numbers.dtype == torch.float32 else _sum_parts_64
    tree(ceil(length, _BLOCK), numbers.data_ptr(), target.data_ptr(), len(parts), length)
    if beta:
        out.mul_(beta).add_(target)


def _sum_parts(pointer: Any, name: str) -> OnTeam:
    def block(chunk: int, args: Any) -> None:
        count, length = args[3], args[4]
        start = chunk * _BLOCK
        stop = min(length, start + _BLOCK)
        parts = native.carray(pointer(args[1]), (count * length,))
        out = native.carray(pointer(args[2]), (length,))
        # Pairs, then pairs of pairs: the order depends on the number of parts alone.
        gap = 1
        while 2 * gap < count:
            for part in range(0, count - gap, 2 * gap):
                for i in range(start, stop):
                    parts[part * length + i] += parts[(part + gap) * length + i]
            gap *= 2
        for i in range(start, stop):
            out[i] = parts[i] + parts[gap * length + i]

    return on_team(block, name=name)


_BLOCK = 4096
_sum_parts_32 = _sum_parts(float32_at, "sum_parts_32")
_sum_parts_64 = _sum_parts(float64_at, "sum_parts_64")
