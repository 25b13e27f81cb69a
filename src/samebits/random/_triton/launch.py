"""Launches the kernels: each function fills `out` from `keys`, (rows, 2) or (2,), its row k from key k,
as those on the CPU do.

All tensors are contiguous and on one CUDA device (or on the CPU under Triton's interpreter, where the tests
run).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor

import torch

from samebits.random._cpu.uniform_normal_kernels import DIGITS
from samebits.random._draws.feistel import _STREAM, ROUNDS, SHUFFLED_SIZE, grid_of
from samebits.random._triton import kernels
from samebits.random._triton.philox import PROGRAM_BLOCKS, launch, launch_rows

_UNSIGNED = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32, 8: torch.uint64}


def folded(keys: torch.Tensor, first: int, out: torch.Tensor) -> None:
    """Folds `first` + i into all `keys`, (keys, 2), for row i of `out`, (number, keys, 2)."""
    programs = -(-out.numel() // 2 // PROGRAM_BLOCKS)
    launch(kernels.folded, programs, keys, out, keys.shape[0], out.shape[0], first, BLOCKS=PROGRAM_BLOCKS)


def words(keys: torch.Tensor, out: torch.Tensor) -> None:
    """Writes the bytes of the keys' streams, to any integer dtype."""
    unsigned = out.view(_UNSIGNED[out.itemsize])
    launch_rows(kernels.words, keys, unsigned, 16 // out.itemsize, BYTES=out.itemsize)


def uniform(keys: torch.Tensor, low: float, span: float, out: torch.Tensor) -> None:
    """Writes uniform numbers x span + low; `low` and `span` are numbers of the dtype of `out`."""
    if out.dtype is torch.float64:
        launch_rows(kernels.uniform_64, keys, out, 2, low, span)
    else:
        launch_rows(kernels.uniform_32, keys, out, 4, low, span, DIGITS=DIGITS[out.dtype])


def normal(keys: torch.Tensor, mean: float, std: float, out: torch.Tensor) -> None:
    """Writes normal numbers z std + mean."""
    if out.dtype is torch.float64:
        launch_rows(kernels.normal_64, keys, out, 2, mean, std)
    else:
        launch_rows(kernels.normal_32, keys, out, 4, mean, std)


def bernoulli(keys: torch.Tensor, p: float | torch.Tensor, out: torch.Tensor) -> None:
    """Writes ones with probability `p`, else zeros; a tensor p is float64 and of the shape of `out`."""
    if isinstance(p, torch.Tensor):
        launch_rows(kernels.bernoulli_each, keys, (out, p), 4)
    elif p == 1:
        out.fill_(1)
    else:
        launch_rows(kernels.bernoulli, keys, out, 4, floor(p * 2**32))


def dropout(keys: torch.Tensor, given: torch.Tensor, p: float, scale: float, out: torch.Tensor) -> None:
    """Writes `given` (of the dtype of `out`, or `out`) times `scale`, or times 0 with probability p < 1."""
    launch_rows(kernels.dropout, keys, (out, given), 4, floor(p * 2**32), scale)


def transformed(name: str, keys: torch.Tensor, parameters: Sequence[float], out: torch.Tensor) -> None:
    """Writes exponential, Gumbel and truncated normal numbers; arguments as in `transformed_kernels`."""
    given = (*parameters, *[0.0] * (7 - len(parameters)))
    if out.dtype is torch.float64:
        launch_rows(kernels.transformed_64, keys, out, 2, *given, NAME=name)
    else:
        wide = name in ("truncated", "far_tail")
        launch_rows(kernels.transformed_32, keys, out, 4, *given, NAME=name, WIDE=wide)


def integers(keys: torch.Tensor, low: int, span: int, out: torch.Tensor) -> None:
    """Writes the integers low, ..., low + span - 1, which must fit the dtype of `out`; 1 <= span <= 2**64."""
    digits = 32 if span <= 2**32 else 64
    kernel = kernels.integers_32 if digits == 32 else kernels.integers_64
    launch_rows(kernel, keys, out, 128 // digits, low % 2**64, span - 1, (2**digits - span) % span)


def images(
    keys: torch.Tensor, n: int, out: torch.Tensor, *, start: int = 0, indices: torch.Tensor | None = None
) -> None:
    """Writes images of start, ..., or of int64 `indices` (number,), under key k to row k of int64 `out`."""
    if n <= SHUFFLED_SIZE:
        orders = torch.empty(keys.shape[0], n, dtype=torch.int64, device=out.device)
        launch(kernels.shuffle, keys.shape[0], _round_keys(keys, 1), orders, n, SIZE=SHUFFLED_SIZE)
        out.copy_(orders[:, start : start + out.shape[1]] if indices is None else orders[:, indices])
        return
    programs = keys.shape[0] * -(-out.shape[1] // PROGRAM_BLOCKS)
    grid = (start, n, *grid_of(n))
    constants = {"ROUNDS": ROUNDS, "GIVEN": indices is not None, "SIZE": PROGRAM_BLOCKS}
    given = out if indices is None else indices
    launch(kernels.permute, programs, _round_keys(keys, ROUNDS), given, out, out.shape[1], *grid, **constants)


def _round_keys(keys: torch.Tensor, rounds: int) -> torch.Tensor:
    """Returns the streams of the keys with the stream of permutations folded in, as uint64 (keys, rounds)."""
    own = torch.empty_like(keys)
    folded(keys, _STREAM, own.unsqueeze(0))
    stream = torch.empty(keys.shape[0], rounds, dtype=torch.uint64, device=keys.device)
    words(own, stream)
    return stream
