"""Stochastic rounding on the CPU."""

from __future__ import annotations

from typing import Any

import torch

from samebits._native import inlined
from samebits._native.kernel_threads import OnTeam, float32_at, uint8_at, uint16_at
from samebits.random._cpu.tiles import address
from samebits.rounding._cpu.bfloat16_vectors import stochastic_round_bfloat16
from samebits.rounding._cpu.number_formats import FORMATS, Format, rounding_to
from samebits.rounding._cpu.tile_passes import random_word, run, tile_kernel


def stochastic_round(key: torch.Tensor, source: torch.Tensor, out: torch.Tensor) -> None:
    """Rounds `source`, float32, to `out`. Both contiguous and of one shape; key of shape (2,), contiguous."""
    run(_KERNELS[out.dtype], address(key), source.numel(), address(source), address(out))


_READS = ((2, 4),)


def _kernel(form: Format) -> OnTeam:
    rounded_by, pointer = rounding_to(form), uint8_at if form.size == 1 else uint16_at

    @inlined
    def store(words: Any, count: Any, at: Any, row: Any) -> None:
        source, out = float32_at(row[2]), pointer(row[3])
        for j in range(count):
            out[at + j] = rounded_by(source[at + j], random_word(words, 0, j))

    return tile_kernel(store, (form.width,), _READS, f"stochastic_round_{form.name}")


_KERNELS = {
    dtype: stochastic_round_bfloat16 if dtype is torch.bfloat16 else _kernel(form)
    for dtype, form in FORMATS.items()
}
