"""Batch normalization of contiguous (N, C, ...) in one kernel: a chunk is a channel, and stays in the cache.

It follows the definition as the kernels of `batches` do, step by step.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from samebits._native import inlined, vectors
from samebits._native.kernel_threads import OnTeam, on_team, variants
from samebits.arithmetic.normalization.batches import made_gradient, made_normalized
from samebits.arithmetic.reductions.running import room_of_block, room_of_sums, sum_of_runs

_splat, _one_nan, _root = vectors.splat, vectors.one_nan, vectors.root
_float64_of_bits, _for_each_vector = vectors.float64_of_bits, vectors.for_each_vector


@variants(memory=vectors.SIZE)
def whole_batch_norm(memory: str) -> OnTeam:
    """args: 1-4 addresses of x, w, b, results; 5-6 of the running mean and variance, 0 for none; 7-8 of mean
    and istd; 9 items; 10 channels; 11 elements of a run; 12-13 bits of momentum and eps.
    """
    lanes_type = vectors.COMPUTED[memory]
    real, width = getattr(np, lanes_type), vectors.SIZE[lanes_type]
    total_of, spread_of = sum_of_runs("wide sum", memory), sum_of_runs("deviation", memory)
    read, store, size = vectors.LOAD[memory], vectors.STORE[memory], vectors.SIZE[memory]
    load_one, store_one = vectors.LOAD_ONE[lanes_type], vectors.STORE_ONE[lanes_type]

    @inlined
    def part(first: Any, some: Any, args: Any, here: Any, mean: Any, a: Any, b: Any) -> None:
        x = read(args[1] + here + first * size, *some)
        store(args[4] + here + first * size, made_normalized(x, x, mean, a, b, a), *some)

    def channel(chunk: int, args: Any) -> None:
        run, between = args[11], args[10] * args[11] * size
        count, start = args[9] * run, chunk * run * size
        momentum, at = _float64_of_bits(args[12]), chunk * width
        rooms = room_of_sums(), room_of_block(), room_of_block()
        x, elements = args[1] + start, np.float64(count)
        mean = total_of(x, x, count, run, between, _splat(0.0), rooms) / elements
        variance = spread_of(x, x, count, run, between, _splat(mean), rooms) / elements
        istd = real(1.0 / _root(variance + _float64_of_bits(args[13])))
        store_one(args[7] + at, _one_nan(real(mean)))
        store_one(args[8] + at, _one_nan(istd))
        if args[5]:
            old = np.float64(load_one(args[5] + at))
            store_one(args[5] + at, _one_nan(real(momentum * mean + (1.0 - momentum) * old)))
        if args[6]:
            unbiased = variance * count / (count - 1)
            old = np.float64(load_one(args[6] + at))
            store_one(args[6] + at, _one_nan(real(momentum * unbiased + (1.0 - momentum) * old)))
        center, a, b = (
            _splat(real(mean)),
            _splat(istd * load_one(args[2] + at)),
            _splat(load_one(args[3] + at)),
        )
        for item in range(args[9]):
            _for_each_vector(run >> 4, run & 15, part, (args, start + item * between, center, a, b))

    return on_team(channel, name=f"whole_batch_norm_{memory}")


@variants(memory=vectors.SIZE)
def whole_batch_norm_gradients(memory: str) -> OnTeam:
    """args: 1-5 addresses of g, x, w, mean, istd; 6-8 of dx (0: not wanted), dw, db; 9 items; 10 channels;
    11 elements of a run.
    """
    lanes_type = vectors.COMPUTED[memory]
    real, width = getattr(np, lanes_type), vectors.SIZE[lanes_type]
    total_of, dot_of = sum_of_runs("wide sum", memory), sum_of_runs("deviation dot", memory)
    read, store, size = vectors.LOAD[memory], vectors.STORE[memory], vectors.SIZE[memory]
    load_one, store_one = vectors.LOAD_ONE[lanes_type], vectors.STORE_ONE[lanes_type]

    def channel(chunk: int, args: Any) -> None:
        run, between = args[11], args[10] * args[11] * size
        count, start, at = args[9] * run, chunk * run * size, chunk * width
        rooms = room_of_sums(), room_of_block(), room_of_block()
        g, x, elements = args[1] + start, args[2] + start, np.float64(count)
        mean, istd = load_one(args[4] + at), load_one(args[5] + at)
        wide, middle = np.float64(istd), _splat(np.float64(mean))
        total = total_of(g, g, count, run, between, middle, rooms)
        t = dot_of(x, g, count, run, between, middle, rooms)
        store_one(args[7] + at, _one_nan(real(t * wide)))
        store_one(args[8] + at, _one_nan(real(total)))
        center, c = _splat(mean), _splat(istd * load_one(args[3] + at))
        a, b = _splat(real(-(t * wide * wide / elements))), _splat(real(total / elements))
        for item in range(args[9] if args[6] else 0):
            here = start + item * between
            for i in range(run >> 4):
                place = here + i * 16 * size
                made = made_gradient(read(args[2] + place), read(args[1] + place), center, a, b, c)
                store(args[6] + place, made)
            if run & 15:
                here += (run >> 4) * 16 * size
                x_rest, g_rest = read(args[2] + here, run & 15), read(args[1] + here, run & 15)
                store(args[6] + here, made_gradient(x_rest, g_rest, center, a, b, c), run & 15)

    return on_team(channel, name=f"whole_batch_norm_gradients_{memory}")
