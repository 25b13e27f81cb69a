"""The rows of each global batch that a rank gets: the same batches, for any number of ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch.distributed as dist

from samebits.errors import InvalidArgumentError

Remainder = Literal["pad", "drop", "uneven"]


@dataclass(frozen=True)
class Share:
    """Rows `rank`, `rank + world_size`, ... of each batch.

    Where a batch cannot be shared evenly: "pad" repeats its first rows, so that all ranks get the same number; "drop"
    leaves out its last rows; "uneven" gives some ranks one row more (a batch of fewer rows than ranks still gives
    each rank one).
    """

    rank: int = 0
    world_size: int = 1
    remainder: Remainder = "pad"

    def rows(self, count: int) -> np.ndarray:
        """Returns the numbers of this rank's rows in a batch of `count` rows."""
        if self.world_size == 1:
            return np.arange(count)
        own = np.arange(self.rank, count, self.world_size)
        if self.remainder == "drop":
            return own[: count // self.world_size]
        if self.remainder == "uneven" and own.size:
            return own
        padded = np.arange(self.rank, -(-count // self.world_size) * self.world_size, self.world_size)
        return padded % count

    def check(self, batch_size: int) -> None:
        """Raises `InvalidArgumentError` if full batches would not be shared evenly."""
        if batch_size % self.world_size and self.remainder != "uneven":
            raise InvalidArgumentError(
                f"Pipeline.batch(batch_size={batch_size}): this is the size of the global batch, and {self.world_size} ranks "
                f'cannot share it evenly; take a multiple of {self.world_size}, or with_options(remainder="uneven")'
            )


def share(rank: int | None, world_size: int | None, remainder: Remainder) -> Share:
    """Returns the share of this process: as given, else that of torch.distributed, else everything.

    Raises:
        InvalidArgumentError: only one of rank and world_size is given, or 0 <= rank < world_size does not hold.
    """
    if rank is None and world_size is None:
        together = dist.is_available() and dist.is_initialized()
        return Share(dist.get_rank(), dist.get_world_size(), remainder) if together else Share()
    if rank is None or world_size is None or not 0 <= rank < world_size:
        raise InvalidArgumentError(
            f"Pipeline.with_options(rank={rank}, world_size={world_size}): give both, with 0 <= rank < world_size"
        )
    return Share(rank, world_size, remainder)
