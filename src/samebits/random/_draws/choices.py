"""Choices that are a function of a key: `choice`, with or without replacement and weights, and `categorical`.

Nothing here is a sum of floating-point numbers in an order that a device chooses: weights are summed as
integers, and a maximum has no order. So the results are the same on every device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ldexp, prod

import torch

from samebits.errors import InvalidArgumentError
from samebits.random._device_kernels import kernels
from samebits.random._draws.integers import images, integers, length
from samebits.random._keys import check_key, is_traced
from samebits.random._memory import fresh
from samebits.random._random_arguments import rows, sizes

_WEIGHT_BITS = 62
_SLAB = 1 << 22
"""Approximate number of Gumbel numbers in memory at a time."""


def choice(
    key: torch.Tensor,
    source: int | torch.Tensor,
    *shape: int | Sequence[int],
    replace: bool = True,
    weights: torch.Tensor | None = None,
    dim: int = 0,
) -> torch.Tensor:
    """Returns random elements of range(source) as int64 of this shape, or of a tensor along `dim`, which the
    shape replaces.

    Without replacement, no element is drawn twice from one key. `weights` (n,) are relative probabilities;
    they are rounded to integers with 62 - ceil(log2 n) bits for the largest (42 bits for a million), at least
    1 if positive. Without replacement, elements are drawn one after the other with the weights of those that
    are left, by the order of independent exponential times E / weight (Efraimidis and Spirakis, Weighted
    random sampling with a reservoir, 2006). Raises `InvalidArgumentError` for too few elements, weights that
    are negative, infinite, NaN, all zero or not (n,), a wrong key, or a key batch that does not fit the
    shape.

    Example:
        >>> key = samebits.random.key(7)
        >>> samebits.random.choice(key, 10, 5, replace=False)
        tensor([9, 8, 7, 3, 0])
        >>> samebits.random.choice(key, torch.tensor([2, 3, 5, 7]), 6)
        tensor([7, 7, 2, 2, 3, 7])
        >>> samebits.random.choice(key, 3, 6, weights=torch.tensor([1.0, 0.0, 9.0]))
        tensor([2, 2, 2, 2, 0, 2])
    """
    checked = sizes("choice", key, shape)
    n = length("choice", source, dim)
    if weights is None:
        picked = (torch.ops.samebits.choice if is_traced(key) else choose)(key, checked, n, replace)
    else:
        _check_weights(weights, n)
        by_weight = torch.ops.samebits.choice_weighted if is_traced(key) else choose_by_weight
        picked = by_weight(key, checked, weights.detach(), replace)
    if not isinstance(source, torch.Tensor):
        return picked
    dim %= source.dim()
    values = source.index_select(dim, picked.view(-1).to(source.device))
    return values.view(*source.shape[:dim], *checked, *source.shape[dim + 1 :])


def choose(key: torch.Tensor, shape: Sequence[int], n: int, replace: bool) -> torch.Tensor:
    """Returns `choice` of a number without weights, once the arguments' types are checked."""
    keys, per_key = rows("choice", key, shape)
    _check_enough(keys, per_key, n, replace, "")
    if replace or not prod(shape):
        return integers("choice", key, shape, 0, max(n, 1))
    return images("choice", key, keys, n, per_key).view(shape)


def choose_by_weight(
    key: torch.Tensor, shape: Sequence[int], weights: torch.Tensor, replace: bool
) -> torch.Tensor:
    """Returns `choice` of a number with weights, once their type and shape are checked."""
    keys, per_key = rows("choice", key, shape)
    _check_enough(keys, per_key, _positive(weights), replace, " of positive weight")
    if not prod(shape):
        return torch.empty(shape, dtype=torch.int64, device=key.device)
    weights = weights.to(key.device)
    if not replace:
        return _race(key, keys, per_key, weights).view(shape)
    sums = _as_integers(weights).cumsum(0)
    return torch.searchsorted(sums, integers("choice", key, shape, 0, int(sums[-1])), right=True)


def _check_enough(keys: torch.Tensor, per_key: int, available: int, replace: bool, kind: str) -> None:
    if keys.shape[0] and (min(per_key, 1) if replace else per_key) > available:
        raise InvalidArgumentError(
            f"choice: {per_key} elements of {available}{kind} were requested; "
            + ("there must be one" if replace else "ask for fewer, or give replace=True")
        )


def _check_weights(weights: torch.Tensor, n: int) -> None:
    if not isinstance(weights, torch.Tensor) or weights.shape != (n,) or weights.is_complex():
        given = tuple(weights.shape) if isinstance(weights, torch.Tensor) else type(weights).__name__
        raise InvalidArgumentError(f"choice: weights must be a real tensor of shape ({n},), got {given}")


def _positive(weights: torch.Tensor) -> int:
    """Returns the number of positive weights; raises if they are no weights."""
    if not bool(((weights >= 0) & torch.isfinite(weights)).all()):
        raise InvalidArgumentError("choice: weights must be finite and not negative")
    positive = int((weights > 0).sum())
    if len(weights) and not positive:
        raise InvalidArgumentError("choice: all weights are zero; one at least must be positive")
    return positive


def _scale(weights: torch.Tensor, exponent: int) -> torch.Tensor:
    """Returns float64 weights times a power of two; the largest is in (2**(exponent - 1), 2**exponent]."""
    weights = weights.detach().double()
    _, largest = torch.frexp(weights.max())
    shift = exponent - int(largest)
    return weights * ldexp(1.0, shift // 2) * ldexp(1.0, shift - shift // 2)


def _as_integers(weights: torch.Tensor) -> torch.Tensor:
    """Returns integers in proportion to the weights, of sum below 2**63; no positive weight becomes 0."""
    scaled = _scale(weights, _WEIGHT_BITS - (len(weights) - 1).bit_length()).round().long()
    return torch.where(weights > 0, scaled.clamp(min=1), 0)


def _race(key: torch.Tensor, keys: torch.Tensor, number: int, weights: torch.Tensor) -> torch.Tensor:
    """Returns for each key the `number` elements of least time and positive weight: int64 (keys, number)."""
    times = torch.empty(keys.shape[0], len(weights), dtype=torch.float64, device=key.device)
    kernels("choice", key).transformed("exponential", keys, (1.0,), times)
    racing = weights.nonzero()[:, 0]
    # Scaled so that no time overflows: elements of 2**-1900 of the largest weight still compete.
    arrivals = times[:, racing] / _scale(weights, 900)[racing]
    return racing[_smallest(arrivals, number)]


def _smallest(values: torch.Tensor, number: int) -> torch.Tensor:
    """Returns indices of the `number` smallest values of each row, in order; of equals, the first first."""
    last = values.topk(number, dim=1, largest=False, sorted=False).values.amax(1, keepdim=True)
    before, equal = values < last, values == last
    taken = before | (equal & (equal.cumsum(1) <= number - before.sum(1, keepdim=True)))
    places = taken.nonzero()[:, 1].view(-1, number)  # topk may have taken others of the equals
    return places.gather(1, values.gather(1, places).argsort(dim=1, stable=True))


def categorical(key: torch.Tensor, *shape: int | Sequence[int], logits: torch.Tensor) -> torch.Tensor:
    """Returns int64 indices along the last dimension of `logits` (..., n), of probability softmax(logits).

    The shape is logits.shape[:-1] if none is given, or one that it broadcasts to. The index is that of the
    largest of `gumbel(key, *shape, n)` + (logits - their maximum), the first of equals (the Gumbel-max trick;
    Maddison, Tarlow, Minka, A* sampling, 2014), in float32, or in float64 for float64 logits; -inf is never
    drawn. Raises `InvalidArgumentError` for NaN or +inf in the logits, a row that is all -inf or empty,
    shapes that do not fit, or a wrong key.

    Example:
        >>> logits = torch.tensor([0.0, 1.0, -torch.inf])
        >>> samebits.random.categorical(samebits.random.key(7), 12, logits=logits)
        tensor([0, 1, 1, 1, 1, 1, 1, 1, 0, 1, 0, 0])
    """
    check_key("categorical", key)
    _check_logits(logits)
    n, leading = logits.shape[-1], logits.shape[:-1]
    checked = sizes("categorical", key, shape or (leading,))
    own = checked[max(0, len(checked) - len(leading)) :]
    if len(own) < len(leading) or any(mine not in (1, size) for mine, size in zip(leading, own, strict=True)):
        raise InvalidArgumentError(
            f"categorical: logits of shape {tuple(logits.shape)} do not broadcast to a shape of "
            f"{tuple(checked)} and n={n}"
        )
    draw = torch.ops.samebits.categorical if is_traced(key) else indices_of
    return draw(key, checked, logits.detach())


def indices_of(key: torch.Tensor, shape: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
    """Returns `categorical`, once the shapes are checked."""
    if not bool(torch.isfinite(logits.amax(-1)).all()):
        raise InvalidArgumentError(
            "categorical: every row of logits must have a finite maximum; there is a NaN, a +inf, or a row "
            "of -inf only"
        )
    n, leading = logits.shape[-1], logits.shape[:-1]
    keys, per_key = rows("categorical", key, shape)
    backend = kernels("categorical", key)
    table = logits.to(key.device).reshape(-1, n)
    table = table if table.dtype is torch.float64 else table.float()
    table = table - table.amax(1, keepdim=True)  # large logits would round the Gumbel numbers away
    numbered = torch.arange(table.shape[0], device=key.device).view(leading)
    row = numbered.expand(shape).reshape(-1, max(per_key, 1))
    out = torch.empty_like(row)
    for some, first, last in _slabs(row.shape[0], row.shape[1], n):
        which = row[some, first:last]
        noise = fresh((*which.shape, n), table.dtype, key.device)
        backend.transformed(
            "gumbel", _advance_keys(keys[some], first * n * noise.itemsize // 16), (0.0, 1.0), noise
        )
        out[some, first:last] = noise.add_(table[which]).argmax(-1)
    return out.view(shape)


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


def _slabs(rows: int, per_row: int, n: int) -> Iterator[tuple[slice, int, int]]:
    """Yields (rows, first sample, last sample) of parts that fit into memory; each begins with a block."""
    samples = per_row if per_row * n <= _SLAB else max(4, _SLAB // n // 4 * 4)
    step = max(1, _SLAB // max(1, samples * n))
    for row in range(0, rows, step):
        for first in range(0, per_row, samples):
            yield slice(row, row + step), first, min(first + samples, per_row)


def _advance_keys(keys: torch.Tensor, blocks: int) -> torch.Tensor:
    """Returns the keys whose streams begin `blocks` later."""
    moved = keys.clone()
    moved.view(torch.int64)[:, 1] += blocks
    return moved
