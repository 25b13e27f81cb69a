"""How the processes of one run talk: a gloo group of their own, bytes and small integers, and waits that are told."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from samebits.errors import RanksError

TOLD_AFTER = timedelta(seconds=30)
"""How long a process waits for the others before it says so."""


class Wire:
    """The ranks of the default process group, in a group that nobody else uses. Every method is called by all of them.

    Raises `RanksError` when another process has ended or does not come within the timeout of torch.distributed.
    """

    def __init__(self) -> None:
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        group = dist.new_group(backend="gloo")
        assert isinstance(group, dist.ProcessGroup)  # no rank is left out
        self._group = group

    def close(self) -> None:
        """Lets go of the connections."""
        if dist.is_initialized():  # else the program has already let go of all groups
            dist.destroy_process_group(self._group)
        del self._group  # the connections end with the last reference: who still waits for us must hear it

    def largest(self, numbers: Sequence[int], doing: str) -> list[int]:
        """Of each number (64 bits, signed) the largest of all ranks."""
        tensor = torch.tensor(numbers, dtype=torch.int64)
        self._wait(dist.all_reduce(tensor, dist.ReduceOp.MAX, self._group, async_op=True), doing)
        return tensor.tolist()

    def all_numbers(self, number: int, doing: str) -> list[int]:
        """The number of each rank."""
        found = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world_size)]
        own = torch.tensor([number], dtype=torch.int64)
        self._wait(dist.all_gather(found, own, self._group, async_op=True), doing)
        return [int(one) for one in found]

    def all_texts(self, text: str, doing: str) -> list[str]:
        """The text of each rank."""
        own = text.encode()
        sizes = self.all_numbers(len(own), doing)
        padded = torch.zeros(max(*sizes, 1), dtype=torch.uint8)
        padded[: len(own)] = _tensor(own)
        found = [torch.empty_like(padded) for _ in sizes]
        self._wait(dist.all_gather(found, padded, self._group, async_op=True), doing)
        return [bytes(one[:size].numpy().data).decode() for one, size in zip(found, sizes, strict=True)]

    def from_first(self, data: bytes, doing: str) -> bytes:
        """What rank 0 gives, for all; what the others give does not matter."""
        size = torch.tensor([len(data)], dtype=torch.int64)
        self._wait(dist.broadcast(size, 0, self._group, async_op=True), doing)
        tensor = torch.empty(int(size), dtype=torch.uint8) if self.rank else _tensor(data)
        if len(tensor):
            self._wait(dist.broadcast(tensor, 0, self._group, async_op=True), doing)
        return tensor.numpy().tobytes() if self.rank else data

    def to_first(self, data: bytes, doing: str) -> list[bytes]:
        """What ranks 1, 2, ... give, at rank 0; an empty list elsewhere."""
        sizes = self.all_numbers(len(data), doing)
        if self.rank:
            if data:
                dist.send(_tensor(data), 0, self._group)
            return []
        found = [torch.empty(size, dtype=torch.uint8) for size in sizes[1:]]
        for rank, tensor in enumerate(found, 1):
            if len(tensor):
                dist.recv(tensor, rank, self._group)
        return [tensor.numpy().tobytes() for tensor in found]

    def _wait(self, work: dist.Work | None, doing: str) -> None:
        """Waits for a collective; says so once when it takes long, and names the rank that does the waiting."""
        assert work is not None
        begun = time.monotonic()
        try:
            work.wait(TOLD_AFTER)
            return
        except RuntimeError as error:
            if work.is_completed() or time.monotonic() - begun < TOLD_AFTER.total_seconds() / 2:
                raise self._lost(doing, error) from error
        print(
            f"samebits: rank {self.rank} has waited {TOLD_AFTER.seconds} s for the other ranks {doing}. "
            "Does every rank come there, with as many batches?",
            file=sys.stderr, flush=True,
        )  # fmt: skip
        try:
            work.wait()
        except RuntimeError as error:
            raise self._lost(doing, error) from error

    def _lost(self, doing: str, error: Exception) -> RanksError:
        return RanksError(
            f"rank {self.rank} of {self.world_size} lost another rank {doing}: {str(error).strip().splitlines()[0][:200]}. "
            "Look at what that process printed; start the job again to resume from the last commit."
        )


def _tensor(data: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())
