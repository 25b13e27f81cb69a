"""Buffers under logical shards: the rule of DistributedDataParallel's `broadcast_buffers`, for any ranks.

Each shard begins with the buffers that the loop over the shards began with; those that shard 0 leaves count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from samebits.errors import UnimplementedError

CHANGED, RESHAPED = 1, 2
COMPARED = 1 << 16
"""Bytes of a buffer up to which its content is compared: batch_norm writes running statistics without a count
in torch's `_version`. A larger one that the first shard has not changed is compared by its version alone."""


@dataclass(eq=False)
class _Buffer:
    """A buffer of a module, by its name there: a forward may write into it, or put another in its place."""

    module: torch.nn.Module
    key: str
    name: str
    kept: torch.Tensor | None = None
    """The object at the begin of the loop over the shards."""
    copy: torch.Tensor | None = None
    """Its content then."""
    version: int = -1
    """torch's count of writes into `kept` when it had the content of `copy`."""
    compares: bool = True
    """True if the content is compared, too."""
    first: torch.Tensor | None = None
    """The content that shard 0 left, if that is another."""
    flag: int = 0

    @property
    def now(self) -> torch.Tensor | None:
        return self.module._buffers[self.key]

    @property
    def is_changed(self) -> bool:
        """True if it is another object, or has other content, than at the begin."""
        now = self.now
        if now is not self.kept or now is None or self.copy is None:
            return now is not self.kept
        return now._version != self.version or (self.compares and not _same_bits(now, self.copy))

    def begin(self) -> None:
        """Keeps the object, and a copy of its content if it is not known to be the last one."""
        if self.is_changed:
            now = self.kept = self.now
            if now is not None:
                if self.copy is None or _kind(self.copy) != _kind(now):
                    self.copy = now.detach().clone()
                else:
                    self.copy.copy_(now)
                self.version = now._version
        self.first, self.flag = None, 0

    def end_shard(self, *, keeps: bool) -> None:
        """Notes that a shard has changed it; gives the module what it had at the begin."""
        now, kept = self.now, self.kept
        if now is None or kept is None or _kind(now) != _kind(kept):
            self.flag = RESHAPED
        else:
            self.flag = max(self.flag, CHANGED)
            if keeps:
                self.first = now.detach().clone() if now is kept else now.detach()
        self.module._buffers[self.key] = self.kept
        if self.kept is not None and self.copy is not None:
            with torch.no_grad():
                self.kept.copy_(self.copy)
            self.version = self.kept._version

    def value(self) -> torch.Tensor:
        """Returns a copy of what shard 0 left, in memory without gaps."""
        value = self.kept if self.first is None else self.first
        assert value is not None
        return value.detach().clone(memory_format=torch.contiguous_format)

    def put(self, value: torch.Tensor) -> None:
        """Writes a value into the object that the module began with."""
        assert self.kept is not None
        with torch.no_grad():
            self.kept.copy_(value)


class Buffers:
    """The buffers of a run's modules."""

    def __init__(self) -> None:
        self._all: list[_Buffer] = []
        self._modules: list[int] = []

    def begin_pass(self, modules: Iterable[tuple[str, torch.nn.Module]]) -> None:
        """Begins a loop over the shards, with the buffers of these modules."""
        named = list(modules)
        if [id(module) for _, module in named] != self._modules:
            self._modules = [id(module) for _, module in named]
            self._all = _buffers(named)
        for buffer in self._all:
            buffer.begin()

    def end_shard(self, number: int) -> None:
        """Keeps what shard 0 has left, and puts all buffers back."""
        for buffer in self._all:
            if buffer.is_changed:
                buffer.end_shard(keeps=number == 0)
            elif buffer.copy is not None and buffer.compares:
                buffer.compares = buffer.copy.nbytes <= COMPARED

    def flags(self) -> list[int]:
        """Returns a flag of each buffer: `CHANGED` or `RESHAPED` by a shard of this rank; else 0."""
        return [buffer.flag for buffer in self._all]

    def end_pass(self, flags: Sequence[int], broadcast: Callable[[Sequence[torch.Tensor]], None]) -> None:
        """Gives the modules of all ranks the buffers that shard 0 left.

        `flags`: the largest of all ranks. `broadcast` sends rank 0's tensors, in place. Raises
        `UnimplementedError` on all ranks for a buffer that has another shape than before.
        """
        changed = [buffer for buffer, flag in zip(self._all, flags, strict=True) if flag]
        for buffer, flag in zip(self._all, flags, strict=True):
            if flag == RESHAPED:
                raise UnimplementedError(
                    f"run.steps(shards=...): a shard has given the buffer {buffer.name} another shape, dtype "
                    "or device. Register it with those that it keeps."
                )
        values = [buffer.value() for buffer in changed]
        if values:
            broadcast(values)
        for buffer, value in zip(changed, values, strict=True):
            buffer.put(value)


def _buffers(named: Sequence[tuple[str, torch.nn.Module]]) -> list[_Buffer]:
    found: dict[Any, _Buffer] = {}
    for name, root in named:
        for path, module in root.named_modules():
            for key, tensor in module._buffers.items():
                whole = ".".join(part for part in (name, path, key) if part)
                place = (id(module), key) if tensor is None else id(tensor)  # two modules may share one
                found.setdefault(place, _Buffer(module, key, whole))
    return list(found.values())


def _same_bits(*tensors: torch.Tensor) -> bool:
    return torch.equal(*(tensor.detach().reshape(-1).view(torch.uint8) for tensor in tensors))


def _kind(tensor: torch.Tensor) -> tuple[torch.Size, torch.dtype, torch.device]:
    return tensor.shape, tensor.dtype, tensor.device
