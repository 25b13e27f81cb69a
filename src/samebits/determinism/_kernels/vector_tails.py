"""Elementwise kernels in pieces that have the same bits for any number of threads.

Torch gives each thread one run of the elements; in each run of contiguous elements whole vectors go through vector
code and the rest through scalar code, which rounds differently. So the thread count moves the tails, and with them
the bits. Ours calls torch's kernel on a head that every thread's share of is whole blocks, and on what remains, which
one thread does. The bits are those of one thread.

A block is 256 elements where all operands have one dense layout, so that they can be taken as one row; else one
index of the outermost dimension, if that has at least 64, so that tails stay at the end of rows; else the operands
are made dense first. The choice is by layout alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import compute_elementwise_output_strides

from samebits.determinism._dispatcher import Kernel

GRAIN = 32768
"""at::internal::GRAIN_SIZE: for no more elements than this torch uses one thread more."""
BLOCK = 256
"""A multiple of the elements that one turn of any kernel's vector loop takes."""
_ROWS = 64
_COMPLEX = 16
"""Rows that lie at equal distances are one run for torch, and its loops over complex numbers are vectors there too."""


class Pieces:
    """The operands of one elementwise call, and how they are cut. `result` is what is written to, if there is one.

    With `flat` they are never cut at rows: for a kernel that takes another way for what is contiguous, as one row is.
    """

    def __init__(
        self, args: Sequence[Any], shape: torch.Size, result: Tensor | None, *, flat: bool = False
    ) -> None:
        tensors = [a for a in args if isinstance(a, Tensor) and a.dim()]
        first = next((t for t in tensors if t.shape == shape and any(t.stride())), tensors[0])
        first = first if result is None else result
        self.args, self.shape, self.elements = args, shape, shape.numel()
        self.result = result
        self.dim: int | None = None
        if first.shape == shape and is_dense(first):
            self.strides = first.stride()
            if all(self._is_flat(t) for t in tensors):
                return
        if result is None or result.shape != shape:
            self.strides = layout(tensors, shape)
        else:
            self.strides = result.stride()
        outermost = max(range(len(shape)), key=lambda d: self.strides[d] if shape[d] > 1 else 0)
        if not flat and shape[outermost] >= _ROWS and len(shape) > 1:
            self.dim = outermost
        else:
            self._make_dense()

    def _is_flat(self, tensor: Tensor) -> bool:
        return (tensor.shape == self.shape and tensor.stride() == self.strides) or _is_uniform(tensor)

    def _make_dense(self) -> None:
        if self.result is not None and not is_dense(self.result):
            self.strides = torch.empty(self.shape, device="meta").stride()
            self.result = self.empty(self.result.dtype)
        self.args = [
            self.empty(a.dtype).copy_(a) if isinstance(a, Tensor) and a.dim() and not self._is_flat(a) else a
            for a in self.args
        ]

    def empty(self, dtype: torch.dtype) -> Tensor:
        """A new tensor in the layout of the result."""
        return torch.empty_strided(self.shape, self.strides, dtype=dtype)

    def head(self, grain: int) -> int:
        """Returns the number of elements of the head: all of them where one thread does the work, or every share is
        whole blocks.

        One element is never left alone: oneDNN, which has its own rounding, does not take it.
        """
        block = BLOCK if self.dim is None else block_of(self.elements // self.shape[self.dim])
        if self.dim is not None and any(isinstance(a, Tensor) and a.is_complex() for a in self.args):
            block = math.lcm(block, _COMPLEX)
        head = head_of(self.elements, block, grain)
        return head_of(head - 1, block, grain) if self.elements - head == 1 else head

    def of(self, tensor: Tensor, start: int, stop: int) -> Tensor:
        """The elements from `start` to `stop`, in the order of memory of the result."""
        if self.dim is None:
            if _is_uniform(tensor):
                return tensor.as_strided((stop - start,), (0,))
            return tensor.as_strided((stop - start,), (1,), tensor.storage_offset() + start)
        row = self.elements // self.shape[self.dim]
        return tensor.expand(self.shape).narrow(self.dim, start // row, (stop - start) // row)

    def call(self, kernel: Callable[..., Any], start: int, stop: int, kwargs: dict[str, Any]) -> Any:
        """The kernel on one piece of the operands."""
        args = [self.of(a, start, stop) if isinstance(a, Tensor) and a.dim() else a for a in self.args]
        return kernel(*args, **kwargs)


def layout(args: Sequence[Any], shape: torch.Size) -> tuple[int, ...]:
    """The strides that torch gives to the result of an elementwise op."""
    return compute_elementwise_output_strides(*(a.expand(shape) for a in args if isinstance(a, Tensor)))


def torch_kernel(op: str) -> Kernel:
    """Torch's CPU kernel of an overload (`exp2.out`) that has not been replaced yet."""
    keyset = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    return partial(torch.library.get_kernel(f"aten::{op}", "CPU").call_boxed, keyset)


def block_of(row: int) -> int:
    """The block for rows of that number of elements: one element alone is no row but a place in one."""
    return row if row > 1 else BLOCK


def head_of(elements: int, block: int, grain: int = GRAIN) -> int:
    """The largest number of elements that each thread's share of is whole blocks; all of them for one thread."""
    threads = torch.get_num_threads()
    head = elements
    while True:
        active = min(threads, -(-head // grain))
        if active <= 1:
            return head
        shorter = head - head % (block * active)
        if min(threads, -(-shorter // grain)) == active:
            return shorter
        head = shorter


def _is_uniform(tensor: Tensor) -> bool:
    """Returns True if it is one element, perhaps expanded."""
    return tensor.numel() == 1 or not any(tensor.stride())


def is_dense(tensor: Tensor) -> bool:
    """Returns True if the elements fill one run of memory, in any order of the dimensions."""
    if tensor.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True
