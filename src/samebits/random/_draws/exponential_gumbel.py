"""Random numbers computed from uniform ones: `exponential`, `gumbel`, `truncated_normal`.

Element i of a row is made of word i of its key's stream (two words for float64) alone. Half precision is
computed in float32 and rounded once, to nearest even.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache

import torch

from samebits.errors import InvalidArgumentError
from samebits.random._cpu import transformed_kernels
from samebits.random._device_kernels import kernels
from samebits.random._draws.uniform_normal import draw
from samebits.random._random_arguments import row_keys

_FAR = 36
"""Deviations above which a tail is drawn by its expansion: its probability nears the least float64."""


def exponential(
    key: torch.Tensor,
    *shape: int | Sequence[int],
    rate: float = 1.0,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """Returns exponential numbers -log(u) / rate; float32 by default, float64, float16 or bfloat16.

    Within 3 ulp of the exact function of the word, over the whole range: positive, at most 22.9 / rate (45.1
    / rate in float64), where the resolution of the words ends. Raises `InvalidArgumentError` unless rate is
    positive and finite, for another dtype, a wrong key, or a key batch that does not fit the shape.

    Example:
        >>> key = samebits.random.key(7)
        >>> waits = samebits.random.exponential(key, 2, 3, rate=10.0)
        >>> waits.shape, bool((waits > 0).all())
        (torch.Size([2, 3]), True)
        >>> torch.equal(samebits.random.exponential(key, 2, 3, rate=10.0), waits)
        True
    """
    _check_positive("exponential", "rate", rate)
    return draw("exponential", transform, key, shape, dtype, device, rate)


def gumbel(
    key: torch.Tensor,
    *shape: int | Sequence[int],
    loc: float = 0.0,
    scale: float = 1.0,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """Returns Gumbel numbers loc - scale log(-log(u)); dtypes as for `exponential`.

    -log(u) is exact to 3 ulp over its whole range, so the standard ones have an absolute error of some 3 ulp
    of max(1, |x|), and lie in -3.2 ... 22.9 (-3.9 ... 45.1 in float64). Raises `InvalidArgumentError` unless
    loc is finite and scale positive and finite, and as `exponential`.

    Example:
        >>> key, logits = samebits.random.key(7), torch.tensor([0.0, 1.0, 2.0])
        >>> noise = samebits.random.gumbel(key, 5, 3)
        >>> drawn = samebits.random.categorical(key, 5, logits=logits)
        >>> torch.equal((logits - logits.max() + noise).argmax(dim=1), drawn)
        True
    """
    _check_finite("gumbel", "loc", loc)
    _check_positive("gumbel", "scale", scale)
    return draw("gumbel", transform, key, shape, dtype, device, loc, scale)


def truncated_normal(
    key: torch.Tensor,
    *shape: int | Sequence[int],
    mean: float = 0.0,
    std: float = 1.0,
    low: float = -2.0,
    high: float = 2.0,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """Returns normal numbers of this mean and deviation within [low, high]; dtypes as for `exponential`.

    The bounds are those of the result, as in `torch.nn.init.trunc_normal_`; they may be infinite, exclude the
    mean, and be in any tail: the inverse of the distribution is computed from the tail that is exact, in
    float64. Every result is in [low, high], also after rounding. Raises `InvalidArgumentError` unless low <
    high, std is positive and mean and std finite, when the dtype has no number in [low, high], and as
    `exponential`.

    Example:
        >>> key = samebits.random.key(7)
        >>> weight = samebits.random.truncated_normal(key, 1000, std=0.02, low=-0.04, high=0.04)
        >>> bool((weight.abs() <= 0.04).all())
        True
        >>> again = samebits.random.truncated_normal(key, 1000, std=0.02, low=-0.04, high=0.04)
        >>> torch.equal(again, weight)
        True
    """
    caller = "truncated_normal"
    _check_finite(caller, "mean", mean)
    _check_positive(caller, "std", std)
    if not low < high:
        raise InvalidArgumentError(f"{caller}: low must be below high, got low={low}, high={high}")
    return draw(caller, transform, key, shape, dtype, device, mean, std, low, high)


def transform(caller: str, key: torch.Tensor, out: torch.Tensor, *parameters: float) -> torch.Tensor:
    """Fills `out` with the numbers of that function, once its arguments are checked."""
    name, given = caller, parameters
    if caller == "truncated_normal":
        mean, std, low, high = map(float, parameters)
        name, given = _truncation(mean, std, low, high, out.dtype)
    keys = row_keys(caller, key, out.shape)
    kernels(caller, key).transformed(name, keys, given, out)
    return out


def _check_finite(caller: str, name: str, number: float) -> None:
    if not -math.inf < number < math.inf:  # as math.isfinite, which Dynamo does not know for symbolic numbers
        raise InvalidArgumentError(f"{caller}: {name} must be finite, got {number}")


def _check_positive(caller: str, name: str, number: float) -> None:
    if not 0 < number < math.inf:
        raise InvalidArgumentError(f"{caller}: {name} must be positive and finite, got {number}")


def _bounds_in_dtype(low: float, high: float, dtype: torch.dtype) -> tuple[float, float]:
    """Returns the least and the greatest number of the dtype in [low, high]; raises where none is finite."""
    bounds = torch.tensor([low, high], dtype=torch.float64)
    least, greatest = bounds.to(dtype).double().tolist()
    if least < low:
        least = _next(least, dtype, up=True)
    if greatest > high:
        greatest = _next(greatest, dtype, up=False)
    if not least <= greatest or least == math.inf or greatest == -math.inf:
        raise InvalidArgumentError(
            f"truncated_normal: no {dtype} is in low={low} to high={high}; choose a wider interval or dtype"
        )
    return least, greatest


def _next(number: float, dtype: torch.dtype, *, up: bool) -> float:
    """Returns the neighbour of a number of the dtype (torch.nextafter has no float16)."""
    integer = {8: torch.int64, 4: torch.int32, 2: torch.int16}[dtype.itemsize]
    if number == 0:
        step = torch.tensor([1], dtype=integer).view(dtype).double().item()
        return step if up else -step
    bits = torch.tensor([number], dtype=torch.float64).to(dtype).view(integer)
    return (bits + (1 if up == (number > 0) else -1)).view(dtype).double().item()


@lru_cache(maxsize=256)
def _truncation(
    mean: float, std: float, low: float, high: float, dtype: torch.dtype
) -> tuple[str, tuple[float, ...]]:
    """Returns the name of the kernel and its parameters."""
    least, greatest = _bounds_in_dtype(low, high, dtype)
    with transformed_kernels.exact():
        a, b = ((Decimal(bound) - Decimal(mean)) / Decimal(std) for bound in (low, high))
        if max(a, -b) < _FAR:
            probabilities = (
                transformed_kernels.upper_tail(-a),
                transformed_kernels.upper_tail(b),
                transformed_kernels.between(a, b),
            )
            return "truncated", (*map(float, probabilities), mean, std, least, greatest)
        start, end, bound, away = (a, b, low, std) if a > 0 else (-b, -a, high, -std)
        beyond = transformed_kernels.tails_ratio(start, end)
        return "far_tail", (float(start), float(beyond), float(1 - beyond), bound, away, least, greatest)
