"""The negative log-likelihood of items (N, C, ...) for targets (N, ...)."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits import _native as native
from samebits._native import vectors
from samebits._native.kernel_threads import OnTeam, int64_at, on_team
from samebits.arithmetic.reductions.kernels import finished
from samebits.arithmetic.reductions.running import room_of_sums, sum_of_run
from samebits.arithmetic.reductions.tensors import MEMORY, reduce

_PIECE = 1 << 13
"""Items of a chunk."""
NONE, MEAN, SUM = range(3)
"""torch's numbers of reductions."""
_splat = vectors.splat


@cache
def _kernel(memory: str) -> OnTeam:
    """args: 1-5 addresses of x, targets, weights, terms, terms' weights; 6 of the number of targets that are not there;
    7 items; 8 classes; 9 places of an item (of H x W); 10 target to be ignored; 11 reduction, if there is one chunk, else 0;
    12-13 addresses of the loss and of the total weight. Terms, weights and results are in the lanes' type.
    """
    lanes_type = "float64" if memory == "float64" else "float32"
    real, size, width = getattr(np, lanes_type), vectors.SIZE[memory], vectors.SIZE[lanes_type]
    load, load_one, store_one = (
        vectors.LOAD_ONE[memory],
        vectors.LOAD_ONE[lanes_type],
        vectors.STORE_ONE[lanes_type],
    )
    total_of = sum_of_run("sum", lanes_type)

    def items(chunk: int, args: Any) -> None:
        classes, places = args[8], args[9]
        targets = native.carray(int64_at(args[2]), (args[7],))
        wrong = 0
        for i in range(chunk * _PIECE, min(args[7], (chunk + 1) * _PIECE)):
            target, weight, term = targets[i], real(0), real(0)
            if target != args[10]:
                if target < 0 or target >= classes:
                    wrong += 1
                else:
                    outer, inner = (i // places, i % places) if places > 1 else (i, 0)
                    weight = load_one(args[3] + target * width) if args[3] else real(1)
                    term = -weight * load(args[1] + ((outer * classes + target) * places + inner) * size)
            store_one(args[4] + i * width, term)
            store_one(args[5] + i * width, weight)
        if wrong:
            native.carray(int64_at(args[6]), (1,))[0] = wrong
        if args[11]:
            room, none = room_of_sums(), _splat(real(0))
            weight = total_of(args[5], args[5], args[7], none, room)
            loss = total_of(args[4], args[4], args[7], none, room)
            store_one(args[12], finished(loss, 1 if args[11] == MEAN else 0, weight))
            store_one(args[13], finished(weight, 0, weight))

    return on_team(items, name=f"likelihood_{memory}")


def likelihood(
    x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignored: int
) -> tuple[Tensor, Tensor] | None:
    """Returns the loss and the total weight; None if a target is no class.

    Args:
        x: contiguous log-probabilities (N, C, ...).
        target: contiguous int64 (N, ...).
        weight: of the classes, of the type of `x`.
        reduction: torch's number.
        ignored: the target whose items count nothing.
    """
    count, classes, items = target.numel(), x.shape[1], target.shape[0]
    kind = torch.float64 if x.dtype == torch.float64 else torch.float32
    terms, wrong = torch.empty(2 * count, dtype=kind), ctypes.c_int64(0)
    loss, total = torch.empty((), dtype=kind), torch.empty((), dtype=kind)
    w = None if weight is None else weight.to(kind).contiguous()
    chunks, at = -(-count // _PIECE), terms.data_ptr()
    _kernel(MEMORY[x.dtype])(
        chunks,
        x.data_ptr(),
        target.data_ptr(),
        0 if w is None else w.data_ptr(),
        at,
        at + count * terms.element_size(),
        ctypes.addressof(wrong),
        count,
        classes,
        count // items,
        ignored,
        reduction if chunks == 1 else NONE,
        loss.data_ptr(),
        total.data_ptr(),
    )
    if wrong.value:
        return None
    if reduction == NONE:
        return terms[:count].view(target.shape).to(x.dtype, copy=True), torch.zeros((), dtype=x.dtype)
    if chunks > 1:
        loss, total = reduce("sum", terms.view(2, count), (1,)).unbind()
        if reduction == MEAN:
            loss = loss / total
            loss = torch.where(loss.isnan(), torch.nan, loss)
    if kind is x.dtype and chunks == 1:
        return loss, total
    return loss.to(x.dtype, copy=True), total.to(x.dtype, copy=True)
