"""Launches the kernels; tensors as for `samebits.random.triton.launch`."""

from __future__ import annotations

import torch

from samebits.random.triton.launch import _rows
from samebits.rounding._numbers import FORMATS
from samebits.rounding.triton import kernels


def stochastic_round(key: torch.Tensor, given: torch.Tensor, out: torch.Tensor) -> None:
    """Rounds `given`, float32, to `out`; both contiguous and of one shape, key of shape (2,)."""
    form = FORMATS[out.dtype]
    if form.width == 2:
        _rows(kernels.to_bfloat16, key, (out.view(torch.uint16), given), 8)
    else:
        codes = out.view(torch.uint8 if form.size == 1 else torch.uint16)
        constants = {
            "DIGITS": form.digits,
            "LEAST": form.least + 127,
            "OVERFLOW": form.overflow,
            "NAN": form.nan,
            "SIZE": form.size,
        }
        _rows(kernels.to_format, key, (codes, given), 4, **constants)
