"""A rolling digest of delivered elements: equal digests after k elements, equal k elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import xxhash

from samebits import _digest as digest

_LEAVES = (torch.Tensor, np.ndarray, bool, int, float, complex, str, bytes, type(None), np.generic)


def update_digest(before: int, element: Any) -> int:
    """Returns the digest after one more element, 64 bits.

    Arrays, tensors, numbers and strings count, also in dicts, lists and tuples; of other objects, the type.
    """
    return xxhash.xxh3_64_intdigest(_hash(element).to_bytes(8, "little"), before)


def _hash(value: Any) -> int:
    if isinstance(value, _LEAVES):
        return digest.leaf(value)
    if isinstance(value, dict):
        value = [part for item in value.items() for part in item]
    if isinstance(value, list | tuple):
        return xxhash.xxh3_64_intdigest(b"".join(_hash(one).to_bytes(8, "little") for one in value))
    return xxhash.xxh3_64_intdigest(type(value).__qualname__.encode())
