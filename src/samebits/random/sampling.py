"""Random tensors that are a function of a key: `bits`, `uniform`, `normal`.

Signatures, batched keys and the mapping from words to numbers follow `torch.func._random`. For a batch of keys of
shape (*batch, 2), batch is broadcast against the output's shape and has as many dimensions; its trailing ones are
drawn from one key.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import torch

from samebits.errors import InvalidArgumentError
from samebits.random import _distributions, _philox
from samebits.random.keys import check_key, uses_torch

# Bits of the word that a uniform number is made of: the precision of its dtype.
_DIGITS = {torch.float32: 24, torch.float64: 53, torch.float16: 11, torch.bfloat16: 8}
_INTEGERS = (
    torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64,
)  # fmt: skip


def bits(key: torch.Tensor, *shape: int | Sequence[int], dtype: torch.dtype = torch.uint32) -> torch.Tensor:
    """Uniform integers over the whole range of an integer dtype: the bytes of the key's stream, little-endian.

    Raises `InvalidArgumentError` for another dtype, a wrong key, or a key batch that does not fit the shape.
    """
    sizes = _sizes("bits", key, shape)
    if dtype not in _INTEGERS:
        raise InvalidArgumentError(f"bits: dtype must be an integer dtype, got {dtype}")
    uses_torch("bits", key, same_bits=False)
    keys, per_key = _rows("bits", key, sizes)
    used = per_key * dtype.itemsize
    stream = np.empty((keys.shape[0], -(-used // 4)), np.uint32)
    for (seed, offset), row in zip(keys.tolist(), stream, strict=True):
        _philox.fill_words(seed, offset, row)
    out = torch.from_numpy(stream).view(torch.uint8)
    if out.shape[1] != used:
        out = out[:, :used].contiguous()
    return out.view(dtype).view(sizes)


def uniform(
    key: torch.Tensor,
    *shape: int | Sequence[int],
    low: float = 0.0,
    high: float = 1.0,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Uniform numbers of [low, high), of dtype float32 by default; float64, float16 and bfloat16 are the others.

    As in torch, rounding x (high - low) + low to the dtype may give `high` itself unless low = 0 and high = 1.
    Raises `InvalidArgumentError` for another dtype, low > high, or a key batch that does not fit the shape.
    """
    sizes, dtype = _sizes("uniform", key, shape), _floating("uniform", dtype)
    if not low <= high:
        raise InvalidArgumentError(f"uniform: low must not be above high, got low={low}, high={high}")
    if uses_torch("uniform", key):
        out = torch.empty(sizes, dtype=dtype, device=key.device)
        return torch.ops.aten._philox_uniform_(out, key, low, high)
    kernel = _distributions.uniform_float64 if dtype is torch.float64 else _distributions.uniform_float32
    return _draw("uniform", kernel, key, sizes, dtype, parameters=_low_and_span(low, high, dtype))


def normal(
    key: torch.Tensor,
    *shape: int | Sequence[int],
    mean: float = 0.0,
    std: float = 1.0,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Normal numbers of this mean and standard deviation; dtypes as for `uniform`.

    The Box-Muller transform of torch's CUDA kernel on the same uniforms, evaluated in double precision without libm:
    the bits are those of every CPU, and within rounding (about 2**-21) of torch's on CUDA.
    Raises `InvalidArgumentError` for another dtype, std < 0, or a key batch that does not fit the shape.
    """
    sizes, dtype = _sizes("normal", key, shape), _floating("normal", dtype)
    if not std >= 0:
        raise InvalidArgumentError(f"normal: std must not be negative, got {std}")
    uses_torch("normal", key, same_bits=False)
    kernel = _distributions.normal_float64 if dtype is torch.float64 else _distributions.normal_float32
    return _draw("normal", kernel, key, sizes, dtype, parameters=(mean, std))


def _draw(
    what: str,
    kernel: Any,
    key: torch.Tensor,
    sizes: tuple[int, ...],
    dtype: torch.dtype,
    *,
    parameters: tuple[float, float],
) -> torch.Tensor:
    """Half precision is computed in float32 and rounded once, to nearest even."""
    keys, per_key = _rows(what, key, sizes)
    out = torch.empty(sizes, dtype=torch.float64 if dtype is torch.float64 else torch.float32)
    if out.numel():
        kernel(keys.numpy(), *parameters, 2 ** _DIGITS[dtype] - 1, out.view(keys.shape[0], per_key).numpy())
    return out.to(dtype)


@lru_cache(maxsize=64)
def _low_and_span(low: float, high: float, dtype: torch.dtype) -> tuple[float, float]:
    """As torch does: round both bounds, and then their difference, to the output's dtype."""
    bounds = torch.tensor([low, high], dtype=dtype)
    return bounds[0].item(), (bounds[1] - bounds[0]).item()


def _sizes(what: str, key: torch.Tensor, shape: tuple[Any, ...]) -> tuple[int, ...]:
    check_key(what, key)
    sizes = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], Sequence) else shape
    if any(size < 0 for size in sizes):
        raise InvalidArgumentError(f"{what}: a shape has no negative sizes, got {sizes}")
    return sizes


def _floating(what: str, dtype: torch.dtype | None) -> torch.dtype:
    if dtype is None:
        return torch.float32
    if dtype not in _DIGITS:
        raise InvalidArgumentError(
            f"{what}: dtype must be float32, float64, float16 or bfloat16, got {dtype}"
        )
    return dtype


def _rows(what: str, key: torch.Tensor, sizes: tuple[int, ...]) -> tuple[torch.Tensor, int]:
    """(keys of shape (rows, 2), elements per row)."""
    if key.dim() == 1:
        return key.contiguous().view(1, 2), prod(sizes)
    batch = tuple(key.shape[:-1])
    if len(batch) != len(sizes) or any(b not in (1, size) for b, size in zip(batch, sizes, strict=True)):
        raise InvalidArgumentError(
            f"{what}: a key batch of shape {batch} does not broadcast to the output's shape {sizes}; "
            "give the keys one dimension per output dimension, of its size or 1"
        )
    shared = len(batch)
    while shared and batch[shared - 1] == 1:
        shared -= 1
    one_each = (1,) * (len(batch) - shared)
    return key.expand(*sizes[:shared], *one_each, 2).reshape(-1, 2).contiguous(), prod(sizes[shared:])
