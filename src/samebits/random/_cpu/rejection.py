"""Gamma, Poisson and binomial numbers by rejection, in float64: an element has a stream of its own.

A call has one key. Attempt a at element i (in row-major order) reads the words of Philox4x32-10 for the
counter (i, a, part) and that cipher key: an element's bits name no other element, and no thread. Two words
make a uniform number in (0, 1]; normal numbers are the first ones of the Box-Muller transform.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits._native import inlined
from samebits._native.kernel_threads import OnTeam, float64_at, on_team
from samebits._native.vectors import magnitude
from samebits.arithmetic.functions import exp_bounded_double
from samebits.random._cpu.elementary import box_muller_64, log_64
from samebits.random._cpu.philox import philox4x32
from samebits.random._cpu.uniform_normal_kernels import _float64_in_0_1

_PIECE = 256
"""Elements of a chunk."""
_LOW, _32 = np.uint64(0xFFFFFFFF), np.uint64(32)
_TAILS = (
    0.0810614667953272, 0.0413406959554092, 0.0276779256849983, 0.02079067210376509, 0.0166446911898211,
    0.0138761288230707, 0.0118967099458917, 0.0104112652619720, 0.00925546218271273, 0.00833056343336287,
)  # fmt: skip
_HALF_LOG_TAU = 0.5 * math.log(math.tau)


def drawn(sampler: OnTeam, key: int, first: Tensor, second: Tensor | None = None) -> Tensor:
    """Returns float64 numbers of the shape of the parameters, which are float64; `key` is below 2**63."""
    first = first.contiguous()
    second = first if second is None else second.contiguous()
    out, count = torch.empty_like(first), first.numel()
    sampler(-(-count // _PIECE), key, first.data_ptr(), second.data_ptr(), out.data_ptr(), count)
    return out


def _sampler(name: str, sample: Callable[..., Any]) -> OnTeam:
    """Returns a kernel; args: 1 key, 2-3 addresses of parameters, 4 of results, 5 their number."""
    one = inlined(sample)

    def piece(chunk: int, args: Any) -> None:
        key, first, second, out = np.uint64(args[1]), float64_at(args[2]), float64_at(args[3]), args[4]
        numbers = float64_at(out)
        for i in range(chunk * _PIECE, min(args[5], (chunk + 1) * _PIECE)):
            numbers[i] = one(first[i], second[i], key, i)

    return on_team(piece, name=f"draws_{name}")


@inlined
def _uniforms(key: Any, element: Any, attempt: Any, part: Any) -> Any:
    """Returns two uniform numbers in (0, 1]."""
    i = np.uint64(element)
    words = philox4x32(i & _LOW, i >> _32, np.uint64(attempt), np.uint64(part), key & _LOW, key >> _32)
    return _float64_in_0_1(words[0], words[1]), _float64_in_0_1(words[2], words[3])


def _gamma(shape: Any, _: Any, key: Any, element: Any) -> Any:
    """Marsaglia and Tsang, 2000; a shape a < 1 is that of a + 1, times u^(1 / a)."""
    boosted = shape + 1.0 if shape < 1.0 else shape
    d = boosted - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    attempt, v, rest, accepted = 0, 0.0, 0.0, False
    while not accepted:
        u0, u1 = _uniforms(key, element, attempt, 0)
        u, rest = _uniforms(key, element, attempt, 1)
        normal = box_muller_64(u0, u1)
        x, root = normal[0], 1.0 + c * normal[0]
        v, square = root * root * root, x * x
        accepted = not root <= 0.0 and (
            u < 1.0 - 0.0331 * square * square or log_64(u) < 0.5 * square + d * (1.0 - v + log_64(v))
        )
        attempt += 1
    return exp_bounded_double(log_64(rest) / shape) * d * v if shape < 1.0 else d * v


@inlined
def _stirling_tail(k: Any) -> Any:
    """Returns log(k!) - log(tau) / 2 - (k + 1/2) log(k + 1) + k + 1 of an integer."""
    square = (k + 1.0) * (k + 1.0)
    series = (1.0 / 12.0 - (1.0 / 360.0 - 1.0 / 1260.0 / square) / square) / (k + 1.0)
    return _TAILS[int(k)] if k < 10.0 else series


@inlined
def _transformed(center: Any, scale: Any, a: Any, u: Any) -> Any:
    """Returns the integer of a uniform number in (-1/2, 1/2], and its distance from the ends."""
    distance = 0.5 - magnitude(u)
    return np.floor((2.0 * a / distance + scale) * u + center), distance


def _poisson(rate: Any, _: Any, key: Any, element: Any) -> Any:
    """Below 10 as many uniform factors as keep their product above exp(-rate); else Hoermann's PTRS, 1993."""
    k, attempt, product = 0.0, 0, 1.0
    if rate < 10.0:
        least = exp_bounded_double(-rate)
        product, _second = _uniforms(key, element, 0, 0)
        while product > least:
            k += 1.0
            attempt += 1
            u, _second = _uniforms(key, element, attempt, 0)
            product *= u
        return k
    b = 0.931 + 2.53 * math.sqrt(rate)
    a = 0.02483 * b - 0.059
    log_rate, accepted = log_64(rate), False
    while not accepted:
        first, v = _uniforms(key, element, attempt, 0)
        k, us = _transformed(rate + 0.43, b, a, first - 0.5)
        accepted = us >= 0.07 and v <= 0.9277 - 3.6224 / (b - 2.0)
        if not accepted and k >= 0.0 and (us >= 0.013 or v <= us):
            height = v * (1.1239 + 1.1328 / (b - 3.4)) / (a / (us * us) + b)
            of_factorial = (k + 0.5) * log_64(k + 1.0) - (k + 1.0) + _HALF_LOG_TAU + _stirling_tail(k)
            accepted = log_64(height) <= k * log_rate - rate - of_factorial
        attempt += 1
    return k


def _binomial(count: Any, probability: Any, key: Any, element: Any) -> Any:
    """Counts the rarer outcome; below a mean of 10 by geometric gaps, else by Hoermann's BTRS, 1993."""
    swapped = probability > 0.5
    p = 1.0 - probability if swapped else probability
    k, attempt = 0.0, 0
    if not (count > 0.0 and p > 0.0):
        k = p * count if np.isnan(p) or np.isnan(count) else 0.0
    elif count * p < 10.0:
        rest, place = 1.0 - p, 0.0
        log_rest = log_64(rest) * p / (1.0 - rest) if rest < 1.0 else -p  # log1p(-p); Kahan
        while place <= count:
            u, _second = _uniforms(key, element, attempt, 0)
            place -= np.floor(-(log_64(u) / log_rest))
            k += 1.0 if place <= count else 0.0
            attempt += 1
    else:
        deviation = math.sqrt(count * p * (1.0 - p))
        b = 1.15 + 2.53 * deviation
        a, ratio, mode = 0.0248 * b - 0.0873 + 0.01 * p, p / (1.0 - p), np.floor((count + 1.0) * p)
        accepted = False
        while not accepted:
            first, v = _uniforms(key, element, attempt, 0)
            k, us = _transformed(count * p + 0.5, b, a, first - 0.5)
            inside = k >= 0.0 and k <= count
            accepted = inside and us >= 0.07 and v <= 0.92 - 4.2 / b
            if inside and not accepted:
                height = v * (2.83 + 5.1 / b) * deviation / (a / (us * us) + b)
                accepted = log_64(height) <= _log_odds(count, mode, k, ratio)
            attempt += 1
    return count - k if swapped else k


@inlined
def _log_odds(count: Any, mode: Any, k: Any, ratio: Any) -> Any:
    """Returns the logarithm of the probability of k successes divided by that of `mode` successes."""
    return (
        (mode + 0.5) * log_64((mode + 1.0) / (ratio * (count - mode + 1.0)))
        + (count + 1.0) * log_64((count - mode + 1.0) / (count - k + 1.0))
        + (k + 0.5) * log_64(ratio * (count - k + 1.0) / (k + 1.0))
        + (_stirling_tail(mode) + _stirling_tail(count - mode))
        - (_stirling_tail(k) + _stirling_tail(count - k))
    )


GAMMA, POISSON, BINOMIAL = (
    _sampler("gamma", _gamma),
    _sampler("poisson", _poisson),
    _sampler("binomial", _binomial),
)
"""Kernels for `drawn`, of a shape, of a rate, and of a count and a probability."""
