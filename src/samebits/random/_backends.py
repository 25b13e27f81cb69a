"""The kernels of a key's device: one place where devices branch off."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from samebits.random import _distributions, _integers, _masks, _transformed, feistel
from samebits.random.keys import on_cuda
from samebits.random.triton import launchers

_CPU = SimpleNamespace(
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
    if not key.is_cpu and on_cuda(what, key):
        return launchers(what)
    return _CPU
