"""The kernels of a key's device: one place where devices branch off."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from samebits.errors import UnimplementedError
from samebits.random import _distributions, _integers, _masks, _philox, _transformed, feistel
from samebits.random.triton import launchers


def _folded(keys: torch.Tensor, first: int, out: torch.Tensor) -> None:
    """Row i of `out`, (number, keys, 2): `first` + i folded into all `keys`, (keys, 2)."""
    _philox.fold_all(keys.numpy(), first, out.numpy())


_CPU = SimpleNamespace(
    folded=_folded,
    words=_distributions.words,
    uniform=_distributions.uniform,
    normal=_distributions.normal,
    bernoulli=_masks.bernoulli,
    dropout=_masks.dropout,
    integers=_integers.integers,
    images=feistel.images,
    transformed=_transformed.transformed,
)


def kernels(what: str, key: torch.Tensor) -> Any:
    """What fills tensors on the key's device; its functions have the signatures of `_CPU`'s.

    Raises `UnimplementedError`, naming samebits.random.`what`, for a device without kernels of the same bits, and for
    CUDA without Triton.
    """
    if key.is_cpu:
        return _CPU
    if key.is_cuda:
        return launchers(what)
    raise UnimplementedError(
        f"samebits.random.{what} has no kernel for {key.device} that gives the bits of the CPU; "
        f"draw on the CPU and move the result: {what}(key.cpu(), ...).to({str(key.device)!r})"
    )
