"""The random numbers that round a parameter: a function of the seed, its step, name, and the rank's shard.

Ranks with the same values share them: nothing that distinguishes replicas is folded in. Ranks with different
shards of one DTensor must not share, or the errors of the shards add up (variance of the sum over 8 shards: 4
times as much): the rank's coordinate is folded in along the dimensions of the mesh over which the parameter
is not replicated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from samebits._context import Words, process
from samebits._dtensors import borders
from samebits._native import kernel
from samebits._unseeded import no_seed
from samebits.random import _int_keys as int_keys
from samebits.random._cpu.philox import block
from samebits.random._process import seeds

STREAM = int_keys.as_uint64("samebits.rounding.optim")
BY_PLACE = -1
"""No dimension of a mesh."""
_1, _2, _32 = np.uint64(1), np.uint64(2), np.uint64(32)


def process_key(subject: str, stream: int = STREAM, instead: str = "") -> Words:
    """Returns a stream's key: the run's, else the process seed's. Else raises `UnseededError`."""
    if process.run_key is not None:
        return int_keys.fold(process.run_key, stream)
    seed = seeds.root_seed()
    if seed is None:
        drift = "replicas would round differently and drift apart (all ranks need the same seed)"
        raise no_seed(subject, drift, instead)
    return int_keys.fold(int_keys.root(seed), stream)


def keys(base: Words, step: int, name: int | str, shard: Sequence[int], number: int) -> tuple[int, ...]:
    """Returns keys of `number` (at most 3) tensors of a parameter, its own, then its state's, as uint64s."""
    *before, last = name, *shard
    words = _tensor_keys(*int_keys.fold(_step_key(base, step), *before), int_keys.as_uint64(last))
    return words[: 2 * number]


@kernel("UniTuple(uint64, 6)(uint64, uint64, uint64)")
def _tensor_keys(seed: Any, offset: Any, last: Any) -> Any:
    """Folds 0, 1 and 2 into the key with `last` folded in. Calls cost more than arithmetic, so it is one."""
    a, b, c, d = block(seed, offset + last)
    own, at = a | (b << _32), c | (d << _32)
    a, b, c, d = block(own, at)
    e, f, g, h = block(own, at + _1)
    i, j, k, m = block(own, at + _2)
    return a | (b << _32), c | (d << _32), e | (f << _32), g | (h << _32), i | (j << _32), k | (m << _32)


@lru_cache(maxsize=64)
def _step_key(base: Words, step: int) -> Words:
    return int_keys.fold(base, step)


def shard(param: Any) -> list[int]:
    """Returns (dimension, coordinate) of this rank for each mesh dimension that shards a DTensor.

    In a loop with shards it is (BY_PLACE, the place of this rank's first element in the whole tensor).
    """
    if not hasattr(param, "placements"):
        return []
    if process.rows_by_place:  # sharded by rows over one dimension: other DTensors are refused there
        mesh = param.device_mesh
        first = borders(len(param), mesh.size())[mesh.get_local_rank()]
        return [BY_PLACE, first * math.prod(param.shape[1:])]
    # A rank outside holds nothing.
    coordinate = param.device_mesh.get_coordinate() or [0] * len(param.placements)
    split = [number for number, placement in enumerate(param.placements) if not placement.is_replicate()]
    return [part for dimension in split for part in (dimension, coordinate[dimension])]


def local(tensor: Any, like: Any = None) -> torch.Tensor:
    """Returns the part of a DTensor that is on this rank, placed as `like`; any other tensor itself."""
    if not hasattr(tensor, "to_local"):
        return tensor
    if like is not None and tensor.placements != like.placements:
        tensor = tensor.redistribute(placements=like.placements)
    return tensor.to_local()
