"""The kernels of batch normalization: the numbers of each channel, and with them each element."""

from __future__ import annotations

from typing import Any

import numpy as np

from samebits import _native as native
from samebits._native import Part, inlined, vectors
from samebits._native.kernel_threads import OnTeam, float32_at, float64_at, on_team, variants

_splat, _one_nan, _fma, _root = vectors.splat, vectors.one_nan, vectors.fma, vectors.root
_float64_of_bits, _for_each_vector = vectors.float64_of_bits, vectors.for_each_vector
_AT = {"float32": float32_at, "float64": float64_at}


@variants(lanes_type=("float32", "float64"))
def training_channels(lanes_type: str) -> OnTeam:
    """args: 1-2 addresses of mean and variance in float64; 3-4 of w and b; 5-6 of the running mean and
    variance, 0 for none; 7-9 of results: mean, istd, istd w; 10 channels; 11 elements of each; 12-13 bits of
    momentum and eps.
    """
    real, at = getattr(np, lanes_type), _AT[lanes_type]

    def channels(chunk: int, args: Any) -> None:
        count, elements = args[10], args[11]
        momentum, eps = _float64_of_bits(args[12]), _float64_of_bits(args[13])
        mean, variance = (
            native.carray(float64_at(args[1]), (count,)),
            native.carray(float64_at(args[2]), (count,)),
        )
        w = native.carray(at(args[3]), (count,))
        means, istds = native.carray(at(args[7]), (count,)), native.carray(at(args[8]), (count,))
        scales = native.carray(at(args[9]), (count,))
        for c in range(count):
            istd = real(1.0 / _root(variance[c] + eps))
            means[c], istds[c], scales[c] = _one_nan(real(mean[c])), _one_nan(istd), _one_nan(istd * w[c])
        if args[5]:
            running = native.carray(at(args[5]), (count,))
            for c in range(count):
                running[c] = _one_nan(real(momentum * mean[c] + (1.0 - momentum) * np.float64(running[c])))
        if args[6]:
            running = native.carray(at(args[6]), (count,))
            for c in range(count):
                unbiased = variance[c] * elements / (elements - 1)
                running[c] = _one_nan(real(momentum * unbiased + (1.0 - momentum) * np.float64(running[c])))

    return on_team(channels, name=f"batch_norm_channels_{lanes_type}")


@variants(lanes_type=("float32", "float64"))
def evaluation_channels(lanes_type: str) -> OnTeam:
    """args: 1-2 addresses of running variance and w; 3-4 of istd and istd w; 5 channels; 6 bits of eps."""
    real, at = getattr(np, lanes_type), _AT[lanes_type]

    def channels(chunk: int, args: Any) -> None:
        count, eps = args[5], _float64_of_bits(args[6])
        variance, w = native.carray(at(args[1]), (count,)), native.carray(at(args[2]), (count,))
        istds, scales = native.carray(at(args[3]), (count,)), native.carray(at(args[4]), (count,))
        for c in range(count):
            istd = real(1.0 / _root(np.float64(variance[c]) + eps))
            istds[c], scales[c] = _one_nan(istd), _one_nan(istd * w[c])

    return on_team(channels, name=f"batch_norm_evaluation_channels_{lanes_type}")


@variants(lanes_type=("float32", "float64"))
def gradient_channels(lanes_type: str) -> OnTeam:
    """args: 1-2 addresses of t and of the sums of g in float64; 3-4 of istd and w; 5-9 of results: dw, db,
    t istd^2 / n with the other sign, db / n, istd w; 10 channels; 11 elements of each.
    """
    real, at = getattr(np, lanes_type), _AT[lanes_type]

    def channels(chunk: int, args: Any) -> None:
        count, elements = args[10], np.float64(args[11])
        t, total = native.carray(float64_at(args[1]), (count,)), native.carray(float64_at(args[2]), (count,))
        istds, w = native.carray(at(args[3]), (count,)), native.carray(at(args[4]), (count,))
        dw, db = native.carray(at(args[5]), (count,)), native.carray(at(args[6]), (count,))
        slopes, shifts = native.carray(at(args[7]), (count,)), native.carray(at(args[8]), (count,))
        scales = native.carray(at(args[9]), (count,))
        for c in range(count):
            istd = np.float64(istds[c])
            dw[c], db[c] = _one_nan(real(t[c] * istd)), _one_nan(real(total[c]))
            slopes[c], shifts[c] = real(-(t[c] * istd * istd / elements)), real(total[c] / elements)
            scales[c] = istds[c] * w[c]

    return on_team(channels, name=f"batch_norm_gradient_channels_{lanes_type}")


@inlined
def made_normalized(x: Any, g: Any, mean: Any, a: Any, b: Any, c: Any) -> Any:
    """Returns y of an element x; a = istd w, b is the bias. `g` and `c` are for the gradient."""
    return _one_nan(_fma(x - mean, a, b))


@inlined
def made_gradient(x: Any, g: Any, mean: Any, a: Any, b: Any, c: Any) -> Any:
    """Returns dx of an element x, whose y has the gradient g; a = -t istd^2 / n, b = db / n, c = istd w."""
    return _one_nan(_fma(x - mean, a, g - b) * c)


_MADE: dict[bool, Part] = {False: made_normalized, True: made_gradient}


@variants(memory=vectors.SIZE, gradient=(False, True))
def elements_in_runs(memory: str, *, gradient: bool) -> OnTeam:
    """args: 1-3 addresses of x, g, results; 4-7 of the numbers of the channels: mean, a, b, c; 8 rows (items
    x channels); 9 channels; 10 elements of a row; 11 rows of a chunk.
    """
    made, lanes_type = _MADE[gradient], vectors.COMPUTED[memory]
    read, store, size = vectors.LOAD[memory], vectors.STORE[memory], vectors.SIZE[memory]
    load_one, width = vectors.LOAD_ONE[lanes_type], vectors.SIZE[lanes_type]

    @inlined
    def part(first: Any, some: Any, args: Any, start: Any, mean: Any, a: Any, b: Any, c: Any) -> None:
        here = start + first * size
        x = read(args[1] + here, *some)
        g = read(args[2] + here, *some) if gradient else x
        store(args[3] + here, made(x, g, mean, a, b, c), *some)

    def rows(chunk: int, args: Any) -> None:
        length = args[10]
        whole, rest = length >> 4, length & 15
        for row in range(chunk * args[11], min(args[8], (chunk + 1) * args[11])):
            at, start = row % args[9] * width, row * length * size
            mean, a = _splat(load_one(args[4] + at)), _splat(load_one(args[5] + at))
            b, c = _splat(load_one(args[6] + at)), _splat(load_one(args[7] + at))
            _for_each_vector(whole, rest, part, (args, start, mean, a, b, c))

    return on_team(rows, name=f"batch_norm_runs_{memory}_{gradient}")


@variants(memory=vectors.SIZE, gradient=(False, True))
def elements_in_columns(memory: str, *, gradient: bool) -> OnTeam:
    """The same arguments, for rows that have one element of each channel: 9 and 10 are the channels."""
    made, lanes_type = _MADE[gradient], vectors.COMPUTED[memory]
    read, store, size = vectors.LOAD[memory], vectors.STORE[memory], vectors.SIZE[memory]
    load, width = vectors.LOAD[lanes_type], vectors.SIZE[lanes_type]

    @inlined
    def part(first: Any, some: Any, args: Any, start: Any) -> None:
        here, at = start + first * size, first * width
        x = read(args[1] + here, *some)
        g = read(args[2] + here, *some) if gradient else x
        mean, a = load(args[4] + at, *some), load(args[5] + at, *some)
        b, c = load(args[6] + at, *some), load(args[7] + at, *some)
        store(args[3] + here, made(x, g, mean, a, b, c), *some)

    def rows(chunk: int, args: Any) -> None:
        length = args[10]
        whole, rest = length >> 4, length & 15
        for row in range(chunk * args[11], min(args[8], (chunk + 1) * args[11])):
            _for_each_vector(whole, rest, part, (args, row * length * size))

    return on_team(rows, name=f"batch_norm_columns_{memory}_{gradient}")
