"""Passes over tensors in which each stored number is rounded by the words of its own key.

A tile of every stream is written to the stack, then a second loop consumes it while it is in the first-level
cache. Both loops are simple enough to be vectorised. The input of the second one is fetched from memory while
the first one computes. The size of chunks does not depend on the number of threads. Many small tensors are
the rows of one call.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from samebits import _native as native
from samebits._native import inlined
from samebits._native.kernel_threads import OnTeam, int64_at, on_team, uint16_at, uint64_at
from samebits._native.vectors import prefetch
from samebits.random._cpu.philox import block

_TILE = 512
_PIECE, _LARGE_PIECE, _LARGE = 1 << 16, 1 << 20, 1 << 23
"""Elements of a chunk, of a large tensor's chunk: threads that fill one fresh huge page would wait."""
_STREAMS = 3
_BLOCK_BYTES = 16
LINE_BYTES = 64


@inlined
def random_half(words: Any, stream: Any, j: Any) -> Any:
    """Returns the 16 bits that decide element j of a tile, from stream number `stream` of its kernel."""
    return uint16_at(native.address_of(words))[2 * _TILE * stream + j]


@inlined
def random_word(words: Any, stream: Any, j: Any) -> Any:
    """Returns the 32 bits that decide element j; as `random_half`."""
    return words[_TILE * stream + j]


def tile_kernel(store: Any, widths: tuple[int, ...], reads: tuple[tuple[int, int], ...], name: str) -> OnTeam:
    """Returns a kernel for `run` and `run_rows`.

    `store(words, count, at, row)` computes elements `at`, ..., `at + count - 1`.

    `widths[s]` is 2 or 4: the bytes for each element of the stream s, which `random_half` or `random_word`
    read out of `words`. `row[2]` and so on are the `args` of `run`. `reads` has (k, bytes of an element) for
    each input at `row[k]`.
    """

    def piece(chunk: int, args: Any) -> None:
        table, numbers, rows, size = args[1], args[2], args[3], args[4]
        words = np.empty(_STREAMS * _TILE, np.uint32)
        first = chunk * size
        for number in range(rows):
            row = int64_at(table + 8 * numbers * number)
            keys = uint64_at(row[0])
            last = min(row[1], first + size)
            for start in range(first, last, _TILE):
                count = min(_TILE, last - start)
                for k, width in reads:
                    for line in range(start * width, (start + count) * width, LINE_BYTES):
                        prefetch(row[k] + line)
                for stream in range(len(widths)):
                    width = widths[stream]
                    seed = keys[2 * stream]
                    begin = keys[2 * stream + 1] + np.uint64(start * width // _BLOCK_BYTES)
                    place = stream * _TILE
                    for i in range((count * width + _BLOCK_BYTES - 1) // _BLOCK_BYTES):
                        w0, w1, w2, w3 = block(seed, begin + np.uint64(i))
                        words[place + 4 * i] = w0
                        words[place + 4 * i + 1] = w1
                        words[place + 4 * i + 2] = w2
                        words[place + 4 * i + 3] = w3
                store(words, count, start, row)

    return on_team(piece, name=name)


def run(kernel: OnTeam, keys: int, elements: int, *args: int) -> None:
    """Runs a kernel of `tile_kernel` over `elements`; `keys` is the address of two uint64 per stream."""
    if elements:
        size = _LARGE_PIECE if elements >= _LARGE else _PIECE
        row = array("q", (keys, elements, *args))
        kernel(-(-elements // size), row.buffer_info()[0], len(row), 1, size)


def run_rows(kernel: OnTeam, rows: Sequence[tuple[Sequence[int], int, Sequence[int]]]) -> None:
    """Runs rows of (the uint64 of its keys, elements, args). Rows up to a chunk: one call, one thread."""
    keys = array("Q", chain.from_iterable(own for own, _, _ in rows))
    place, table, small = keys.buffer_info()[0], array("q"), 0
    for own, elements, args in rows:
        if elements > _PIECE:
            run(kernel, place, elements, *args)
        else:
            table.extend((place, elements, *args))
            small += 1
        place += len(own) * keys.itemsize
    if small:
        kernel(1, table.buffer_info()[0], len(table) // small, small, _PIECE)
