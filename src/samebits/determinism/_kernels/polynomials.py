"""Orthogonal polynomials of NaN (`torch.special.legendre_polynomial_p` and its family).

torch's recurrence stops at a NaN before its first term, and then returns a variable that nobody wrote
(aten/src/ATen/native/Math.h, torch 2.13). Other arguments keep torch's bits.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from samebits.determinism._dispatcher import Kernel
from samebits.determinism._replacement import replacements

NAMES = (
    *(f"{shifted}chebyshev_polynomial_{kind}" for shifted in ("", "shifted_") for kind in "tuvw"),
    *("hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"),
)


def _with_nan(kernel: Kernel) -> Kernel:
    def polynomial(x: Tensor | float, n: Tensor | float, **out: Any) -> Tensor:
        x, n = _tensor(x, n), _tensor(n, x)
        result = kernel(x, n, **out)
        return result.masked_fill_(x.isnan() & (n >= 1), math.nan) if x.is_floating_point() else result

    return polynomial


def _tensor(value: Tensor | float, other: Tensor | float) -> Tensor:
    """Returns a number, as in `f(x, 3)`, as a tensor that does not change the result's dtype."""
    if isinstance(value, Tensor):
        return value
    floats = isinstance(other, Tensor) and other.is_floating_point()
    return torch.tensor(value, dtype=other.dtype if floats else None)  # type: ignore[union-attr]


REPLACEMENTS = replacements(
    [f"special_{name}{form}" for name in NAMES for form in ("", ".out")],
    _with_nan,
    "of NaN and a degree from 1 on torch returns what its memory holds; ours: NaN",
)
