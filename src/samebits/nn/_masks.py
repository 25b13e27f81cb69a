"""Masks of a key, and the check of every probability of a layer."""

from __future__ import annotations

import math
from typing import Any

import torch

from samebits import random
from samebits.errors import InvalidArgumentError

_LARGE = 1 << 16
"""Elements from which backward draws a mask again; a custom function costs as much as drawing 10,000."""


def probability(layer: torch.nn.Module, p: Any) -> float:
    """Returns the current `p`, which users may change. Raises `InvalidArgumentError` unless 0 <= p <= 1."""
    if not 0.0 <= p <= 1.0:
        raise InvalidArgumentError(
            f"samebits.nn.{type(layer).__name__} has p = {p}: a probability is at least 0 and at most 1."
        )
    return float(p)


def non_negative(layer: torch.nn.Module, name: str, value: Any) -> float:
    """Returns a scale's current value. Raises `InvalidArgumentError` unless it is finite and at least 0."""
    if not 0.0 <= value < math.inf:
        raise InvalidArgumentError(
            f"samebits.nn.{type(layer).__name__} has {name} = {value}: it must be finite and at least 0."
        )
    return float(value)


def keep_mask(key: torch.Tensor, shape: tuple[int, ...], p: float, like: torch.Tensor) -> torch.Tensor:
    """Returns 0 where `bernoulli(key, shape, p=p)` is 1 (so does `random.dropout`), else 1; as `like`."""
    dropped = random.bernoulli(key, shape, p=p, dtype=torch.bool)
    return dropped.logical_not().to(like.device, like.dtype)


def uniform(
    key: torch.Tensor, shape: tuple[int, ...], like: torch.Tensor, *, low: float = 0.0, high: float = 1.0
) -> torch.Tensor:
    """Returns uniform numbers of [low, high), of the dtype and device of `like`."""
    return random.uniform(key, shape, low=low, high=high, dtype=like.dtype, device=like.device)


def dropout(key: torch.Tensor, input: torch.Tensor, p: float, *, inplace: bool = False) -> torch.Tensor:  # noqa: A002
    """Returns `random.dropout`: the same bits, cheaper for small inputs, whose masks backward stores."""
    large = torch.compiler.is_dynamo_compiling() or input.numel() >= _LARGE
    # the dtypes of `random.dropout` are the floating ones of two bytes and more
    if large and key.device == input.device and input.is_floating_point() and input.element_size() > 1:
        return random.dropout(key, input, p, inplace=inplace)
    return scale_by_mask(input, keep_mask(key, tuple(input.shape), p, input), p, inplace=inplace)


def scale_by_mask(input: torch.Tensor, mask: torch.Tensor, p: float, *, inplace: bool) -> torch.Tensor:  # noqa: A002
    """Returns `input` times the mask over its share of ones; zeros (NaN of NaN) without ones, as torch."""
    noise = mask.div_(1.0 - p) if p < 1.0 else mask
    return input.mul_(noise) if inplace else input * noise
