"""Rules of torch.func.vmap: a batch of keys is one call of the op, which draws each row as if alone.

The same key gives the same numbers, so that a key that is not batched draws the same for every sample.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Rule = Callable[..., tuple[torch.Tensor, int]]


def of_size(op: Any) -> Rule:
    """Returns the rule of an op (key, size, ...); one by one if another argument is a batch."""

    def rule(
        info: Any, in_dims: Any, key: torch.Tensor, size: list[int], *rest: Any
    ) -> tuple[torch.Tensor, int]:
        if any(dim is not None for dim in in_dims[2:]):
            return one_by_one(op)(info, in_dims, key, size, *rest)
        return op(_keys(key, in_dims[0], info.batch_size, len(size)), [info.batch_size, *size], *rest), 0

    return rule


def of_tensor(op: Any, trailing: int = 0) -> Rule:
    """Returns the rule of an op (key, size, x, ...), where x broadcasts to the size, apart from its `trailing` last dimensions."""

    def rule(
        info: Any, in_dims: Any, key: torch.Tensor, size: list[int], x: torch.Tensor, *rest: Any
    ) -> tuple[torch.Tensor, int]:
        keys = _keys(key, in_dims[0], info.batch_size, len(size))
        if in_dims[2] is not None:
            x = _pad_dims(x.movedim(in_dims[2], 0), 1, len(size) + trailing + 1)
        return op(keys, [info.batch_size, *size], x, *rest), 0

    return rule


def of_input(op: Any) -> Rule:
    """Returns the rule of an op (key, input, ...) that draws as many numbers as `input` has."""

    def rule(
        info: Any, in_dims: Any, key: torch.Tensor, given: torch.Tensor, *rest: Any
    ) -> tuple[torch.Tensor, int]:
        given = _batch_first(given, in_dims[1], info.batch_size)
        return op(_keys(key, in_dims[0], info.batch_size, given.dim() - 1), given, *rest), 0

    return rule


def of_keys(op: Any, out_dim: int = 0) -> Rule:
    """Returns the rule of an op (key, ...) that takes any batch of keys, and has it at `out_dim` of its result."""

    def rule(info: Any, in_dims: Any, key: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, int]:
        return op(key.movedim(in_dims[0], 0), *rest), out_dim

    return rule


def of_folded(op: Any) -> Rule:
    """Returns the rule of an op (key, x), where x broadcasts to the batch of keys."""

    def rule(info: Any, in_dims: Any, key: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        key, x = (_batch_first(t, dim, info.batch_size) for t, dim in zip((key, x), in_dims, strict=True))
        dims = max(key.dim() - 1, x.dim())
        return op(_pad_dims(key, 1, dims + 1), _pad_dims(x, 1, dims)), 0

    return rule


def one_by_one(op: Any) -> Rule:
    """Returns the rule of an op without batched form: called for every sample."""

    def rule(info: Any, in_dims: Any, *args: Any) -> tuple[torch.Tensor, int]:
        def sample(i: int) -> list[Any]:
            return [
                arg.select(dim, i) if isinstance(dim, int) else arg
                for arg, dim in zip(args, in_dims, strict=True)
            ]

        return torch.stack([op(*sample(i)) for i in range(info.batch_size)]), 0

    return rule


def _batch_first(x: torch.Tensor, dim: int | None, number: int) -> torch.Tensor:
    return x.expand(number, *x.shape) if dim is None else x.movedim(dim, 0)


def _keys(key: torch.Tensor, dim: int | None, number: int, dims: int) -> torch.Tensor:
    """Returns one key per sample for an output of `dims` dimensions, or one batch of keys per sample."""
    keys = _batch_first(key, dim, number)
    return _pad_dims(keys, 1, dims + 2) if keys.dim() == 2 else keys


def _pad_dims(x: torch.Tensor, at: int, dims: int) -> torch.Tensor:
    """Inserts dimensions of size 1 at `at` until there are `dims`."""
    return x.reshape(*x.shape[:at], *[1] * (dims - x.dim()), *x.shape[at:])
