"""Tiles of a key's stream, turned into numbers by kernels over rows: row k of an output is drawn from key k.

A tile is written to the stack as 32-bit words in the stream's order, and then turned into numbers by a second
loop: both loops are simple enough to be vectorised, and the tile stays in the first-level cache. Chunks are
runs of rows, or pieces of a long row, of a size that depends only on the row's length.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from samebits._native.kernel_threads import OnTeam, on_team, uint64_at
from samebits.random._cpu.philox import block
from samebits.random._memory import address

_TILE_WORDS = 256
_PIECE = 1 << 16
"""Elements of a chunk: at most, if rows are longer; about, if they are shorter."""
_BLOCK_BYTES = 16


def tile_kernel(store: Any, stream_bytes: int, name: str) -> OnTeam:
    """Returns a kernel for `fill`; `store(words, count, at, args)` writes `count` elements from `at` on.

    `words` is the part of the stream for them, `stream_bytes` for each element (1, 2, 4 or 8); `args[4]` is
    the output's address, and `args[5]` and so on are the `args` of `fill`.
    """
    per_tile = 4 * _TILE_WORDS // stream_bytes

    def piece(chunk: int, args: Any) -> None:
        keys, rows, per_row = uint64_at(args[1]), args[2], args[3]
        words = np.empty(_TILE_WORDS, np.uint32)
        pieces, together = (per_row + _PIECE - 1) // _PIECE, max(1, _PIECE // per_row)
        first = (chunk % pieces) * _PIECE
        last = min(per_row, first + _PIECE)
        for row in range(chunk // pieces * together, min(rows, (chunk // pieces + 1) * together)):
            seed, offset = keys[2 * row], keys[2 * row + 1]
            for start in range(first, last, per_tile):
                count = min(per_tile, last - start)
                begin = offset + np.uint64(start * stream_bytes // _BLOCK_BYTES)
                for i in range((count * stream_bytes + _BLOCK_BYTES - 1) // _BLOCK_BYTES):
                    w0, w1, w2, w3 = block(seed, begin + np.uint64(i))
                    words[4 * i] = w0
                    words[4 * i + 1] = w1
                    words[4 * i + 2] = w2
                    words[4 * i + 3] = w3
                store(words, count, row * per_row + start, args)

    return on_team(piece, name=name)


def fill(kernel: OnTeam, keys: torch.Tensor, out: torch.Tensor, *args: int) -> None:
    """Runs a kernel of `tile_kernel` over `out`, contiguous, with a row for each key: (rows, 2), or (2,)."""
    elements, rows = out.numel(), keys.numel() // 2
    if not elements:
        return
    per_row, chunks = elements // rows, 1
    if elements > _PIECE:
        chunks = -(-rows // max(1, _PIECE // per_row)) * -(-per_row // _PIECE)
    kernel(chunks, address(keys), rows, per_row, address(out), *args)
