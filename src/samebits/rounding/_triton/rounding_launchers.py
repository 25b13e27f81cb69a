"""Launches the kernels; tensors as for `samebits.random._triton.launch`."""

from __future__ import annotations

import torch

from samebits.random._triton.launch import _rows
from samebits.rounding._cpu.number_formats import FORMATS
from samebits.rounding._triton import rounding_triton


def stochastic_round(key: torch.Tensor, source: torch.Tensor, out: torch.Tensor) -> None:
    """Rounds `source`, float32, to `out`; both contiguous and of one shape, key of shape (2,)."""
    form = FORMATS[out.dtype]
    if form.width == 2:
        _rows(rounding_triton.to_bfloat16, key, (out.view(torch.uint16), source), 8)
    else:
        codes = out.view(torch.uint8 if form.size == 1 else torch.uint16)
        constants = {
            "DIGITS": form.digits,
            "LEAST": form.least + 127,
            "OVERFLOW": form.overflow,
            "NAN": form.nan,
            "SIZE": form.size,
        }
        _rows(rounding_triton.to_format, key, (codes, source), 4, **constants)
