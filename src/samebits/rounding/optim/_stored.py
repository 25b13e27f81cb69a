"""Weights and state are read as float32, and written rounded by a stream's words; kernels and tensor ops."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from functools import cached_property
from typing import Any

import torch

from samebits._context import Words
from samebits._native import inlined
from samebits._native.float_bits import of_bfloat16, of_float16
from samebits._native.kernel_threads import as_argument, float32_at, uint16_at
from samebits.random import _int_keys as int_keys
from samebits.rounding._cpu.number_formats import FORMATS, bfloat16_by, rounding_to
from samebits.rounding._cpu.tile_passes import random_half, random_word
from samebits.rounding._stochastic_round import round_into


@dataclass(frozen=True)
class Stored:
    """A dtype in kernels: a pointer to it, `load` as float32, and `rounded(x, tile, stream, j)`."""

    pointer: Any
    load: Any
    rounded: Any
    width: int
    """Bytes for each element of the stream that rounds it; 0 if none is needed."""


@inlined
def _identity(x: Any) -> Any:
    return x


@inlined
def _as_it_is(x: Any, tile: Any, stream: Any, j: Any) -> Any:
    return x


@inlined
def _to_bfloat16(x: Any, tile: Any, stream: Any, j: Any) -> Any:
    return bfloat16_by(x, random_half(tile, stream, j))


_float16_by = rounding_to(FORMATS[torch.float16])


@inlined
def _to_float16(x: Any, tile: Any, stream: Any, j: Any) -> Any:
    return _float16_by(x, random_word(tile, stream, j))


STORED = {
    torch.float32: Stored(float32_at, _identity, _as_it_is, 0),
    torch.bfloat16: Stored(uint16_at, of_bfloat16, _to_bfloat16, FORMATS[torch.bfloat16].width),
    torch.float16: Stored(uint16_at, of_float16, _to_float16, FORMATS[torch.float16].width),
}


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def store(out: torch.Tensor, x: torch.Tensor, key: Words) -> None:
    """Writes `x`, float32, to `out` as the kernels do, with tensor ops and on any device."""
    if out.dtype is torch.float32:
        out.copy_(x)
    else:
        round_into(out, x, int_keys.to_tensor(key, out.device))


@dataclass(frozen=True)
class Factors:
    """The factors of a step; each is rounded to float32 where it is used."""

    @cached_property
    def pack(self) -> tuple[int, ...]:
        """Returns the factors as the kernel's arguments, in their order."""
        return tuple(map(as_argument, astuple(self)))
