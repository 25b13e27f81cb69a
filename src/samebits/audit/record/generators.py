"""The states of random generators: the process-wide ones, and generator objects that a script holds."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import xxhash

from samebits import digest
from samebits.audit.record.leaves import Leaves, leaf, plain

_MERSENNE_TWISTER_WORDS = 625
"""NumPy's struct: 624 words of state, then the position."""


def generators() -> Leaves:
    """The process-wide generators of torch (and CUDA, once it is used), NumPy and Python."""
    names, parts = (
        ["torch", "numpy", "python"],
        [leaf(torch.default_generator.get_state()), _numpy(), _python()],
    )
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        for number in range(torch.cuda.device_count()):
            names.append(f"cuda{number}")
            parts.append(leaf(torch.cuda.default_generators[number].get_state()))
    return Leaves(tuple(names), b"".join(parts))


def _python() -> bytes:
    version, words, kept_normal = random.getstate()
    return plain((version, hash(words), kept_normal))  # the hash of a tuple of integers is a fixed function


def _numpy() -> bytes:
    """NumPy's legacy generator, read in place (0.3 us; `get_state` 32 us), so without its kept second normal."""
    global _viewed
    bits = np.random.mtrand._rand._bit_generator  # type: ignore[attr-defined]
    if type(bits) is not np.random.MT19937:
        return _by_value(bits.state)
    if _viewed is None or _viewed[0] is not bits:
        struct = (ctypes.c_uint32 * _MERSENNE_TWISTER_WORDS).from_address(bits.ctypes.state_address)
        _viewed = (bits, np.ctypeslib.as_array(struct))
    words: Any = _viewed[1]
    return xxhash.xxh3_64_digest(words)


_viewed: tuple[np.random.MT19937, Any] | None = None


def of_generator(value: Any) -> bytes | None:
    """Hash of a generator object's state, or None if `value` is no generator."""
    reader = _GENERATORS.get(type(value))
    return reader(value) if reader else None


_GENERATORS: dict[type, Callable[[Any], bytes]] = {
    torch.Generator: lambda value: leaf(value.get_state()),
    np.random.Generator: lambda value: _by_value(value.bit_generator.state),
    np.random.RandomState: lambda value: _by_value(value.get_state(legacy=False)),
    random.Random: lambda value: plain(hash(value.getstate()[1])),
}


def _by_value(state: Any) -> bytes:
    return plain(digest.of_value(state))
