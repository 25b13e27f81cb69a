"""Random integers and orders that are a function of a key: `randint`, `permutation`, `permute_index`."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any, overload

import torch

from samebits._context import Words
from samebits.errors import InvalidArgumentError, UnimplementedError
from samebits.random import _int_keys as int_keys
from samebits.random._device_kernels import kernels
from samebits.random._draws.feistel import MAX_SIZE, permute_indices
from samebits.random._keys import as_int64, check_key, is_traced
from samebits.random._memory import fresh
from samebits.random._random_arguments import INTEGERS, row_keys, sizes


def randint(
    key: torch.Tensor,
    *shape: int | Sequence[int],
    low: int = 0,
    high: int,
    dtype: torch.dtype = torch.int64,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """Returns integers of low, ..., high - 1, equally likely (no modulo bias), of any integer dtype.

    Raises `InvalidArgumentError` for low >= high, bounds that `dtype` does not hold, another dtype, a wrong
    key, or a key batch that does not fit the shape.

    Example:
        >>> key = samebits.random.key(7)
        >>> samebits.random.randint(key, 5, high=100)
        tensor([95, 75, 11,  8, 40])
        >>> samebits.random.randint(key, 2, 3, low=-5, high=5, dtype=torch.int8)
        tensor([[ 4,  2, -4],
                [-5, -1,  2]], dtype=torch.int8)
    """
    checked = sizes("randint", key, shape)
    if dtype not in INTEGERS:
        raise InvalidArgumentError(f"randint: dtype must be an integer dtype, got {dtype}")
    low, high = _bound("low", low), _bound("high", high)
    if low >= high:
        raise InvalidArgumentError(
            f"randint: low must be below high, which is exclusive, got low={low}, high={high}"
        )
    limits = torch.iinfo(dtype)
    if low < limits.min or high - 1 > limits.max:
        raise InvalidArgumentError(
            f"randint: {dtype} holds {limits.min} to {limits.max}, got low={low}, high={high}; choose a "
            "wider dtype"
        )
    if is_traced(key):
        drawn = torch.ops.samebits.randint(key, checked, as_int64(low), as_int64(high - 1), dtype)
    else:
        drawn = integers("randint", key, checked, low, high - low, dtype)
    return drawn if device is None else drawn.to(device)


def _bound(name: str, bound: Any) -> int:
    try:
        return index(bound)
    except TypeError:
        raise InvalidArgumentError(
            f"randint: {name} must be an int, got {bound!r} ({type(bound).__name__})"
        ) from None


def integers(
    caller: str,
    key: torch.Tensor,
    shape: Sequence[int],
    low: int,
    span: int,
    dtype: torch.dtype = torch.int64,
) -> torch.Tensor:
    """Returns the integers of `randint`, for checked arguments, for the function `caller`."""
    keys = row_keys(caller, key, shape)
    backend = kernels(caller, key)
    out = fresh(shape, dtype, key.device)
    backend.integers(keys, low, span, out)
    return out


@overload
def permute_index(key: Words | torch.Tensor, i: int, n: int) -> int: ...
@overload
def permute_index(key: Words | torch.Tensor, i: torch.Tensor, n: int) -> torch.Tensor: ...
def permute_index(key: Words | torch.Tensor, i: int | torch.Tensor, n: int) -> int | torch.Tensor:
    """Returns the image of index `i` under the key's permutation of range(n); O(1) memory for any n.

    An int64 tensor of indices on the key's device, of any shape, gives the tensor of their images.
    Raises `InvalidArgumentError` unless 0 <= i < n <= 2**48 for all of them.

    Example:
        >>> key = samebits.random.key(7)
        >>> [samebits.random.permute_index(key, i, 8) for i in range(8)]
        [6, 5, 7, 3, 0, 4, 2, 1]
        >>> samebits.random.permute_index(key, 3, 10**12)  # nothing of that size is made
        529780518755
    """
    if not isinstance(i, torch.Tensor):
        if isinstance(key, torch.Tensor) and is_traced(key):
            raise UnimplementedError(
                "permute_index of an int gives an int, which a key that is traced or transformed cannot; "
                "give the index as an int64 tensor"
            )
        if not 0 <= index(i) < n:
            raise InvalidArgumentError(f"permute_index: index {i} is outside range({n})")
        return int(permute_indices(key, index(i), index(i) + 1, n)[0])
    given = key if isinstance(key, torch.Tensor) else int_keys.to_tensor(key)
    if i.dtype is not torch.int64 or i.device != given.device:
        raise InvalidArgumentError(
            f"permute_index takes an int or an int64 tensor on the key's device ({given.device}), got "
            f"{i.dtype} on {i.device}"
        )
    if given.shape != (2,) or given.dtype is not torch.uint64:
        int_keys.from_tensor(given)  # raises
    return torch.ops.samebits.permute_index(given, i, n) if is_traced(given) else images_of(given, i, n)


def images_of(key: torch.Tensor, i: torch.Tensor, n: int) -> torch.Tensor:
    """Returns `permute_index` of a tensor, once the key and the dtype are checked."""
    backend = kernels("permute_index", key)
    out = fresh(tuple(i.shape), torch.int64, i.device)
    if i.numel():
        least, greatest = (int(bound) for bound in i.aminmax())
        if not 0 <= least <= greatest < n <= MAX_SIZE:
            raise InvalidArgumentError(
                f"permute_index needs 0 <= i < n <= 2**48, got indices {least} to {greatest}, n={n}"
            )
        backend.images(key.view(1, 2), n, out.view(1, -1), indices=i.reshape(-1).contiguous())
    return out


def permutation(key: torch.Tensor, source: int | torch.Tensor, *, dim: int = 0) -> torch.Tensor:
    """Returns a random order of range(source), int64 (source,); or the tensor `source` shuffled along `dim`.

    Element i of the order is `permute_index(key, i, n)`. A batch of keys (*batch, 2) gives (*batch, n), or
    (*batch, *source.shape), each from its own key. Raises `InvalidArgumentError` for a wrong key, a negative
    number or one above 2**48, or a missing dimension.

    Example:
        >>> key = samebits.random.key(7)
        >>> samebits.random.permutation(key, 8)
        tensor([6, 5, 7, 3, 0, 4, 2, 1])
        >>> samebits.random.permutation(key, torch.tensor([2, 3, 5, 7]))
        tensor([5, 2, 3, 7])
    """
    check_key("permutation", key)
    n = length("permutation", source, dim)
    batch = key.shape[:-1]
    orders = torch.ops.samebits.permutation(key, n) if is_traced(key) else orders_of(key, n)
    if not isinstance(source, torch.Tensor):
        return orders
    if not batch:
        return source.index_select(dim, orders.to(source.device))
    shuffled = [source.index_select(dim, order) for order in orders.flatten(0, -2).to(source.device)]
    return (
        torch.stack(shuffled).view(*batch, *source.shape)
        if shuffled
        else source.new_empty(*batch, *source.shape)
    )


def orders_of(key: torch.Tensor, n: int) -> torch.Tensor:
    """Returns `permutation` of a number: int64 (*batch, n)."""
    return images("permutation", key, key.reshape(-1, 2).contiguous(), n, n).view(*key.shape[:-1], n)


def length(caller: str, source: int | torch.Tensor, dim: int) -> int:
    """Returns the number of things to choose from: of range(source), or along a dimension."""
    if isinstance(source, torch.Tensor):
        if not -source.dim() <= dim < source.dim():
            raise InvalidArgumentError(
                f"{caller}: source of shape {tuple(source.shape)} has no dimension {dim}"
            )
        return source.shape[dim]
    try:
        n = index(source)
    except TypeError:
        raise InvalidArgumentError(
            f"{caller}: source must be an int or a tensor, got {source!r} ({type(source).__name__})"
        ) from None
    if not 0 <= n <= MAX_SIZE:
        raise InvalidArgumentError(f"{caller}: source must be 0 to 2**48, got {n}")
    return n


def images(caller: str, key: torch.Tensor, keys: torch.Tensor, n: int, number: int) -> torch.Tensor:
    """Returns the first `number` elements of the orders of range(n) for all `keys`: int64 (keys, number)."""
    backend = kernels(caller, key)
    out = fresh((keys.shape[0], number), torch.int64, key.device)
    backend.images(keys, n, out)
    return out
