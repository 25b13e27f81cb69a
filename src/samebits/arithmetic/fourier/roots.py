"""Roots of unity, correctly rounded, from Python's integers, and the order in which kernels read them."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

_BITS, _GUARD = 192, 40
"""Bits of a fixed-point number, and those that are rounded away at the end: a zero is exact."""
_ONE = 1 << _BITS


def _arctangent_of_inverse(x: int) -> int:
    term, total, k = _ONE // x, 0, 1
    while term:
        total += term // k if k % 4 == 1 else -(term // k)
        term, k = term // (x * x), k + 2
    return total


_PI = 4 * (4 * _arctangent_of_inverse(5) - _arctangent_of_inverse(239))
"""Machin's formula."""


def _float(x: int) -> float:
    return math.ldexp(((x >> (_GUARD - 1)) + 1) >> 1, _GUARD - _BITS)


def _first_root(n: int) -> tuple[int, int]:
    """Returns cos and sin of 2 pi / n as fixed-point numbers, by their series."""
    angle, term, found, k = 2 * _PI // n, _ONE, [0, 0], 0
    while term:
        found[k % 2] += term if k % 4 < 2 else -term
        k += 1
        term = (term * angle >> _BITS) // k
    return found[0], found[1]


@lru_cache(maxsize=16)
def roots(n: int) -> Tensor:
    """Returns exp(-2 pi i k / n) for k = 0, ..., n - 1, in complex128."""
    cos, sin = _first_root(n)
    here, found = (_ONE, 0), []
    for _ in range(n // 2 + 1):
        found.append(complex(_float(here[0]), -_float(here[1])))
        here = (here[0] * cos - here[1] * sin) >> _BITS, (here[0] * sin + here[1] * cos) >> _BITS
    half = torch.tensor(found, dtype=torch.complex128)
    return torch.cat([half, half[1 : (n + 1) // 2].flip(0).conj().resolve_conj()])[:n]


@lru_cache(maxsize=16)
def roots_of(n: int, dtype: torch.dtype) -> Tensor:
    """Returns `roots`, rounded to another complex type."""
    return roots(n).to(dtype)


@lru_cache(maxsize=16)
def products_of_roots(a: int, b: int, dtype: torch.dtype) -> Tensor:
    """Returns the roots w^(j k) of length a b, (a, b)."""
    return roots(a * b)[torch.outer(torch.arange(a), torch.arange(b))].to(dtype)


@lru_cache(maxsize=16)
def chirp(n: int) -> Tensor:
    """Returns exp(-pi i j^2 / n) for j = 0, ..., n - 1, in complex128."""
    return roots(2 * n)[torch.arange(n).square() % (2 * n)]
