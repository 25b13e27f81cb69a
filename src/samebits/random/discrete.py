"""Random integers, orders and choices that are a function of a key: `randint`, `permutation`, `choice`, `categorical`.

Nothing here is a sum of floating-point numbers in an order that a device chooses: integers are drawn without bias
and weights are summed as integers, so that the results are those of exact arithmetic on every device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ldexp, prod
from operator import index
from typing import Any

import torch

from samebits.errors import InvalidArgumentError
from samebits.random._integers import fill_integers
from samebits.random._transformed import fill_transformed
from samebits.random.feistel import MAX_SIZE, fill_images
from samebits.random.keys import check_key, uses_torch
from samebits.random.sampling import _INTEGERS, _rows, _sizes

_WEIGHT_BITS = 62
_SLAB = 1 << 22
"""Gumbel numbers that are in memory at a time, about."""


def randint(
    key: torch.Tensor,
    *shape: int | Sequence[int],
    low: int = 0,
    high: int,
    dtype: torch.dtype = torch.int64,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """Integers of low, ..., high - 1, all equally likely to the last bit (no modulo bias), of any integer dtype.

    Raises `InvalidArgumentError` for low >= high, bounds that `dtype` does not hold, another dtype, a wrong key, or a
    key batch that does not fit the shape.
    """
    sizes = _sizes("randint", key, shape)
    if dtype not in _INTEGERS:
        raise InvalidArgumentError(f"randint: dtype must be an integer dtype, got {dtype}")
    low, high = _bound("low", low), _bound("high", high)
    if low >= high:
        raise InvalidArgumentError(
            f"randint: low must be below high, which is exclusive, got low={low}, high={high}"
        )
    limits = torch.iinfo(dtype)
    if low < limits.min or high - 1 > limits.max:
        raise InvalidArgumentError(
            f"randint: {dtype} holds {limits.min} to {limits.max}, got low={low}, high={high}; choose a wider dtype"
        )
    return _integers("randint", key, sizes, low, high - low, dtype).to(device or key.device)


def _bound(name: str, bound: Any) -> int:
    try:
        return index(bound)
    except TypeError:
        raise InvalidArgumentError(
            f"randint: {name} must be an int, got {bound!r} ({type(bound).__name__})"
        ) from None


def _integers(
    what: str, key: torch.Tensor, sizes: tuple[int, ...], low: int, span: int, dtype: torch.dtype
) -> torch.Tensor:
    uses_torch(what, key, same_bits=False)
    keys, per_key = _rows(what, key, sizes)
    out = torch.empty(sizes, dtype=dtype)
    if out.numel():
        fill_integers(keys, low, span, out.view(keys.shape[0], per_key))
    return out


def permutation(key: torch.Tensor, source: int | torch.Tensor, *, dim: int = 0) -> torch.Tensor:
    """A random order of range(source), int64 of shape (source,); or the tensor `source` shuffled along `dim`.

    Element i of the order is `permute_index(key, i, n)`. A batch of keys (*batch, 2) gives (*batch, n), or
    (*batch, *source.shape), each from its own key.
    Raises `InvalidArgumentError` for a wrong key, a negative number or one above 2**48, or a dimension that there is not.
    """
    check_key("permutation", key)
    n = _number("permutation", source, dim)
    uses_torch("permutation", key, same_bits=False)
    batch = key.shape[:-1]
    orders = _images(key.reshape(-1, 2), n, n)
    if not isinstance(source, torch.Tensor):
        return orders.view(*batch, n)
    if not batch:
        return source.index_select(dim, orders[0].to(source.device))
    shuffled = [source.index_select(dim, order) for order in orders.to(source.device)]
    return (
        torch.stack(shuffled).view(*batch, *source.shape)
        if shuffled
        else source.new_empty(*batch, *source.shape)
    )


def _number(what: str, source: int | torch.Tensor, dim: int) -> int:
    """How many things there are to choose from: of range(source), or along a dimension."""
    if isinstance(source, torch.Tensor):
        if not -source.dim() <= dim < source.dim():
            raise InvalidArgumentError(
                f"{what}: source of shape {tuple(source.shape)} has no dimension {dim}"
            )
        return source.shape[dim]
    try:
        n = index(source)
    except TypeError:
        raise InvalidArgumentError(
            f"{what}: source must be an int or a tensor, got {source!r} ({type(source).__name__})"
        ) from None
    if not 0 <= n <= MAX_SIZE:
        raise InvalidArgumentError(f"{what}: source must be 0 to 2**48, got {n}")
    return n


def _images(keys: torch.Tensor, n: int, number: int) -> torch.Tensor:
    """The first `number` elements of the orders of range(n): int64 (keys, number)."""
    out = torch.empty(keys.shape[0], number, dtype=torch.int64)
    fill_images([(seed, offset) for seed, offset in keys.tolist()], n, out.numpy())
    return out


def choice(
    key: torch.Tensor,
    source: int | torch.Tensor,
    *shape: int | Sequence[int],
    replace: bool = True,
    weights: torch.Tensor | None = None,
    dim: int = 0,
) -> torch.Tensor:
    """Random elements of range(source) as int64 of this shape, or of a tensor along `dim`, which the shape replaces.

    Without replacement, no element comes twice from one key. `weights` (n,) are relative probabilities; they are
    rounded to integers with 62 - ceil(log2 n) bits for the largest (42 bits for a million), at least 1 if positive.
    Without replacement, elements are drawn one after the other with the weights of those that are left, by the order
    of independent exponential times E / weight (Efraimidis and Spirakis, Weighted random sampling with a reservoir,
    2006).
    Raises `InvalidArgumentError` for too few elements, weights that are negative, infinite, NaN, all zero or not
    (n,), a wrong key, or a key batch that does not fit the shape.
    """
    sizes = _sizes("choice", key, shape)
    n = _number("choice", source, dim)
    uses_torch("choice", key, same_bits=False)
    keys, per_key = _rows("choice", key, sizes)
    available = n if weights is None else _positive(weights, n)
    needed = min(per_key, 1) if replace else per_key
    if keys.shape[0] and needed > available:
        kind = "" if weights is None else " of positive weight"
        raise InvalidArgumentError(
            f"choice: {per_key} elements of {available}{kind} were asked for; "
            + ("there must be one" if replace else "ask for fewer, or give replace=True")
        )
    chosen = _chosen(key, keys, sizes, n, weights, replace=replace)
    if not isinstance(source, torch.Tensor):
        return chosen
    dim %= source.dim()
    picked = source.index_select(dim, chosen.reshape(-1).to(source.device))
    return picked.view(*source.shape[:dim], *sizes, *source.shape[dim + 1 :])


def _chosen(
    key: torch.Tensor,
    keys: torch.Tensor,
    sizes: tuple[int, ...],
    n: int,
    weights: torch.Tensor | None,
    *,
    replace: bool,
) -> torch.Tensor:
    if not prod(sizes):
        return torch.empty(sizes, dtype=torch.int64)
    if not replace:
        per_key = prod(sizes) // keys.shape[0]
        rows = _images(keys, n, per_key) if weights is None else _raced(keys, per_key, weights)
        return rows.reshape(sizes)
    if weights is None:
        return _integers("choice", key, sizes, 0, n, torch.int64)
    sums = _as_integers(weights).cumsum(0)
    return torch.searchsorted(
        sums, _integers("choice", key, sizes, 0, int(sums[-1]), torch.int64), right=True
    )


def _positive(weights: torch.Tensor, n: int) -> int:
    """How many weights are positive, once they are found to be weights."""
    if not isinstance(weights, torch.Tensor) or weights.shape != (n,) or weights.is_complex():
        given = tuple(weights.shape) if isinstance(weights, torch.Tensor) else type(weights).__name__
        raise InvalidArgumentError(f"choice: weights must be a real tensor of shape ({n},), got {given}")
    if not bool(((weights >= 0) & torch.isfinite(weights)).all()):
        raise InvalidArgumentError("choice: weights must be finite and not negative")
    positive = int((weights > 0).sum())
    if n and not positive:
        raise InvalidArgumentError("choice: all weights are zero; one at least must be positive")
    return positive


def _scaled(weights: torch.Tensor, exponent: int) -> torch.Tensor:
    """The weights in float64, times a power of two that brings the largest to (2**(exponent - 1), 2**exponent]."""
    weights = weights.detach().double()
    _, largest = torch.frexp(weights.max())
    shift = exponent - int(largest)
    return weights * ldexp(1.0, shift // 2) * ldexp(1.0, shift - shift // 2)


def _as_integers(weights: torch.Tensor) -> torch.Tensor:
    """Integers in proportion to the weights: their sum is below 2**63, and no positive weight becomes 0."""
    scaled = _scaled(weights, _WEIGHT_BITS - (len(weights) - 1).bit_length()).round().long()
    return torch.where(weights > 0, scaled.clamp(min=1), 0)


def _raced(keys: torch.Tensor, number: int, weights: torch.Tensor) -> torch.Tensor:
    """The `number` elements of positive weight that come first, for every key: int64 (keys, number)."""
    racing = weights.nonzero()[:, 0]
    times = torch.empty(keys.shape[0], len(weights), dtype=torch.float64)
    fill_transformed("exponential", keys, (1.0,), times)
    arrivals = (
        times[:, racing] / _scaled(weights, 900)[racing]
    )  # finite for weights of 2**-1900 of the largest
    return racing[arrivals.argsort(dim=1, stable=True)[:, :number]]


def categorical(key: torch.Tensor, *shape: int | Sequence[int], logits: torch.Tensor) -> torch.Tensor:
    """Indices along the last dimension of `logits` (..., n), with the probabilities softmax(logits): int64 of this shape.

    The shape is logits.shape[:-1] if none is given, or one that it broadcasts to. The index is that of the largest of
    `gumbel(key, *shape, n)` + (logits - their maximum), the first of equals (the Gumbel-max trick; Maddison, Tarlow,
    Minka, A* sampling, 2014), in float32, or in float64 for float64 logits; -inf is never drawn.
    Raises `InvalidArgumentError` for NaN or +inf in the logits, a row that is all -inf or empty, shapes that do not
    fit, or a wrong key.
    """
    check_key("categorical", key)
    _check_logits(logits)
    sizes = _sizes("categorical", key, shape) if shape else tuple(logits.shape[:-1])
    n, leading = logits.shape[-1], logits.shape[:-1]
    fits = len(leading) <= len(sizes) and all(
        mine in (1, size) for mine, size in zip(reversed(leading), reversed(sizes), strict=False)
    )
    if not fits:
        raise InvalidArgumentError(
            f"categorical: logits of shape {tuple(logits.shape)} do not broadcast to a shape of {sizes} and n={n}"
        )
    uses_torch("categorical", key, same_bits=False)
    keys, per_key = _rows("categorical", key, sizes)
    table = logits.detach().reshape(-1, n)
    table = table if table.dtype is torch.float64 else table.float()
    table = table - table.amax(1, keepdim=True)  # large logits would round the Gumbel numbers away
    numbered = torch.arange(table.shape[0], device=table.device).view(leading)
    row = numbered.expand(sizes).reshape(-1, max(per_key, 1))
    out = torch.empty_like(row)
    for some, first, last in _slabs(keys.shape[0] if out.numel() else 0, per_key, n):
        which = row[some, first:last]
        noise = torch.empty(which.shape[0], which.shape[1] * n, dtype=table.dtype)
        moved = _moved(keys[some], first * n * table.dtype.itemsize // 16)
        fill_transformed("gumbel", moved, (0.0, 1.0), noise)
        out[some, first:last] = (noise.view(*which.shape, n) + table[which]).argmax(-1)
    return out.view(sizes)


def _check_logits(logits: torch.Tensor) -> None:
    if not isinstance(logits, torch.Tensor) or not logits.is_floating_point() or not logits.dim():
        given = f"{logits.dtype} of shape ()" if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise InvalidArgumentError(
            f"categorical: logits must be a floating tensor of shape (..., n), got {given}"
        )
    if not logits.shape[-1]:
        raise InvalidArgumentError(
            f"categorical: logits of shape {tuple(logits.shape)} have no category to draw"
        )
    if not bool(torch.isfinite(logits.detach().amax(-1)).all()):
        raise InvalidArgumentError(
            "categorical: every row of logits must have a finite maximum; there is a NaN, a +inf, or a row of -inf only"
        )


def _slabs(rows: int, per_row: int, n: int) -> Iterator[tuple[slice, int, int]]:
    """(rows, first sample, last sample) of parts whose Gumbel numbers fit into memory; each begins with a block."""
    samples = per_row if per_row * n <= _SLAB else max(4, _SLAB // n // 4 * 4)
    step = max(1, _SLAB // max(1, samples * n))
    for row in range(0, rows, step):
        for first in range(0, per_row, samples):
            yield slice(row, row + step), first, min(first + samples, per_row)


def _moved(keys: torch.Tensor, blocks: int) -> torch.Tensor:
    """The keys whose streams begin `blocks` later."""
    moved = keys.clone()
    moved.view(torch.int64)[:, 1] += blocks
    return moved
