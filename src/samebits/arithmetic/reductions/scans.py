"""logcumsumexp: along a row in float64, each step log(exp(sum so far) + exp(x)); rounded once."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits._native import vectors
from samebits._native.kernel_threads import OnTeam, on_team, variants
from samebits.arithmetic.reductions.tensors import MEMORY
from samebits.arithmetic.softmax.rows import log_of_sum

_GRAIN = 1 << 9
"""Elements of a chunk, about."""
_one_nan = vectors.one_nan


@variants(memory=vectors.SIZE)
def _rows(memory: str) -> OnTeam:
    """args: 1-2 addresses of x and of the results; 3 rows; 4 their length; 5 rows of a chunk."""
    load, store, size = vectors.LOAD_ONE[memory], vectors.STORE_ONE[memory], vectors.SIZE[memory]

    def rows(chunk: int, args: Any) -> None:
        for row in range(chunk * args[5], min(args[3], (chunk + 1) * args[5])):
            total, start = np.float64(-np.inf), row * args[4] * size
            for i in range(args[4]):
                total = log_of_sum(total, np.float64(load(args[1] + start + i * size)))
                store(args[2] + start + i * size, _one_nan(total))

    return on_team(rows, name=f"logcumsumexp_{memory}")


def logcumsumexp(x: Tensor, dim: int) -> Tensor:
    """Returns log(cumsum(exp(x))) along a dimension, in contiguous form."""
    moved = x.movedim(dim, -1).contiguous() if x.dim() else x.view(1)
    out, length = torch.empty_like(moved), moved.shape[-1]
    if moved.numel():
        rows, piece = moved.numel() // length, max(1, _GRAIN // length)
        chunks = -(-rows // piece)
        _rows(MEMORY[x.dtype])(chunks, moved.data_ptr(), out.data_ptr(), rows, length, piece)
    return out.movedim(-1, dim).contiguous() if x.dim() else out.view(())
