"""Results on their way from a worker: the bytes of arrays and tensors in a slot, all else pickled beside them."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import torch

from samebits.data.engine.slots import Slot

_base: list[np.ndarray] = []
"""The slot's bytes while a result is being unpickled."""


def encode(result: Any, slot: Slot) -> bytes:
    """Pickles `result`; arrays and plain tensors go into `slot`, without a copy where they lie there already."""
    buffer = io.BytesIO()
    _Pickler(buffer, slot).dump(result)
    return buffer.getvalue()


def decode(pickled: bytes, base: np.ndarray) -> Any:
    """What `encode` was given; its arrays and tensors are `base`'s memory and keep it alive."""
    _base.append(base)
    try:
        return pickle.loads(pickled)  # noqa: S301 (from our own worker)
    finally:
        _base.pop()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, slot: Slot) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._slot = slot

    def reducer_override(self, value: Any) -> Any:
        if type(value) is np.ndarray and not value.dtype.hasobject:
            order = _memory_order(value.strides)
            return _array, (self._write(value.transpose(order)), value.dtype, value.shape, order)
        if type(value) is torch.Tensor and _is_plain(value):
            order = _memory_order(value.stride())
            plain = value.permute(order).contiguous().view(-1)
            array = plain.view(torch.uint8).numpy() if value.numel() else np.empty(0, np.uint8)
            return _tensor, (self._write(array), value.dtype, tuple(value.shape), order)
        return NotImplemented

    def _write(self, array: np.ndarray) -> int:
        at = self._slot.owns(array)
        if at is None:
            at, place = self._slot.reserve(array.nbytes)
            place[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return at


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not (tensor.is_conj() or tensor.is_neg())
    )


def _memory_order(strides: tuple[int, ...]) -> tuple[int, ...]:
    """The dimensions from the slowest to the fastest: transposed arrays stay transposed, as sums depend on it."""
    return tuple(sorted(range(len(strides)), key=lambda dim: -strides[dim]))


def _array(at: int, dtype: np.dtype[Any], shape: tuple[int, ...], order: tuple[int, ...]) -> np.ndarray:
    stored = [shape[dim] for dim in order]
    count = int(np.prod(stored, dtype=np.int64))
    array = _base[-1][at : at + count * dtype.itemsize].view(dtype).reshape(stored)
    return array.transpose(np.argsort(order)) if order else array


def _tensor(at: int, dtype: torch.dtype, shape: tuple[int, ...], order: tuple[int, ...]) -> torch.Tensor:
    stored = [shape[dim] for dim in order]
    count = int(np.prod(stored, dtype=np.int64))
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    tensor = torch.from_numpy(_base[-1][at : at + count * dtype.itemsize]).view(dtype).view(stored)
    return tensor.permute(*np.argsort(order).tolist()) if order else tensor.view(())
