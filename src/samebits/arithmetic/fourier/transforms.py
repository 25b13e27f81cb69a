"""Transforms of tensors along their dimensions: `definition`."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from samebits.arithmetic.fourier.definition import RADICES, SPLIT
from samebits.arithmetic.fourier.passes import LANES, Columns, factors, transform
from samebits.arithmetic.fourier.real import complex_of_half, half_of_real
from samebits.arithmetic.fourier.roots import chirp, products_of_roots
from samebits.arithmetic.product.packing import two_by_two

_CIRCLES = 1 << 15
"""Numbers of the circles that are convolved at a time, about."""


def _by_passes(x: Tensor, factor: float, *, inverse: bool) -> Tensor:
    """Transforms the rows (rows, n)."""
    rows, n = x.shape
    out = torch.empty_like(x)
    if n < SPLIT:
        whole = Columns(x, (0, 1, n)), Columns(out, (0, 1, n)), (1, n, rows)
        transform(*whole, factor=factor, exchange=(inverse, inverse))
        return out
    a = next(a for a in range(math.isqrt(n), 0, -1) if n % a == 0)
    b, middle = n // a, torch.empty_like(x)
    transform(
        Columns(x, (n, b, 1)),
        Columns(middle, (n, b, 1)),
        (rows, a, b),
        exchange=(inverse, False),
        results=products_of_roots(a, b, x.dtype),
        step=b,
    )
    parts = Columns(middle, (n, 1, b)), Columns(out, (n, a, 1)), (rows, b, a)
    transform(*parts, factor=factor, exchange=(False, inverse))
    return out


def _times(
    x: Tensor, w: Tensor, out: Tensor, factor: float = 1.0, exchange: tuple[bool, bool] = (False, False)
) -> None:
    """Multiplies the first columns of rows by roots."""
    rows, columns = x.stride(0), out.stride(0)
    sizes = x.shape[0], 1, len(w)
    transform(
        Columns(x, (rows, 0, 1)),
        Columns(out, (columns, 0, 1)),
        sizes,
        passes=False,
        factor=factor,
        exchange=exchange,
        results=w,
    )


@lru_cache(maxsize=16)
def _convolver(n: int, size: int) -> Tensor:
    """Returns the transform of the inverse chirp, in a circle of that size."""
    w, circle = chirp(n).conj().resolve_conj(), torch.zeros(1, size, dtype=torch.complex128)
    circle[0, :n] = w
    circle[0, size - n + 1 :] = w[1:].flip(0)
    return _by_passes(circle, 1.0, inverse=False)[0]


def _by_convolution(x: Tensor, factor: float, *, inverse: bool) -> Tensor:
    """Transforms rows (rows, n) of any length (Bluestein, 1970)."""
    rows, n = x.shape
    size = 1 << (2 * n - 2).bit_length()
    w, out = chirp(n), torch.empty_like(x)
    some = max(1, _CIRCLES // size)  # rows at a time, which stay in the cache
    circles = torch.zeros(min(rows, some), size, dtype=torch.complex128)
    for start in range(0, rows, some):
        here, circle = x[start : start + some].to(torch.complex128), circles[: rows - start]
        _times(here, w, circle, exchange=(inverse, False))
        found = _by_passes(circle, 1.0, inverse=False)
        _times(found, _convolver(n, size), found)
        found = _by_passes(found, 1.0 / size, inverse=True)
        made = torch.empty_like(here)
        _times(found, w, made, factor, (False, inverse))
        out[start : start + some] = made
    return out


def _has_passes(n: int) -> bool:
    return all(radix in RADICES for radix in factors(n))


def _rows(x: Tensor, factor: float, *, inverse: bool) -> Tensor:
    by = _by_passes if _has_passes(x.shape[1]) else _by_convolution
    return by(x, factor, inverse=inverse)


def complex_transform(x: Tensor, axis: int, factor: float = 1.0, *, inverse: bool) -> Tensor:
    """Transforms complex numbers along one dimension; contiguous, not empty, as the result."""
    n, inner = x.shape[axis], math.prod(x.shape[axis + 1 :])
    if inner == 1:
        return _rows(x.view(-1, n), factor, inverse=inverse).view(x.shape)
    if n < SPLIT and inner >= LANES and _has_passes(n):
        out = torch.empty_like(x)
        strides = n * inner, inner, 1
        sizes = x.numel() // strides[0], n, inner
        transform(
            Columns(x, strides), Columns(out, strides), sizes, factor=factor, exchange=(inverse, inverse)
        )
        return out
    moved = x.movedim(axis, -1).contiguous()
    made = _rows(moved.view(-1, n), factor, inverse=inverse).view(moved.shape)
    return made.movedim(-1, axis).contiguous()


def real_transform(x: Tensor, factor: float = 1.0) -> Tensor:
    """Returns the first n // 2 + 1 results along the last dimension of contiguous real numbers, not empty."""
    n = x.shape[-1]
    rows = x.view(-1, n)
    if n % 2 == 0:
        pairs = two_by_two(x, x.dtype.to_complex())
        z = _rows(pairs.view(-1, n // 2), 1.0, inverse=False)
        return half_of_real(z, factor).view(*x.shape[:-1], n // 2 + 1)
    made = _rows(torch.complex(rows, torch.zeros_like(rows)), factor, inverse=False)
    return made[:, : n // 2 + 1].contiguous().view(*x.shape[:-1], n // 2 + 1)


def real_inverse(x: Tensor, n: int, factor: float = 1.0) -> Tensor:
    """Returns n real numbers along the last dimension whose first results are contiguous `x`, not empty."""
    rows = x.view(-1, n // 2 + 1)
    if n % 2 == 0:
        made = torch.view_as_real(_rows(complex_of_half(rows), factor, inverse=True))
        return made.view(*x.shape[:-1], n)
    rows = torch.cat([rows, rows[:, 1:].flip(1).conj()], 1).resolve_conj()
    torch.view_as_real(rows)[:, 0, 1] = 0.0
    return _rows(rows, factor, inverse=True).real.contiguous().view(*x.shape[:-1], n)
