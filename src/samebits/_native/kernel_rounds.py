"""Kernels called in turn, round by round, from one call of Python: the steps of a recurrent layer.

A call of a kernel from Python takes some 3 us, and 2 more to wake the threads, which is much of a small step.
Here the team is woken once, and its threads wait for one another after each call.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from samebits import _native as native
from samebits._native.kernel_threads import OnTeam, symbol
from samebits._native.torch_threads import openmp, parallel


class Call(NamedTuple):
    """A kernel, its number of chunks, its arguments, and by how much each moves on from round to round."""

    kernel: OnTeam
    chunks: int
    args: Sequence[int]
    moves: Sequence[int]


_has_barrier = symbol(openmp, "GOMP_barrier", "void") is not None
_PACK = struct.Struct("6q").pack


def run_rounds(calls: Sequence[Call], rounds: int) -> None:
    """Runs the calls in turn, `rounds` times; each sees what those before it have written."""
    width = 2 + max(len(call.args) for call in calls)
    table = np.zeros((rounds, len(calls), width), np.int64)
    # What a kernel is called with: the chunks that are taken, the number of all, and its arguments.
    for number, (_, chunks, args, moves) in enumerate(calls):
        table[:, number, 1] = chunks
        table[:, number, 2 : 2 + len(args)] = np.multiply.outer(np.arange(rounds), moves) + args
    codes = np.array([call.kernel.code() for call in calls], np.int64)
    most = max(call.chunks for call in calls)
    is_team = min(torch.get_num_threads(), most) > 1 and parallel is not None
    places = codes.ctypes.data, len(calls), table.ctypes.data, width, rounds
    _rounds.run_packed(most, _PACK(*places, is_team))


def _write(name: str) -> Any:
    return native.entry_points.rounds_module(name, has_barrier=_has_barrier)


_rounds = OnTeam(_write, __name__, "rounds" if _has_barrier else "rounds_alone", is_vectorized=False)
