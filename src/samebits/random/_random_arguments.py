"""The checks of arguments of samebits.random, and the rows of a batch of keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch.autograd.graph import increment_version

from samebits.errors import InvalidArgumentError
from samebits.random._keys import check_key

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (
    torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64,
)  # fmt: skip

_INTEGER = (int, torch.SymInt)


def sizes(caller: str, key: torch.Tensor, shape: tuple[Any, ...]) -> tuple[int, ...]:
    """Returns a shape's sizes, integers or a sequence. Raises `InvalidArgumentError` for it or the key."""
    check_key(caller, key)
    given = shape[0] if len(shape) == 1 and not isinstance(shape[0], _INTEGER) else shape
    try:
        checked = tuple(_sizes_of(given) if isinstance(given, torch.Size) else torch.Size(given))
    except TypeError:
        raise InvalidArgumentError(
            f"{caller}: a shape is given as integers or one sequence of them, got {given!r}"
        ) from None
    for size in checked:
        if size < 0:
            raise InvalidArgumentError(f"{caller}: a shape has no negative sizes, got {checked}")
    return checked


def _sizes_of(size: torch.Size) -> torch.Size:
    """Returns a tensor's sizes, also symbolic; numbers for torch.jit.trace, which does not record them."""
    return torch.Size([int(number) for number in size]) if torch.jit.is_tracing() else size


def floating_dtype(caller: str, dtype: torch.dtype | None) -> torch.dtype:
    """Returns the dtype, float32 for None. Raises `InvalidArgumentError` unless it is a floating dtype."""
    if dtype is None:
        return torch.float32
    if dtype not in FLOATS:
        raise InvalidArgumentError(
            f"{caller}: dtype must be float32, float64, float16 or bfloat16, got {dtype}"
        )
    return dtype


def rows(caller: str, key: torch.Tensor, shape: Sequence[int]) -> tuple[torch.Tensor, int]:
    """Returns (keys (rows, 2), elements per row). Raises `InvalidArgumentError` if keys do not fit."""
    if key.dim() == 1:
        return key.contiguous().view(1, 2), prod(shape)
    batch = tuple(key.shape[:-1])
    if len(batch) != len(shape) or any(b not in (1, size) for b, size in zip(batch, shape, strict=True)):
        raise InvalidArgumentError(
            f"{caller}: a key batch of shape {batch} does not broadcast to the output's shape "
            f"{tuple(shape)}; give the keys one dimension per output dimension, of its size or 1"
        )
    shared = len(batch)
    while shared and batch[shared - 1] == 1:
        shared -= 1
    one_each = (1,) * (len(batch) - shared)
    return key.expand(*shape[:shared], *one_each, 2).reshape(-1, 2).contiguous(), prod(shape[shared:])


def row_keys(caller: str, key: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Returns the keys of `rows`, or one key of shape (2,), which costs less."""
    return key.contiguous() if key.dim() == 1 else rows(caller, key, shape)[0]


def check_result(
    caller: str, key: torch.Tensor, result: torch.Tensor, dtypes: tuple[torch.dtype, ...]
) -> None:
    """Raises `InvalidArgumentError` unless `result` can be written: type, dtype, device, gradient."""
    check_key(caller, key)
    if not isinstance(result, torch.Tensor):
        raise InvalidArgumentError(
            f"{caller}: result must be a tensor, got {result!r} ({type(result).__name__})"
        )
    if result.dtype not in dtypes:
        named = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise InvalidArgumentError(
            f"{caller}: result must be of one of the dtypes {named}; got {result.dtype}"
        )
    if result.device != key.device:
        raise InvalidArgumentError(
            f"{caller}: key and result must be on one device, got a key on {key.device} and a result on "
            f"{result.device}; move the key: key.to({str(result.device)!r})"
        )
    if result.requires_grad and torch.is_grad_enabled():
        raise InvalidArgumentError(
            f"{caller}: result requires grad, and drawing has no gradient; call it under torch.no_grad()"
        )


def check_probability(caller: str, p: float) -> float:
    """Returns `p` as a float. Raises `InvalidArgumentError` unless it is a number with 0 <= p <= 1."""
    if not isinstance(p, int | float):
        raise InvalidArgumentError(
            f"{caller}: p must be a number or a tensor, got {p!r} ({type(p).__name__})"
        )
    if not 0 <= p <= 1:
        raise InvalidArgumentError(f"{caller}: p must be a probability, 0 <= p <= 1, got {p}")
    return float(p)


def write(out: torch.Tensor, fill: Callable[..., None], *args: Any) -> torch.Tensor:
    """Calls `fill(*args, out)`, by a contiguous tensor if need be; autograd sees that `out` was written."""
    if not out.is_contiguous() or out.is_neg():
        contiguous = torch.empty(out.shape, dtype=out.dtype, device=out.device)
        fill(*args, contiguous)
        return out.copy_(contiguous)
    fill(*args, out)
    if not out.is_inference():
        increment_version(out)
    return out
