"""Keys as two Python integers: the form for keys of positions in the rest of the package.

`fold` gives the same bits as `samebits.random.fold_in` on tensors, without a tensor.
"""

from __future__ import annotations

from operator import index

import torch
import xxhash

from samebits._context import Words
from samebits.errors import InvalidArgumentError
from samebits.random._cpu import philox

_MASK = 2**64 - 1


def root(seed: int) -> Words:
    """Returns the key of a seed: (seed modulo 2**64, 0), as `samebits.random.key`."""
    return index(seed) & _MASK, 0


def fold(key: Words, *path: int | str) -> Words:
    """Folds every part of `path` into `key`, in turn. A string counts as the xxh3-64 of its UTF-8 bytes."""
    seed, offset = key
    for part in path:
        seed, offset = philox.folded(seed, offset, part & _MASK if type(part) is int else as_uint64(part))
    return seed, offset


def as_uint64(data: int | str) -> int:
    """Returns the number of a part of a path: an integer (a negative one plus 2**64) or a string's hash.

    Raises `InvalidArgumentError` for anything else, and for integers that do not fit into 64 bits.
    """
    if isinstance(data, str):
        return _hash(data)
    try:
        number = index(data)
    except TypeError:
        raise InvalidArgumentError(
            f"a key cannot have {data!r} ({type(data).__name__}) folded in; fold in an int or a str"
        ) from None
    if not -(2**63) <= number < 2**64:
        raise InvalidArgumentError(
            f"a key cannot have {number} folded in: it has more than 64 bits; fold in a str of it, or its "
            "parts as a tuple"
        )
    return number & _MASK


def _hash(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode())


# As torch.compiler.assume_constant_result, which would import Dynamo (2 s): it cannot trace xxhash.
_hash._dynamo_marked_constant = True  # type: ignore[attr-defined]


def to_tensor(key: Words, device: torch.device | str | None = None) -> torch.Tensor:
    """Returns the key as a uint64 tensor of shape (2,)."""
    return torch.tensor(key, dtype=torch.uint64, device=device)


def from_tensor(key: torch.Tensor) -> Words:
    """Returns a key's integers. Raises `InvalidArgumentError` unless it is uint64 of shape (2,)."""
    if not isinstance(key, torch.Tensor) or key.shape != (2,) or key.dtype is not torch.uint64:
        given = f"{key.dtype} of shape {tuple(key.shape)}" if isinstance(key, torch.Tensor) else repr(key)
        raise InvalidArgumentError(
            f"a key is a uint64 tensor of shape (2,), got {given}; make one with samebits.random.key(seed)"
        )
    seed, offset = key.tolist()
    return seed, offset
