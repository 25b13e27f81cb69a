"""Launches the kernels: each function fills `out` (rows, per_row) from `keys` (rows, 2), row r from key r.

Both are contiguous and on one CUDA device (or on the CPU under Triton's interpreter, where the tests run).
`enable_fp_fusion=False` keeps Triton and ptxas from contracting a multiplication and an addition that the CPU kernels
round separately; what must be fused says so (`fma`).
"""

from __future__ import annotations

from typing import Any

import torch

from samebits.random.triton.kernels import fill, integers, permute

_BLOCKS = 256
"""Philox blocks per program: of four words each, eight numbers of 32 bits for each of 128 threads."""
_DIGITS = {torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}


def words(keys: torch.Tensor, out: torch.Tensor) -> None:
    """The keys' streams, to uint32."""
    _rows(fill.words, keys, out, 4)


def uniform(keys: torch.Tensor, low: float, span: float, out: torch.Tensor) -> None:
    """Uniform numbers; `low` and `span` are rounded to the dtype of `out`."""
    if out.dtype is torch.float64:
        _rows(fill.uniform_64, keys, out, 2, low, span)
    else:
        _rows(fill.uniform_32, keys, out, 4, low, span, DIGITS=_DIGITS[out.dtype])


def integers_below(keys: torch.Tensor, low: int, span: int, out: torch.Tensor) -> None:
    """The integers low, ..., low + span - 1, which must fit the dtype of `out`; 1 <= span <= 2**64."""
    digits = 32 if span <= 2**32 else 64
    kernel = integers.integers_32 if digits == 32 else integers.integers_64
    _rows(kernel, keys, out, 128 // digits, low % 2**64, span - 1, (2**digits - span) % span)


def images(
    round_keys: torch.Tensor, n: int, grid: tuple[int, int], start: int | torch.Tensor, out: torch.Tensor
) -> None:
    """Row k of `out`, int64 (keys, number): images of start, start + 1, ..., or of an int64 tensor (number,), under key k.

    `round_keys` is uint64 (keys, rounds), `grid` the rows and columns of the Feistel network for range(n).
    """
    keys, number = out.shape
    given = isinstance(start, torch.Tensor)
    indices, first = (start, 0) if given else (out, start)
    constants = {"ROUNDS": round_keys.shape[1], "GIVEN": given, "SIZE": _BLOCKS}
    _launch(
        permute.permute,
        keys * -(-number // _BLOCKS),
        round_keys,
        indices,
        out,
        number,
        first,
        n,
        *grid,
        **constants,
    )


def shuffles(round_keys: torch.Tensor, out: torch.Tensor) -> None:
    """Fisher and Yates's shuffle of range(n) under the first of each key's rounds; `out` is int64 (keys, n), n <= 64."""
    _launch(permute.shuffle, out.shape[0], round_keys, out, out.shape[1], SIZE=64)


def _rows(
    kernel: Any, keys: torch.Tensor, out: torch.Tensor, per_block: int, *parameters: Any, **constants: Any
) -> None:
    rows, per_row = out.shape
    programs = -(-rows * -(-per_row // per_block) // _BLOCKS)
    constants |= {"BLOCKS": _BLOCKS, "ONE_KEY": rows == 1}
    _launch(kernel, programs, keys, out, rows, per_row, *parameters, **constants)


def _launch(kernel: Any, programs: int, keys: torch.Tensor, *arguments: Any, **constants: Any) -> None:
    if programs:
        with torch.cuda.device_of(keys):
            kernel[(programs,)](keys, *arguments, **constants, enable_fp_fusion=False)
