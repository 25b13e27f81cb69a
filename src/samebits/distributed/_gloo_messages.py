"""Messages between the processes of a run: bytes and small integers in a gloo group; reports long waits."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from samebits.errors import RanksError

REPORT_AFTER = timedelta(seconds=30)
"""Time that a process waits for the others before it prints a line."""


class GlooGroup:
    """The ranks of the default process group, in a group of their own. All ranks call every method.

    Raises `RanksError` when another process has ended or is late by torch.distributed's timeout.
    """

    def __init__(self) -> None:
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        group = dist.new_group(backend="gloo")
        assert isinstance(group, dist.ProcessGroup)  # no rank is left out
        self._group = group

    def close(self) -> None:
        """Closes the connections."""
        if dist.is_initialized():  # otherwise the program has already destroyed all groups
            dist.destroy_process_group(self._group)
        # the connections end with the last reference: ranks that wait for this one must notice
        del self._group

    def max_over_ranks(self, numbers: Sequence[int], doing: str) -> list[int]:
        """Returns the largest value of each number (64 bits, signed) over all ranks."""
        tensor = torch.tensor(numbers, dtype=torch.int64)
        self.wait(dist.all_reduce(tensor, dist.ReduceOp.MAX, self._group, async_op=True), doing)
        return tensor.tolist()

    def gather_numbers(self, number: int, doing: str) -> list[int]:
        """Returns the number of each rank."""
        found = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world_size)]
        own = torch.tensor([number], dtype=torch.int64)
        self.wait(dist.all_gather(found, own, self._group, async_op=True), doing)
        return [int(one) for one in found]

    def gather_texts(self, text: str, doing: str) -> list[str]:
        """Returns the text of each rank."""
        own = text.encode()
        sizes = self.gather_numbers(len(own), doing)
        padded = torch.zeros(max(*sizes, 1), dtype=torch.uint8)
        padded[: len(own)] = _tensor(own)
        found = [torch.empty_like(padded) for _ in sizes]
        self.wait(dist.all_gather(found, padded, self._group, async_op=True), doing)
        return [bytes(one[:size].numpy().data).decode() for one, size in zip(found, sizes, strict=True)]

    def gather_values(self, values: list[Any], doing: str) -> list[list[Any]]:
        """Returns the list of each rank: of what JSON has, with floats to the last bit."""
        return [json.loads(text) for text in self.gather_texts(json.dumps(values), doing)]

    def broadcast(self, data: bytes, doing: str) -> bytes:
        """Returns the data of rank 0 on all ranks; the data of the others does not matter."""
        size = torch.tensor([len(data)], dtype=torch.int64)
        self.wait(dist.broadcast(size, 0, self._group, async_op=True), doing)
        tensor = torch.empty(int(size), dtype=torch.uint8) if self.rank else _tensor(data)
        if len(tensor):
            self.wait(dist.broadcast(tensor, 0, self._group, async_op=True), doing)
        return tensor.numpy().tobytes() if self.rank else data

    def gather(self, data: bytes, doing: str) -> list[bytes]:
        """Returns the data of ranks 1, 2, ... on rank 0; an empty list on the others."""
        sizes = self.gather_numbers(len(data), doing)
        if self.rank:
            if data:
                dist.send(_tensor(data), 0, self._group)
            return []
        found = [torch.empty(size, dtype=torch.uint8) for size in sizes[1:]]
        for rank, tensor in enumerate(found, 1):
            if len(tensor):
                dist.recv(tensor, rank, self._group)
        return [tensor.numpy().tobytes() for tensor in found]

    def wait(self, work: dist.Work | None, doing: str) -> None:
        """Waits for a collective of this group or another; prints a line with the rank after a while."""
        assert work is not None
        begun = time.monotonic()
        try:
            work.wait(REPORT_AFTER)
            return
        except RuntimeError as error:
            if work.is_completed() or time.monotonic() - begun < REPORT_AFTER.total_seconds() / 2:
                raise self._lost_error(doing, error) from error
        print(
            f"samebits: rank {self.rank} has waited {REPORT_AFTER.seconds} s for the other ranks {doing}. "
            "Does every rank get there, with as many batches?",
            file=sys.stderr, flush=True,
        )  # fmt: skip
        try:
            work.wait()
        except RuntimeError as error:
            raise self._lost_error(doing, error) from error

    def _lost_error(self, doing: str, error: Exception) -> RanksError:
        return RanksError(
            f"rank {self.rank} of {self.world_size} lost another rank {doing}: "
            f"{str(error).strip().splitlines()[0][:200]}. Look at what that process printed; start the job "
            "again to resume from the last commit."
        )


def _tensor(data: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())
