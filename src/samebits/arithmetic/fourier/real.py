"""Real numbers of even length n = 2 m: their transform from that of m complex numbers, and back.

z[j] = x[2 j] + i x[2 j + 1], Z its transform, w = exp(-2 pi i / n), e = Z[k] + conj(Z[m - k]), d = Z[k] -
conj(Z[m - k]), Z[m] = Z[0]: X[k] = e / 2 - i w^k d / 2, for k = 0, ..., m, times the factor of the
normalization. Z is halved first, so that no sum overflows. Back: Z[k] = e + i conj(w^k) d with e and d of X,
for k = 0, ..., m - 1, where X[0] and X[m] are taken as real numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from samebits import _native as native
from samebits._native import inlined, vectors
from samebits._native.kernel_threads import OnTeam, float32_at, float64_at, on_team, variants
from samebits.arithmetic.fourier.passes import ELEMENTS
from samebits.arithmetic.fourier.roots import roots_of
from samebits.arithmetic.reductions.tensors import bits_of

_GRAIN = 1 << 13
"""Complex numbers of a chunk, about."""
_fma, _one_nan = vectors.fma, vectors.one_nan


@inlined
def _times(real: Any, imaginary: Any, w_real: Any, w_imaginary: Any) -> Any:
    """The product of two complex numbers."""
    return _fma(real, w_real, -(imaginary * w_imaginary)), _fma(real, w_imaginary, imaginary * w_real)


@variants(element=("float32", "float64"))
def _forward(element: str) -> OnTeam:
    """args: 1-3 addresses of the rows that are read, of those that are written, and of the roots; 4 m; 5
    rows; 6 rows of a chunk; 7 the factor's bits.
    """
    real, numbers_at = getattr(np, element), {"float32": float32_at, "float64": float64_at}[element]
    half = real(0.5)

    @inlined
    def number(z: Any, y: Any, w: Any, k: Any, here: Any, there: Any, factor: Any) -> None:
        a, b = z[here, 0] * half, z[here, 1] * half
        c, d = z[there, 0] * half, z[there, 1] * half
        e_real, e_imaginary = a + c, b - d
        t_real, t_imaginary = _times(a - c, b + d, w[k, 0], w[k, 1])
        y[k, 0] = _one_nan((e_real + t_imaginary) * factor)
        y[k, 1] = _one_nan((e_imaginary - t_real) * factor)

    def rows(chunk: int, args: Any) -> None:
        m, factor = args[4], real(vectors.float64_of_bits(args[7]))
        w = native.carray(numbers_at(args[3]), (m + 1, 2))
        for row in range(chunk * args[6], min(args[5], (chunk + 1) * args[6])):
            z = native.carray(numbers_at(args[1]), (args[5], m, 2))[row]
            y = native.carray(numbers_at(args[2]), (args[5], m + 1, 2))[row]
            number(z, y, w, 0, 0, 0, factor)
            number(z, y, w, m, 0, 0, factor)
            for k in range(1, m):
                number(z, y, w, k, k, m - k, factor)

    return on_team(rows, name=f"real_forward_{element}")


@variants(element=("float32", "float64"))
def _back(element: str) -> OnTeam:
    """args: as of `_forward`, without a factor."""
    numbers_at = {"float32": float32_at, "float64": float64_at}[element]

    def rows(chunk: int, args: Any) -> None:
        m = args[4]
        w = native.carray(numbers_at(args[3]), (m + 1, 2))
        for row in range(chunk * args[6], min(args[5], (chunk + 1) * args[6])):
            x = native.carray(numbers_at(args[1]), (args[5], m + 1, 2))[row]
            z = native.carray(numbers_at(args[2]), (args[5], m, 2))[row]
            z[0, 0], z[0, 1] = x[0, 0] + x[m, 0], x[0, 0] - x[m, 0]
            for k in range(1, m):
                e_real, e_imaginary = x[k, 0] + x[m - k, 0], x[k, 1] - x[m - k, 1]
                d_real, d_imaginary = x[k, 0] - x[m - k, 0], x[k, 1] + x[m - k, 1]
                t_real, t_imaginary = _times(d_real, d_imaginary, w[k, 0], -w[k, 1])
                z[k, 0], z[k, 1] = e_real - t_imaginary, e_imaginary + t_real

    return on_team(rows, name=f"real_back_{element}")


def _run(kernel: OnTeam, x: Tensor, y: Tensor, m: int, factor: float) -> Tensor:
    rows = x.shape[0]
    piece = max(1, _GRAIN // (m + 1))
    table = roots_of(2 * m, x.dtype)
    addresses = x.data_ptr(), y.data_ptr(), table.data_ptr()
    kernel(-(-rows // piece), *addresses, m, rows, piece, bits_of(factor))
    return y


def half_of_real(z: Tensor, factor: float) -> Tensor:
    """Returns the first m + 1 of n results (rows, m + 1) of real numbers times a factor, from Z (rows, m)."""
    m = z.shape[1]
    return _run(_forward(ELEMENTS[z.dtype]), z, z.new_empty(len(z), m + 1), m, factor)


def complex_of_half(x: Tensor) -> Tensor:
    """Returns Z (rows, m), whose inverse transform has the real numbers, from the first m + 1 results."""
    m = x.shape[1] - 1
    return _run(_back(ELEMENTS[x.dtype]), x, x.new_empty(len(x), m), m, 1.0)
