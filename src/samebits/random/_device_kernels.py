"""The choice of kernels by a key's device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from samebits.errors import UnimplementedError
from samebits.random._cpu import (
    bernoulli_masks,
    bounded_integers,
    philox,
    transformed_kernels,
    uniform_normal_kernels,
)
from samebits.random._draws import feistel
from samebits.random._triton import launchers


def _folded(keys: torch.Tensor, first: int, out: torch.Tensor) -> None:
    """Folds `first` + i into all `keys`, (keys, 2), for row i of `out`, (number, keys, 2)."""
    philox.fold_all(keys.numpy(), first, out.numpy())


_CPU = SimpleNamespace(
    folded=_folded,
    words=uniform_normal_kernels.words,
    uniform=uniform_normal_kernels.uniform,
    normal=uniform_normal_kernels.normal,
    bernoulli=bernoulli_masks.bernoulli,
    dropout=bernoulli_masks.dropout,
    integers=bounded_integers.integers,
    images=feistel.images,
    transformed=transformed_kernels.transformed,
)


def kernels(caller: str, key: torch.Tensor) -> Any:
    """Returns the functions that fill tensors on the key's device; their signatures are those of `_CPU`.

    Raises `UnimplementedError`, naming samebits.random.`caller`, for a device without kernels of the same
    bits, and for CUDA without Triton.
    """
    if key.is_cpu:
        return _CPU
    if key.is_cuda:
        return launchers(caller)
    raise UnimplementedError(
        f"samebits.random.{caller} has no kernel for {key.device} that gives the bits of the CPU; "
        f"draw on the CPU and move the result: {caller}(key.cpu(), ...).to({str(key.device)!r})"
    )
