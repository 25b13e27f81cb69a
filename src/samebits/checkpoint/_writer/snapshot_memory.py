"""Memory for a snapshot, shared with the writer process: a file without a name, freed with its last user."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from samebits import _native as native
from samebits._native import instruction, kernel
from samebits._native.kernel_threads import uint8_at
from samebits._shared_memory import SharedMemory
from samebits.checkpoint._prepared_commit import PreparedCommit
from samebits.checkpoint._safetensors_file import FileLayout, view

_LINE = 64
"""Bytes of a cache line."""


@instruction
def _copy_line(_to: Any, _source: Any) -> Any:
    """Copies a line from the address `_source` to `_to`, a multiple of `_LINE`."""

    def build(builder: Any, *arguments: Any) -> Any:
        line = native.ir.VectorType(native.ir.IntType(64), _LINE // 8).as_pointer()
        to, source = (builder.inttoptr(address, line) for address in arguments)
        store = builder.store(builder.load(source, align=1), to, align=_LINE)
        store.set_metadata(
            "nontemporal", builder.module.add_metadata([native.ir.Constant(native.ir.IntType(32), 1)])
        )
        return None

    return native.types.void(native.types.int64, native.types.int64), build


@instruction
def _fence() -> Any:
    """Orders the stores so far before those that follow: non-temporal stores may overtake each other."""

    def build(builder: Any, *arguments: Any) -> Any:
        builder.fence("seq_cst")
        return None

    return native.types.void(), build


@kernel("void(int64[::1], int64[::1], int64[::1])")
def copy(places: Any, sources: Any, sizes: Any) -> None:
    """Copies `sizes[n]` bytes from address `sources[n]` to `places[n]`, past the caches; returns when done.

    A usual store fetches the line that it overwrites and evicts a weight for it, which training reads next:
    with usual stores a snapshot of 18 MB took 1.7 times as long.
    """
    for number in range(len(sizes)):
        to, source, size = places[number], sources[number], sizes[number]
        first = min(size, -to % _LINE)
        last = first + (size - first) // _LINE * _LINE
        for at in range(first):
            uint8_at(to)[at] = uint8_at(source)[at]
        for at in range(first, last, _LINE):
            _copy_line(to + at, source + at)
        for at in range(last, size):
            uint8_at(to)[at] = uint8_at(source)[at]
    _fence()


_NONE = np.empty(0, np.int64)


class SnapshotMemory:
    """The memory of one snapshot, reused for each; it is allocated at its first use."""

    def __init__(self) -> None:
        self._memory = SharedMemory("samebits-snapshot", reserved=True)
        self.fd = self._memory.fd
        self.static: tuple[FileLayout, int] | None = None
        """The layout whose constant part follows the image, and its length."""
        self._layout: FileLayout | None = None
        self._dense: tuple[list[int], np.ndarray, np.ndarray] = ([], _NONE, _NONE)
        """Tensors copied as bytes: their places in the file, their target addresses, their sizes in bytes."""
        self._others: list[tuple[torch.Tensor | np.ndarray, int]] = []
        """Memory for each other tensor or array, and its place in the file."""
        self._reserving: threading.Thread | None = None
        self._pinned = 0
        """The address of the memory that CUDA has pinned; 0: none."""

    def reserve(self, size: int) -> None:
        """Takes memory for `size` bytes in a thread: the first copy need not wait for its pages.

        Where there is none, the copy says so.
        """

        def take() -> None:
            with suppress(OSError):
                self._memory.mapped(size)
                self._memory.populate(size)

        self._reserving = threading.Thread(target=take, name="samebits-snapshot", daemon=True)
        self._reserving.start()

    def copy(self, commit: PreparedCommit) -> None:
        """Copies head and tensors to their places in the file; all is copied on return. Raises OSError."""
        self._prepare(commit)
        dense, to, sizes = self._dense
        address: Callable[[Any], int] = torch.Tensor.data_ptr
        copy(to, np.array([address(commit.sources[place]) for place in dense], np.int64), sizes)
        places, sources = [], []
        for memory, place in self._others:
            source = commit.sources[place]
            if isinstance(memory, np.ndarray):
                np.copyto(memory, source)
            else:
                places.append(memory)
                sources.append(source)
        if places:
            devices = {source.device for source in sources if source.is_cuda}
            # Kernels that write to them may run in streams that the current one does not wait for.
            for device in devices:
                torch.cuda.synchronize(device)
            with torch.no_grad():
                torch._foreach_copy_(places, sources, non_blocking=bool(devices))
            for device in devices:
                torch.cuda.synchronize(device)

    def write(self, offset: int, parts: list[bytes]) -> None:
        """Writes `parts` one after another, from byte `offset` on. Raises OSError when there is no memory."""
        memory = self._mapped(offset + sum(map(len, parts)))
        for part in parts:
            memory[offset : offset + len(part)] = part
            offset += len(part)

    def close(self) -> None:
        self._join()
        self._unpin()
        self._layout, self._others, self._dense = None, [], ([], _NONE, _NONE)
        self._memory.unmap()
        self._memory.close()

    def _prepare(self, commit: PreparedCommit) -> None:
        layout = commit.layout
        if layout is self._layout:
            return
        self._layout = None
        memory = self._mapped(layout.size)
        memory[: len(layout.head)] = layout.head
        if commit.on_cuda:
            self._pin()
        dense: list[tuple[int, int, int]] = []
        start = np.frombuffer(memory, np.uint8).ctypes.data
        self._others = []
        for place, ((begin, end), source) in enumerate(zip(layout.spans, commit.sources, strict=True)):
            if begin == end:
                continue
            if _is_dense(source):
                dense.append((place, start + begin, end - begin))
            elif isinstance(source, np.ndarray):
                self._others.append((np.ndarray(source.shape, source.dtype, memory, begin), place))
            else:
                self._others.append((view(memory, begin, source.dtype, source.shape), place))
        self._dense = (
            [place for place, _, _ in dense],
            np.array([address for _, address, _ in dense], np.int64),
            np.array([size for _, _, size in dense], np.int64),
        )
        self._layout = layout

    def _join(self) -> None:
        """Waits until `reserve` is done."""
        if self._reserving is not None and self._reserving.is_alive():
            self._reserving.join()
        self._reserving = None

    def _mapped(self, size: int) -> mmap.mmap:
        self._join()
        if len(self._memory) < size:
            self._layout = self.static = None
            self._unpin()
        return self._memory.mapped(size)

    def _pin(self) -> None:
        """Pins the memory, so that copies from a GPU need no buffer of the driver's in between."""
        if self._pinned:  # a second time would be an error
            return
        size = len(self._memory)
        address = np.frombuffer(self._memory.mapped(size), np.uint8).ctypes.data
        if int(torch.cuda.cudart().cudaHostRegister(address, size, 0)) == 0:  # type: ignore[attr-defined]
            self._pinned = address
        else:
            _forget_error()

    def _unpin(self) -> None:
        """Unpins memory before it is freed: its address may be used again. A forked child has no CUDA."""
        pinned, self._pinned = self._pinned, 0
        if not pinned or torch.cuda._is_in_bad_fork():
            return
        if int(torch.cuda.cudart().cudaHostUnregister(pinned)):  # type: ignore[attr-defined]
            _forget_error()


def _forget_error() -> None:
    """Clears CUDA's last error, which torch would raise at the next kernel."""
    with suppress(RuntimeError):
        torch.zeros(1, device="cuda")


def _is_dense(source: torch.Tensor | np.ndarray) -> bool:
    """Returns True if memory has a tensor's bytes in the file's order; never for arrays, of any strides."""
    if isinstance(source, np.ndarray) or source.is_conj() or source.is_neg():
        return False
    return source.device.type == "cpu" and source.is_contiguous()
