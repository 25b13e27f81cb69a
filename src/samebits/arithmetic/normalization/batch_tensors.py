"""Batch normalization of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from samebits.arithmetic.normalization.batches import (
    elements_in_columns,
    elements_in_runs,
    evaluation_channels,
    gradient_channels,
    training_channels,
)
from samebits.arithmetic.normalization.layers import as_read, parameter
from samebits.arithmetic.normalization.whole_batches import whole_batch_norm, whole_batch_norm_gradients
from samebits.arithmetic.reductions.kernels import QUOTIENT
from samebits.arithmetic.reductions.tensors import MEMORY, bits_of, lanes_type, reduce

_GRAIN = 1 << 14
"""Elements of a chunk, about."""
_CHANNELS = 8
"""Channels that keep every thread busy."""
_FORMATS = ((4, torch.channels_last), (5, torch.channels_last_3d))


class ChannelNumbers(NamedTuple):
    """Numbers of each channel, in the lanes' type."""

    mean: Tensor
    istd: Tensor
    scale: Tensor


def format_of(x: Tensor) -> torch.memory_format:
    """Returns the memory format that torch gives to a result of the shape of `x`."""
    if not x.is_contiguous():
        for dims, form in _FORMATS:
            if x.dim() == dims and x.is_contiguous(memory_format=form):
                return form
    return torch.contiguous_format


def dims_of(x: Tensor) -> tuple[int, ...]:
    """Returns the dimensions that the statistics of a channel are made of."""
    return (0, *range(2, x.dim()))


def in_training(
    x: Tensor,
    weight: Tensor | None,
    running: tuple[Tensor | None, Tensor | None],
    momentum: float,
    eps: float,
) -> ChannelNumbers:
    """Returns the statistics of the batch, and updates the running ones."""
    dims, kind, count = dims_of(x), lanes_type(x), x.shape[1]
    wide = torch.float64
    mean = reduce("wide sum", x, dims, dtype=wide, last=QUOTIENT)
    variance = reduce("deviation", x, dims, centers=mean, dtype=wide, last=QUOTIENT)
    w = parameter(weight, count, kind, 1)
    copies = [None if r is None else as_read(r, kind) for r in running]
    made = torch.empty((3, count), dtype=kind)
    training_channels(MEMORY[kind])(
        1,
        *(mean.data_ptr(), variance.data_ptr(), w.data_ptr(), 0),
        *(0 if r is None else r.data_ptr() for r in copies),
        *(row.data_ptr() for row in made),
        *(count, x.numel() // count, bits_of(momentum), bits_of(eps)),
    )
    _write_back(running, copies)
    return ChannelNumbers(*made)


def _write_back(running: Sequence[Tensor | None], copies: Sequence[Tensor | None]) -> None:
    for r, copy in zip(running, copies, strict=True):
        if r is not None and copy is not None and copy is not r:
            r.copy_(copy)


def in_evaluation(
    x: Tensor, weight: Tensor | None, mean: Tensor, variance: Tensor, eps: float
) -> ChannelNumbers:
    """Returns the running statistics."""
    kind, count = lanes_type(x), x.shape[1]
    spread, w = as_read(variance, kind), parameter(weight, count, kind, 1)
    istd = torch.empty_like(spread)
    scale = torch.empty_like(istd)
    evaluation_channels(MEMORY[kind])(
        1, spread.data_ptr(), w.data_ptr(), istd.data_ptr(), scale.data_ptr(), count, bits_of(eps)
    )
    return ChannelNumbers(as_read(mean, kind), istd, scale)


def is_whole(x: Tensor) -> bool:
    """Returns True for a contiguous (N, C, ...) whose channels are worth a chunk each: many, or small."""
    return x.dim() > 2 and x.is_contiguous() and (x.shape[1] >= _CHANNELS or x.numel() <= _GRAIN)


def whole_in_training(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running: tuple[Tensor | None, Tensor | None],
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns y, mean and istd, as `in_training` and `normalized` do, if `is_whole` is true of `x`."""
    kind, items, channels = lanes_type(x), x.shape[0], x.shape[1]
    w, b = parameter(weight, channels, kind, 1), parameter(bias, channels, kind, 0)
    copies = [None if r is None else as_read(r, kind) for r in running]
    out, mean = torch.empty_like(x), torch.empty(channels, dtype=kind)
    istd = torch.empty_like(mean)
    whole_batch_norm(MEMORY[x.dtype])(
        channels,
        *(t.data_ptr() for t in (x, w, b, out)),
        *(0 if r is None else r.data_ptr() for r in copies),
        *(mean.data_ptr(), istd.data_ptr()),
        *(items, channels, x.numel() // (items * channels), bits_of(momentum), bits_of(eps)),
    )
    _write_back(running, copies)
    return out, mean, istd


def whole_gradients(
    grad: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, istd: Tensor, *, wanted: bool
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Returns what `gradients` returns in training, of tensors for which `is_whole` is true."""
    items, channels = x.shape[0], x.shape[1]
    w = parameter(weight, channels, mean.dtype, 1)
    dx = torch.empty_like(x) if wanted else None
    dw, db = torch.empty_like(mean), torch.empty_like(mean)
    whole_batch_norm_gradients(MEMORY[x.dtype])(
        channels,
        *(t.data_ptr() for t in (grad, x, w, mean, istd)),
        *(0 if dx is None else dx.data_ptr(), dw.data_ptr(), db.data_ptr()),
        *(items, channels, x.numel() // (items * channels)),
    )
    return dx, dw, db


def normalized(x: Tensor, channels: ChannelNumbers, bias: Tensor | None) -> Tensor:
    """Returns y; `x` is dense in the memory format of `format_of`."""
    b = parameter(bias, x.shape[1], channels.mean.dtype, 0)
    return _elements(x, x, channels.mean, channels.scale, b, b, gradient=False)


def gradients(
    grad: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor, istd: Tensor, *, train: bool, wanted: bool
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Returns dx (if wanted), dw, db; `grad` and `x` have one dense layout, mean and istd the lanes' type."""
    dims, kind, count, wide = dims_of(x), mean.dtype, x.shape[1], torch.float64
    total = reduce("wide sum", grad, dims, dtype=wide)
    t = reduce("deviation dot", x, dims, y=grad, centers=mean.to(wide), dtype=wide)
    w = parameter(weight, count, kind, 1)
    dw, db, slopes, shifts, scales = made = torch.empty((5, count), dtype=kind)
    gradient_channels(MEMORY[kind])(
        1,
        *(tensor.data_ptr() for tensor in (t, total, istd, w)),
        *(row.data_ptr() for row in made),
        *(count, x.numel() // count),
    )
    dx = None
    if wanted and train:
        dx = _elements(x, grad, mean, slopes, shifts, scales, gradient=True)
    elif wanted:
        zero = torch.zeros_like(mean)
        dx = _elements(grad, grad, zero, scales, zero, zero, gradient=False)
    return dx, dw, db


def _elements(
    x: Tensor, grad: Tensor, mean: Tensor, a: Tensor, b: Tensor, c: Tensor, *, gradient: bool
) -> Tensor:
    out, channels, memory = torch.empty_like(x), x.shape[1], MEMORY[x.dtype]
    length = x.shape[2:].numel()
    in_columns = length == 1 or not x.is_contiguous()
    rows, length = (x.numel() // channels, channels) if in_columns else (x.shape[0] * channels, length)
    piece = max(1, _GRAIN // length)
    (elements_in_columns if in_columns else elements_in_runs)(memory, gradient=gradient)(
        -(-rows // piece),
        *(tensor.data_ptr() for tensor in (x, grad, out, mean, a, b, c)),
        *(rows, channels, length, piece),
    )
    return out
