"""Tensors whose rows lie on several ranks (a DTensor with Shard(0)): their rows, and digests of any layout.

The digest of a tensor is that of the digests of its blocks: pieces of its row-major bytes, whose size follows
from the number of these bytes alone. So it does not know how many ranks had the rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
import xxhash

from samebits._dtensors import borders, local

LEAST_BLOCK = 4096
MOST_BLOCKS = 128
DIGEST_BYTES = 16


def is_whole(tensor: Any) -> bool:
    """Returns True for a DTensor of which each rank has all: on a mesh of one, or a replicated one."""
    kinds = {type(one).__name__ for one in tensor.placements}
    return tensor.device_mesh.size() == 1 or kinds == {"Replicate"}


def rows_of(shape: Sequence[int]) -> int:
    """Returns the number of rows that ranks share out: the first dimension; 1 of a single number."""
    return shape[0] if shape else 1


def first_row(tensor: Any) -> int:
    """Returns the first row of a DTensor that this rank has."""
    mesh = tensor.device_mesh
    return borders(rows_of(tensor.shape), mesh.size())[mesh.get_local_rank()]


def with_rows(like: Any, rows: torch.Tensor) -> torch.Tensor:
    """Returns a DTensor with the layout of another, whose rows on this rank are `rows`."""
    return type(like).from_local(
        rows.to(local(like).device), like.device_mesh, like.placements, run_check=False, shape=like.shape,
        stride=like.stride(),
    )  # fmt: skip


def rows_like(like: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """Returns a DTensor with the layout of another, from all of its rows."""
    if like.shape != whole.shape:  # as torch says it
        return whole
    begin = first_row(like)
    return with_rows(like, whole[begin : begin + len(local(like))])


def block_size(nbytes: int) -> int:
    """Returns the size of the blocks of a tensor: a power of two, at most `MOST_BLOCKS` of them.

    >>> block_size(100), block_size(1 << 20), block_size((1 << 20) + 1)
    (4096, 8192, 16384)
    """
    return max(LEAST_BLOCK, 1 << (max(-(-nbytes // MOST_BLOCKS), 1) - 1).bit_length())


def block_count(nbytes: int) -> int:
    return -(-nbytes // block_size(nbytes))


def block_digests(pieces: Iterable[np.ndarray], size: int) -> bytes:
    """Returns the digests of the blocks of `size` bytes (the last may be shorter) of consecutive bytes."""
    found, hasher, filled = [], xxhash.xxh3_128(), 0
    for piece in pieces:
        done = 0
        while done < piece.nbytes:
            count = min(size - filled, piece.nbytes - done)
            hasher.update(piece[done : done + count])  # type: ignore[arg-type]
            done, filled = done + count, filled + count
            if filled == size:
                found.append(hasher.digest())
                hasher, filled = xxhash.xxh3_128(), 0
    return b"".join([*found, hasher.digest()] if filled else found)


def row_bytes(shape: Sequence[int], dtype: torch.dtype) -> int:
    return math.prod(shape[1:]) * dtype.itemsize
