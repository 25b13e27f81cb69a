"""The results of workers: memory that a worker writes and this process reads, and their encoding in it.

The memory is unnamed files that end with their last user. The bytes of arrays and tensors lie in it, all else
is pickled beside them.
"""

from __future__ import annotations

import io
import pickle
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import cloudpickle
import numpy as np
import torch

from samebits._objects.memory import reach
from samebits._shared_memory import SharedMemory

ALIGNMENT = 64

_current: ResultMemory | None = None
"""The slot of the current result, while its maker may write the result there at once."""
_NO_SLOT = nullcontext()
_offer: tuple[Any, ResultMemory] | None = None
"""The maker of that result, and its slot."""
_base: list[np.ndarray] = []
"""The slot's bytes while a result is being unpickled."""
_by_value = False
"""True if classes of the main program are sent by value: a worker of the server cannot import them."""


class ResultMemory:
    """One result's memory. It is made before the worker is started, and grows where a result needs more."""

    def __init__(self, fd: int | None = None) -> None:
        self._memory = SharedMemory("samebits-slot", fd)
        self.fd = self._memory.fd
        self._whole = np.empty(0, np.uint8)
        self._lent = False  # True if it may have content before the result is encoded
        self.used = 0

    def clear(self) -> None:
        """Empties the slot for a new result."""
        self.used, self._lent = 0, False

    def reserve(self, size: int) -> tuple[int, np.ndarray]:
        """Returns (offset, writable uint8 array) of the next `size` bytes."""
        offset = -(-self.used // ALIGNMENT) * ALIGNMENT
        self.used = offset + size
        return offset, self._array(self.used)[offset : offset + size]

    def write(self, data: bytes) -> int:
        offset, place = self.reserve(len(data))
        place[:] = np.frombuffer(data, np.uint8)
        return offset

    def read(self, offset: int, size: int) -> memoryview:
        """Returns the bytes that `write` put there."""
        return self._array(offset + size)[offset : offset + size].data

    def owns(self, array: np.ndarray) -> int | None:
        """Returns the offset of a contiguous array that `empty` made in this slot's memory, else None."""
        if not self._lent:
            return None
        offset = array.__array_interface__["data"][0] - self._whole.__array_interface__["data"][0]
        return offset if offset >= 0 and offset + array.nbytes <= self._whole.size else None

    def lease(self, size: int, released: Callable[[], None] | None = None) -> np.ndarray:
        """Returns the first `size` bytes; `released` is called when nothing refers to them any more."""
        whole = np.frombuffer(self._memory.mapped(size), np.uint8)
        if released is not None:
            returned: Any = weakref.finalize(whole, released)
            returned.atexit = False
        return whole

    def close(self) -> None:
        """Closes the file; leased memory stays readable."""
        self._memory.close()

    @contextmanager
    def use_for_empty(self) -> Iterator[None]:
        """Lets `empty` use this slot's memory in the block."""
        global _current
        _current, self._lent = self, True
        try:
            yield
        finally:
            _current = None

    def _array(self, size: int) -> np.ndarray:
        if self._whole.size < size:
            self._whole = np.frombuffer(self._memory.mapped(size), np.uint8)
        return self._whole


@contextmanager
def offer_memory(maker: Any, slot: ResultMemory) -> Iterator[None]:
    """Lets only `maker` use `slot` for its result in the block: other code could keep it longer."""
    global _offer
    _offer = maker, slot
    try:
        yield
    finally:
        _offer = None


def use_offered_memory(maker: Any) -> AbstractContextManager[None]:
    """Returns a block in which `empty` uses the slot that was offered to `maker`, if one was."""
    return _offer[1].use_for_empty() if _offer is not None and _offer[0] is maker else _NO_SLOT


def writes_in_place() -> bool:
    """Returns True if `empty` uses the memory from which the result will be read."""
    return _current is not None


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """`numpy.empty`; in a worker that computes a batch, in the memory from which the batch will be read."""
    if _current is None:
        return np.empty(shape, dtype)
    _, place = _current.reserve(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
    return place.view(dtype).reshape(shape)


def send_by_value() -> None:
    """Sends classes of the main program by value from now on in this process."""
    global _by_value
    _by_value = True


def encode(result: Any, slot: ResultMemory) -> bytes:
    """Pickles `result`; arrays and plain tensors go into `slot`, without a copy if they are there already."""
    buffer = io.BytesIO()
    (_ByValue if _by_value else _ByName)(buffer, slot).dump(result)
    return buffer.getvalue()


def decode(pickled: bytes | memoryview, base: np.ndarray) -> Any:
    """Returns the result that was encoded; its arrays and tensors use `base`'s memory and keep it alive."""
    _base.append(base)
    try:
        return pickle.loads(pickled)  # noqa: S301 (from our own worker)
    finally:
        _base.pop()


class _ByName(pickle.Pickler):
    def __init__(self, file: io.BytesIO, slot: ResultMemory) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._slot = slot

    def reducer_override(self, obj: Any) -> Any:
        return _reduce(obj, self._slot)


class _ByValue(cloudpickle.Pickler):
    def __init__(self, file: io.BytesIO, slot: ResultMemory) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._slot = slot

    def reducer_override(self, obj: Any) -> Any:
        reduced = _reduce(obj, self._slot)
        return super().reducer_override(obj) if reduced is NotImplemented else reduced


def _reduce(value: Any, slot: ResultMemory) -> Any:
    if type(value) is np.ndarray and not value.dtype.hasobject and value.dtype.itemsize:
        return _reduce_array(value, slot)
    if type(value) is torch.Tensor and _is_plain(value):
        return _reduce_tensor(value, slot)
    return NotImplemented


def _reduce_array(array: np.ndarray, slot: ResultMemory) -> Any:
    """Reduces an array to its elements in memory order: sums depend on it, so a transposed one stays so."""
    order = tuple(sorted(range(array.ndim), key=lambda dim: -abs(array.strides[dim])))
    return _restore_array, (_put(array.transpose(order), slot), array.dtype, array.shape, order)


def _reduce_tensor(tensor: torch.Tensor, slot: ResultMemory) -> Any:
    """Reduces a tensor to its memory and its strides: kernels choose their order of summation by them."""
    plain = tensor.detach()
    if _span(plain) > 2 * plain.numel():  # a few columns of a large tensor
        plain = plain.clone()
    span = _span(plain)
    flat = plain.as_strided((span,), (1,))
    at = _put(flat.view(torch.uint8).numpy(), slot) if span else 0
    return _restore_tensor, (at, span, plain.dtype, tuple(plain.shape), plain.stride(), tensor.requires_grad)


def _span(tensor: torch.Tensor) -> int:
    """Returns the number of elements between its first and its last in memory, both included."""
    if tensor.numel() == 0:
        return 0
    return 1 + reach(tensor.shape, tensor.stride())


def _put(array: np.ndarray, slot: ResultMemory) -> int:
    contiguous = np.ascontiguousarray(array)
    at = slot.owns(contiguous)
    if at is None:
        at, place = slot.reserve(contiguous.nbytes)
        place[:] = contiguous.reshape(-1).view(np.uint8)
    return at


def _is_plain(tensor: torch.Tensor) -> bool:
    is_dense = tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
    return is_dense and not (tensor.is_conj() or tensor.is_neg()) and not tensor.__dict__


def _restore_array(
    at: int, dtype: np.dtype[Any], shape: tuple[int, ...], order: tuple[int, ...]
) -> np.ndarray:
    stored = [shape[dim] for dim in order]
    count = int(np.prod(stored, dtype=np.int64))
    array = _base[-1][at : at + count * dtype.itemsize].view(dtype).reshape(stored)
    return array.transpose(np.argsort(order)) if order else array


def _restore_tensor(
    at: int, span: int, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...], grad: bool
) -> torch.Tensor:
    if span == 0:
        return torch.empty_strided(shape, strides, dtype=dtype, requires_grad=grad)
    flat = torch.from_numpy(_base[-1][at : at + span * dtype.itemsize]).view(dtype)
    return flat.as_strided(shape, strides).requires_grad_(grad)
