"""Random tensors, functions of a key: `bits`, `uniform`, `normal`, `bernoulli`, and their in-place forms.

Signatures, batched keys and the mapping from words to numbers follow `torch.func._random`. For a batch of
keys of shape (*batch, 2), batch is broadcast against the output's shape and has as many dimensions; its
trailing ones are drawn from one key. An element depends only on its row's key, its place in the row and the
parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import torch

from samebits.errors import InvalidArgumentError
from samebits.random._device_kernels import kernels
from samebits.random._keys import is_traced
from samebits.random._memory import fresh
from samebits.random._random_arguments import (
    FLOATS,
    INTEGERS,
    check_probability,
    check_result,
    floating_dtype,
    row_keys,
    sizes,
    write,
)

_COUNTABLE = (*FLOATS, torch.bool, *INTEGERS)
Shape = int | Sequence[int]


def bits(key: torch.Tensor, *shape: Shape, dtype: torch.dtype = torch.uint32) -> torch.Tensor:
    """Returns uniform integers of an integer dtype's range: the bytes of the key's stream, little-endian.

    Raises `InvalidArgumentError` for another dtype, a wrong key, or a key batch that does not fit the shape.

    Example:
        >>> key = samebits.random.key(7)
        >>> samebits.random.bits(key, 3)
        tensor([4099963437, 3221879260,  490388034], dtype=torch.uint32)
        >>> samebits.random.bits(key, 3, dtype=torch.uint8)
        tensor([ 45, 122,  96], dtype=torch.uint8)
    """
    size = sizes("bits", key, shape)
    if dtype not in INTEGERS:
        raise InvalidArgumentError(f"bits: dtype must be an integer dtype, got {dtype}")
    return torch.ops.samebits.bits(key, size, dtype) if is_traced(key) else stream(key, size, dtype)


def stream(key: torch.Tensor, size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Returns `bits`, once its arguments are checked."""
    keys = row_keys("bits", key, size)
    backend = kernels("bits", key)
    out = fresh(size, dtype, key.device)
    backend.words(keys, out)
    return out


def uniform(
    key: torch.Tensor,
    *shape: Shape,
    low: float = 0.0,
    high: float = 1.0,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """Returns uniform numbers of [low, high); float32 by default, float64, float16 or bfloat16.

    As in torch, rounding x (high - low) + low to the dtype may give `high` itself unless low = 0 and high =
    1. They are drawn on the key's device and moved to `device`. Raises `InvalidArgumentError` for another
    dtype, low > high, bounds or a range that the dtype does not hold, or a key batch that does not fit the
    shape.

    Example:
        >>> key = samebits.random.key(7)
        >>> samebits.random.uniform(key, 4)
        tensor([0.3769, 0.0390, 0.2294, 0.9284])
        >>> keys = samebits.random.split(key, 2)
        >>> rows = samebits.random.uniform(keys[:, None], 2, 3)  # a key for each row
        >>> torch.equal(rows[1], samebits.random.uniform(keys[1], 3))
        True
    """
    return draw("uniform", fill_uniform, key, shape, dtype, device, low, high)


def uniform_(key: torch.Tensor, result: torch.Tensor, *, low: float = 0.0, high: float = 1.0) -> torch.Tensor:
    """Fills `result`, of any layout, with the numbers of `uniform` for its shape and dtype, and returns it.

    Raises `InvalidArgumentError` as `uniform`, and if `result` is on another device or requires grad.

    Example:
        >>> key, x = samebits.random.key(7), torch.empty(4)
        >>> x is samebits.random.uniform_(key, x, low=-1.0)
        True
        >>> torch.equal(x, samebits.random.uniform(key, 4, low=-1.0))
        True
    """
    check_result("uniform_", key, result, FLOATS)
    if is_traced(key):
        return result.copy_(uniform(key, result.shape, low=low, high=high, dtype=result.dtype))
    return fill_uniform("uniform_", key, result, low, high)


def fill_uniform(caller: str, key: torch.Tensor, out: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """Runs `uniform_`, for the function `caller`."""
    low_and_span = _low_and_span(caller, float(low), float(high), out.dtype)
    keys = row_keys(caller, key, out.shape)
    return write(out, kernels(caller, key).uniform, keys, *low_and_span)


def normal(
    key: torch.Tensor,
    *shape: Shape,
    mean: float = 0.0,
    std: float = 1.0,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """Returns normal numbers of this mean and standard deviation; dtypes and device as for `uniform`.

    The Box-Muller transform of torch's CUDA kernel on the same uniforms, evaluated without libm: the bits are
    those of every CPU, within 2**-22 of the exact transform (float64: a few ulp) and 2**-21 of torch's on
    CUDA. Raises `InvalidArgumentError` for another dtype, std < 0, or a key batch that does not fit the
    shape.

    Example:
        >>> key = samebits.random.key(7)
        >>> noise = samebits.random.normal(key, 2, 3, std=0.1)
        >>> noise.shape, noise.dtype
        (torch.Size([2, 3]), torch.float32)
        >>> torch.equal(samebits.random.normal(key, 2, 3, std=0.1), noise)
        True
    """
    return draw("normal", fill_normal, key, shape, dtype, device, mean, std)


def normal_(key: torch.Tensor, result: torch.Tensor, *, mean: float = 0.0, std: float = 1.0) -> torch.Tensor:
    """Fills `result`, of any layout, with the numbers of `normal` for its shape and dtype, and returns it.

    Raises `InvalidArgumentError` as `normal`, and if `result` is on another device or requires grad.

    Example:
        >>> key, weight = samebits.random.key(7), torch.empty(3, 2)
        >>> weight is samebits.random.normal_(key, weight, std=0.02)
        True
        >>> torch.equal(weight, samebits.random.normal(key, 3, 2, std=0.02))
        True
    """
    check_result("normal_", key, result, FLOATS)
    if is_traced(key):
        return result.copy_(normal(key, result.shape, mean=mean, std=std, dtype=result.dtype))
    return fill_normal("normal_", key, result, mean, std)


def fill_normal(caller: str, key: torch.Tensor, out: torch.Tensor, mean: float, std: float) -> torch.Tensor:
    """Runs `normal_`, for the function `caller`."""
    if not std >= 0:
        raise InvalidArgumentError(f"{caller}: std must not be negative, got {std}")
    keys = row_keys(caller, key, out.shape)
    return write(out, kernels(caller, key).normal, keys, float(mean), float(std))


def draw(
    caller: str,
    fill: Callable[..., torch.Tensor],
    key: torch.Tensor,
    shape: tuple[Shape, ...],
    dtype: torch.dtype | None,
    device: torch.device | str | None,
    *parameters: float,
) -> torch.Tensor:
    """Returns the numbers of `fill`, or of the traced op, for the arguments of the function `caller`."""
    size, dtype = sizes(caller, key, shape), floating_dtype(caller, dtype)
    if is_traced(key):
        numbers = getattr(torch.ops.samebits, caller)(key, size, *parameters, dtype)
    else:
        numbers = fill(caller, key, fresh(size, dtype, key.device), *parameters)
    return numbers if device is None else numbers.to(device)


def bernoulli(
    key: torch.Tensor,
    *shape: Shape,
    p: float | torch.Tensor = 0.5,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """Returns ones with probability p, else zeros: float32 or any floating or integer dtype, or bool.

    One where word i of the key's stream is below floor(p 2**32): never for p = 0, always for p = 1. The same
    ones for every dtype. A tensor p is broadcast to the shape. Raises `InvalidArgumentError` for another
    dtype, p outside [0, 1], or p or a key batch that does not fit the shape.

    Example:
        >>> key = samebits.random.key(7)
        >>> samebits.random.bernoulli(key, 8, p=0.3)
        tensor([0., 0., 1., 1., 0., 0., 1., 0.])
        >>> samebits.random.bernoulli(key, 8, p=0.3, dtype=torch.bool)
        tensor([False, False,  True,  True, False, False,  True, False])
    """
    size = sizes("bernoulli", key, shape)
    if dtype is not None and dtype not in _COUNTABLE:
        raise InvalidArgumentError(
            f"bernoulli: dtype must be a floating or integer dtype or bool, got {dtype}"
        )
    dtype = dtype or torch.float32
    if not is_traced(key):
        drawn = fill_bernoulli("bernoulli", key, fresh(size, dtype, key.device), p)
    elif isinstance(p, torch.Tensor):
        drawn = torch.ops.samebits.bernoulli_each(key, size, p.detach(), dtype)
    else:
        drawn = torch.ops.samebits.bernoulli(key, size, check_probability("bernoulli", p), dtype)
    return drawn if device is None else drawn.to(device)


def bernoulli_(key: torch.Tensor, result: torch.Tensor, *, p: float | torch.Tensor = 0.5) -> torch.Tensor:
    """Fills `result`, of any layout, with the numbers of `bernoulli` for its shape and dtype, and returns it.

    Raises `InvalidArgumentError` as `bernoulli`, and if `result` is on another device or requires grad.

    Example:
        >>> mask = torch.empty(2, 4, dtype=torch.bool)
        >>> samebits.random.bernoulli_(samebits.random.key(7), mask, p=0.3)
        tensor([[False, False,  True,  True],
                [False, False,  True, False]])
    """
    check_result("bernoulli_", key, result, _COUNTABLE)
    if is_traced(key):
        return result.copy_(bernoulli(key, result.shape, p=p, dtype=result.dtype))
    return fill_bernoulli("bernoulli_", key, result, p)


def fill_bernoulli(
    caller: str, key: torch.Tensor, out: torch.Tensor, p: float | torch.Tensor
) -> torch.Tensor:
    """Runs `bernoulli_`, for the function `caller`."""
    probability = (
        _broadcast_probability(caller, p, out)
        if isinstance(p, torch.Tensor)
        else check_probability(caller, p)
    )
    keys = row_keys(caller, key, out.shape)
    return write(out, kernels(caller, key).bernoulli, keys, probability)


def _broadcast_probability(caller: str, p: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Returns `p` as float64, contiguous, of the shape and on the device of `out`."""
    wide = p.detach().to(out.device, torch.float64)
    if not ((wide >= 0) & (wide <= 1)).all():
        raise InvalidArgumentError(
            f"{caller}: p must hold probabilities, 0 <= p <= 1; it has other values, or NaN"
        )
    try:
        return wide.expand(out.shape).contiguous()
    except RuntimeError:
        raise InvalidArgumentError(
            f"{caller}: p of shape {tuple(p.shape)} does not broadcast to the output's shape "
            f"{tuple(out.shape)}"
        ) from None


@lru_cache(maxsize=64)
def _low_and_span(caller: str, low: float, high: float, dtype: torch.dtype) -> tuple[float, float]:
    """Rounds both bounds, and then their difference, to the output's dtype, as torch does."""
    if not low <= high:
        raise InvalidArgumentError(f"{caller}: low must not be above high, got low={low}, high={high}")
    bounds = torch.tensor([low, high], dtype=torch.float64, device="cpu").to(dtype)
    span = bounds[1] - bounds[0]
    if not (bounds.isfinite().all() and span.isfinite()):
        raise InvalidArgumentError(
            f"{caller}: low, high and high - low must be finite in {dtype}, got low={low}, high={high}"
        )
    return bounds[0].item(), span.item()
