"""Memory that a snapshot is copied into, and its writer reads: a file without a name, gone with the last process that has it."""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from samebits._shared_memory import SharedMemory
from samebits.checkpoint._async_writer.state_layout import StateLayout
from samebits.checkpoint._async_writer.streaming_copy import copy

_NONE = np.empty(0, np.int64)


class SnapshotMemory:
    """One snapshot's memory, used again and again; it takes memory from its first use on."""

    def __init__(self) -> None:
        self._memory = SharedMemory("samebits-snapshot", reserved=True)
        self.fd = self._memory.fd
        self.static: tuple[StateLayout, int] | None = None
        """The plan whose constant part lies behind the image, and its length."""
        self._plan: StateLayout | None = None
        self._dense: tuple[list[int], np.ndarray, np.ndarray] = ([], _NONE, _NONE)
        """Tensors that are copied as bytes: where the plan has their addresses, where they go, how many bytes."""
        self._tensors: tuple[list[torch.Tensor], list[int]] = ([], [])
        self._arrays: list[tuple[np.ndarray, int]] = []
        self._pinned = 0
        """The address of the memory that CUDA knows as pinned; 0: none."""

    def copy(self, plan: StateLayout, values: list[Any]) -> None:
        """Copies head and tensors to where they lie in the file; all of it is done when this returns. Raises OSError."""
        self._prepare(plan)
        dense, to, sizes = self._dense
        copy(to, np.array([plan.memory[place] for place in dense], np.int64), sizes)
        places, numbers = self._tensors
        if places:
            sources = [values[number] for number in numbers]
            devices = {source.device for source in sources if source.is_cuda} if plan.on_cuda else ()
            # What writes to them may run in streams that the current one does not wait for.
            for device in devices:
                torch.cuda.synchronize(device)
            with torch.no_grad():
                torch._foreach_copy_(places, sources, non_blocking=plan.on_cuda)
            for device in devices:
                torch.cuda.synchronize(device)
        for place, number in self._arrays:
            np.copyto(place, values[number])

    def put(self, at: int, parts: list[bytes]) -> None:
        """Writes `parts` behind each other. Raises OSError when there is no memory."""
        memory = self._mapped(at + sum(map(len, parts)))
        for part in parts:
            memory[at : at + len(part)] = part
            at += len(part)

    def close(self) -> None:
        """Lets go of the memory."""
        self._unpin()
        self._plan, self._tensors, self._arrays = None, ([], []), []
        self._dense = ([], _NONE, _NONE)
        self._memory.unmap()
        self._memory.close()

    def _prepare(self, plan: StateLayout) -> None:
        if plan is self._plan:
            return
        self._plan = None
        memory = self._mapped(plan.layout.size)
        memory[: len(plan.layout.head)] = plan.layout.head
        if plan.on_cuda:
            self._pin()
        places: list[torch.Tensor] = []
        numbers: list[int] = []
        dense: list[tuple[int, int, int]] = []
        start = np.frombuffer(memory, np.uint8).ctypes.data
        self._arrays = []
        for name, (begin, end), number in zip(
            plan.layout.names, plan.layout.spans, plan.sources, strict=True
        ):
            if begin == end:
                continue
            if name in plan.arrays:
                dtype, shape = plan.arrays[name]
                self._arrays.append((np.ndarray(shape, dtype, memory, begin), number))
            elif number in plan.dense:
                dense.append((plan.dense[number], start + begin, end - begin))
            else:
                dtype, shape = plan.tensors[name]
                places.append(_view(memory, dtype, shape, begin, end))
                numbers.append(number)
        self._dense = (
            [place for place, _, _ in dense],
            np.array([address for _, address, _ in dense], np.int64),
            np.array([size for _, _, size in dense], np.int64),
        )
        self._tensors, self._plan = (places, numbers), plan

    def _mapped(self, size: int) -> mmap.mmap:
        if len(self._memory) < size:
            self._plan = self.static = None
            self._unpin()
        return self._memory.mapped(size)

    def _pin(self) -> None:
        """Copies from a GPU into pinned memory need no buffer of the driver's in between."""
        if self._pinned:  # a second time would be an error
            return
        size = len(self._memory)
        address = np.frombuffer(self._memory.mapped(size), np.uint8).ctypes.data
        if int(torch.cuda.cudart().cudaHostRegister(address, size, 0)) == 0:  # type: ignore[attr-defined]
            self._pinned = address
        else:
            _forget_error()

    def _unpin(self) -> None:
        """Before the memory is given back: what comes to lie there would be taken for pinned. A forked child has no CUDA."""
        pinned, self._pinned = self._pinned, 0
        if not pinned or torch.cuda._is_in_bad_fork():
            return
        if int(torch.cuda.cudart().cudaHostUnregister(pinned)):  # type: ignore[attr-defined]
            _forget_error()


def _forget_error() -> None:
    """CUDA keeps the error of a call, and torch raises it at the next kernel, whatever that is of."""
    with suppress(RuntimeError):
        torch.zeros(1, device="cuda")


def _view(memory: mmap.mmap, dtype: torch.dtype, shape: torch.Size, begin: int, end: int) -> torch.Tensor:
    try:
        flat = torch.frombuffer(memory, dtype=dtype, count=(end - begin) // dtype.itemsize, offset=begin)
    except (RuntimeError, TypeError, ValueError):
        flat = torch.frombuffer(memory, dtype=torch.uint8, count=end - begin, offset=begin).view(dtype)
    return flat.view(shape)
