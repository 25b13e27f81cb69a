"""A rolling digest of what was handed out: equal digests after k elements, equal k elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import xxhash

from samebits import _digest as digest

_LEAVES = (torch.Tensor, np.ndarray, bool, int, float, complex, str, bytes, type(None), np.generic)


def rolled(before: int, element: Any) -> int:
    """The digest after one more element, 64 bits.

    Arrays, tensors, numbers and strings count, in dicts, lists and tuples too; of another object its type's name.
    """
    return xxhash.xxh3_64_intdigest(_hashed(element).to_bytes(8, "little"), before)


def _hashed(value: Any) -> int:
    if isinstance(value, _LEAVES):
        return digest.leaf(value)
    if isinstance(value, dict):
        value = [part for item in value.items() for part in item]
    if isinstance(value, list | tuple):
        return xxhash.xxh3_64_intdigest(b"".join(_hashed(one).to_bytes(8, "little") for one in value))
    return xxhash.xxh3_64_intdigest(type(value).__qualname__.encode())
