"""Messages between the processes of a run: bytes and small integers in a gloo group; reports long waits."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
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
        self._waiting: tuple[float, str] | None = None
        """Since when, and in what, this process waits."""
        self._closed = threading.Event()
        threading.Thread(target=self._report, daemon=True, name="samebits-waits").start()

    def close(self) -> None:
        self._closed.set()
        if dist.is_initialized():  # otherwise the program has already destroyed all groups
            dist.destroy_process_group(self._group)
        # the connections end with the last reference: ranks that wait for this one must notice
        del self._group

    def max_over_ranks(self, numbers: Sequence[int], doing: str) -> list[int]:
        """Returns the largest value of each number (64 bits, signed) over all ranks."""
        return self.start_max_over_ranks(numbers)(doing)

    def start_max_over_ranks(self, numbers: Sequence[int]) -> Callable[[str], list[int]]:
        """Begins `max_over_ranks`; returns what waits for its result, and is called with `doing`."""
        tensor = torch.tensor(numbers, dtype=torch.int64)
        work = dist.all_reduce(tensor, dist.ReduceOp.MAX, self._group, async_op=True)

        def finish(doing: str) -> list[int]:
            self.wait(work, doing)
            return tensor.tolist()

        return finish

    def gather_numbers(self, number: int, doing: str) -> list[int]:
        found = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world_size)]
        own = torch.tensor([number], dtype=torch.int64)
        self.wait(dist.all_gather(found, own, self._group, async_op=True), doing)
        return [int(one) for one in found]

    def gather_texts(self, text: str, doing: str) -> list[str]:
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

    def exchange(
        self, sent: Iterable[tuple[int, np.ndarray]], received: Iterable[tuple[int, int]], doing: str
    ) -> Iterator[np.ndarray]:
        """Sends bytes to ranks, and yields those that come: of (rank, size), in the order of each sender.

        The arrays must not change until the last one has come.
        """
        under_way = [dist.isend(torch.from_numpy(data), rank, self._group) for rank, data in sent]
        for rank, size in received:
            tensor = torch.empty(size, dtype=torch.uint8)
            self.wait(dist.irecv(tensor, rank, self._group), doing)
            yield tensor.numpy()
        for work in under_way:
            self.wait(work, doing)

    def wait(self, work: dist.Work | None, doing: str) -> None:
        """Waits for a message of this group or another; a line is printed with the rank after a while."""
        assert work is not None
        self._waiting = time.monotonic(), doing
        try:
            work.wait()
        except RuntimeError as error:
            raise self._lost_error(doing, error) from error
        finally:
            self._waiting = None

    def _report(self) -> None:
        """Prints a line for each long wait, from a thread: gloo takes a timeout of `wait` for an error."""
        seconds, reported = REPORT_AFTER.seconds, None
        while not self._closed.wait(seconds / 10):
            waiting = self._waiting
            if waiting is None or waiting is reported or time.monotonic() - waiting[0] < seconds:
                continue
            reported = waiting
            print(
                f"samebits: rank {self.rank} has waited {seconds} s for the other ranks {waiting[1]}. "
                "Does every rank get there, with as many batches and backwards?",
                file=sys.stderr, flush=True,
            )  # fmt: skip

    def _lost_error(self, doing: str, error: Exception) -> RanksError:
        return RanksError(
            f"rank {self.rank} of {self.world_size} lost another rank {doing}: "
            f"{str(error).strip().splitlines()[0][:200]}. Look at what that process printed; start the job "
            "again to resume from the last commit."
        )


def _tensor(data: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(data, np.uint8).copy())
