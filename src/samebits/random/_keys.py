"""Keys as tensors: `key`, `split`, `fold_in`, with the meaning and the bits of `torch.func._random`.

A key is a uint64 tensor of shape (2,), a batch of keys one of shape (*batch, 2). A key is either drawn from
or has keys made of it, not both: `fold_in(key, d)` is made of the words that block d of `bits(key, ...)`
shows. Functions of keys, here and in `rounding`, share `check_key`, `is_traced` and `one_by_one`.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import index
from typing import Any

import torch
from torch import Tensor
from torch._C import (
    _are_functorch_transforms_active,
    _is_torch_function_mode_enabled,
    _is_tracing,
    _len_torch_dispatch_stack,
)
from torch.compiler import is_dynamo_compiling

from samebits.errors import InvalidArgumentError
from samebits.random import _int_keys as int_keys
from samebits.random._device_kernels import kernels

# The check that a call must go through the dispatcher: a tracer cannot see our kernels write to an address.


def is_traced(key: Tensor) -> bool:
    """Returns True if the ops of a function of `key` are watched, or the key has no memory; 0.2 us if not.

    Dynamo; make_fx and torch.export (before dispatch they are a mode of torch functions), FakeTensorMode and
    every other mode; torch.func's transforms; torch.jit.trace; subclasses of tensors; the meta device.
    """
    return (
        is_dynamo_compiling()
        or type(key) is not Tensor
        or _len_torch_dispatch_stack() > 0
        or _are_functorch_transforms_active()
        or _is_torch_function_mode_enabled()
        or _is_tracing()
        or key.is_meta
    )


Part = int | str | torch.Tensor
Data = Part | tuple[Part, ...]
Rule = Callable[..., tuple[torch.Tensor, int]]
"""A rule of torch.func.vmap."""


def key(seed: int, *, device: torch.device | str | None = None) -> torch.Tensor:
    """Returns the key of a seed: a uint64 tensor of shape (2,) that holds (seed, 0).

    Raises `InvalidArgumentError` unless `seed` is an integer with 0 <= seed < 2**64.

    Example:
        >>> samebits.random.key(7)
        tensor([7, 0], dtype=torch.uint64)
        >>> samebits.random.key(-7)
        Traceback (most recent call last):
            ...
        samebits.errors.InvalidArgumentError: key: a seed is an integer with 0 <= seed < 2**64, ...
    """
    try:
        number = index(seed)
    except TypeError:
        raise InvalidArgumentError(
            f"key takes an integer seed, got {seed!r} ({type(seed).__name__})"
        ) from None
    if not 0 <= number < 2**64:
        raise InvalidArgumentError(
            f"key: a seed is an integer with 0 <= seed < 2**64, got {number}; for any other number, "
            "fold its text into a key: fold_in(key(0), str(number))"
        )
    if torch.compiler.is_dynamo_compiling():  # Inductor has no code for a constant of uint64
        return torch.tensor((_to_signed(number), 0), dtype=torch.int64, device=device).view(torch.uint64)
    return int_keys.to_tensor((number, 0), device)


def split(key: torch.Tensor, num: int = 2) -> torch.Tensor:
    """Returns `num` independent keys of every key: (*batch, 2) gives (num, *batch, 2).

    Raises `InvalidArgumentError` if `key` is no key or `num` is not positive.

    Example:
        >>> keys = samebits.random.split(samebits.random.key(7), 3)
        >>> keys
        tensor([[13837866057460644397,  1580108719113026114],
                [14670401102720962203, 17669291110527860587],
                [  155932412659770304, 15655392634770455658]], dtype=torch.uint64)
        >>> samebits.random.split(keys).shape  # two of each
        torch.Size([2, 3, 2])
    """
    check_key("split", key)
    if num <= 0:
        raise InvalidArgumentError(f"split: num must be positive, got {num}")
    return torch.ops.samebits.split(key, num) if is_traced(key) else split_keys(key, num)


def fold_in(key: torch.Tensor, data: Data) -> torch.Tensor:
    """Folds `data` into every key, which gives new keys of the same shape.

    For an integer d it is `split(key, d + 1)[d]`.

    An integer of at most 64 bits counts (a negative one plus 2**64), a string as the xxh3-64 of its UTF-8
    bytes, a tuple's items one after another. A tensor of integers is broadcast against the batch of keys:
    with a step in a tensor, a compiled function serves all. Raises `InvalidArgumentError` if `key` is no key
    or `data` is none of these.

    Example:
        >>> key = samebits.random.key(7)
        >>> samebits.random.fold_in(key, ("layer", 3))
        tensor([13750678431492228392, 10264144026928651461], dtype=torch.uint64)
        >>> torch.equal(samebits.random.fold_in(key, 2), samebits.random.split(key, 3)[2])
        True
    """
    check_key("fold_in", key)
    for part in data if isinstance(data, tuple) else (data,):
        if isinstance(part, torch.Tensor):
            key = _fold_in_tensor(key, part)
        elif is_traced(key):
            key = torch.ops.samebits.fold_in(key, as_int64(part))
        else:
            key = fold_in_integer(key, int_keys.as_uint64(part))
    return key


def _fold_in_tensor(key: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    if data.is_floating_point() or data.is_complex() or data.dtype is torch.bool:
        raise InvalidArgumentError(f"fold_in: a tensor that is folded in holds integers, got {data.dtype}")
    data = data.to(key.device, torch.int64)
    return torch.ops.samebits.fold_in_each(key, data) if is_traced(key) else fold_in_each(key, data)


def as_int64(part: int | str) -> int:
    """Returns `int_keys.as_uint64` as an op takes it; a symbolic integer stays one."""
    if isinstance(part, torch.SymInt) or (isinstance(part, int) and -(2**63) <= part < 2**63):
        return part
    return _to_signed(int_keys.as_uint64(part))


def _to_signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


def split_keys(key: torch.Tensor, num: int) -> torch.Tensor:
    """Returns `split`, without checks of the arguments."""
    return _fold_all("split", key, 0, num)


def fold_in_integer(key: torch.Tensor, number: int) -> torch.Tensor:
    """Returns `fold_in` of an integer modulo 2**64."""
    return _fold_all("fold_in", key, number % 2**64, 1)[0]


def fold_in_each(key: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    """Returns `fold_in` of an int64 tensor on the key's device, by adding to the offset and folding in 0."""
    batch = torch.broadcast_shapes(key.shape[:-1], data.shape)
    moved = key.contiguous().view(torch.int64).expand(*batch, 2).clone()
    moved[..., 1] += data
    return fold_in_integer(moved.view(torch.uint64), 0)


def _fold_all(caller: str, key: torch.Tensor, first: int, number: int) -> torch.Tensor:
    """Folds `first`, `first` + 1, ... into the keys: (number, *batch, 2), for the function `caller`."""
    backend, keys = kernels(caller, key), key.contiguous().view(-1, 2)
    out = torch.empty(number, *key.shape, dtype=torch.uint64, device=key.device)
    backend.folded(keys, first, out.view(number, keys.shape[0], 2))
    return out


def check_key(caller: str, key: torch.Tensor) -> None:
    """Raises `InvalidArgumentError` unless `key` is a uint64 tensor of shape (*batch, 2)."""
    if not isinstance(key, torch.Tensor):
        raise InvalidArgumentError(
            f"{caller} takes a key tensor, got {key!r} ({type(key).__name__}); make one with "
            "samebits.random.key(seed)"
        )
    if key.dtype is not torch.uint64 or key.dim() == 0 or key.size(-1) != 2:
        raise InvalidArgumentError(
            f"{caller}: a key is a uint64 tensor of shape (*batch, 2), got {key.dtype} of shape "
            f"{tuple(key.shape)}; make one with samebits.random.key(seed)"
        )


def one_by_one(op: Any) -> Rule:
    """Returns the rule of an op without batched form: called for every sample."""

    def rule(info: Any, in_dims: Any, *args: Any) -> tuple[torch.Tensor, int]:
        def sample(i: int) -> list[Any]:
            return [
                arg.select(dim, i) if isinstance(dim, int) else arg
                for arg, dim in zip(args, in_dims, strict=True)
            ]

        return torch.stack([op(*sample(i)) for i in range(info.batch_size)]), 0

    return rule
