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
from samebits._inspect.tree import Leaves, leaf, plain
from samebits.random import Generator

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
    for kind, reader in _GENERATORS.items():
        if isinstance(value, kind):
            return reader(value)
    return None


def of_state(value: Any) -> bytes | None:
    """The hash that `of_generator` gives for a generator whose state was taken (`get_state`, `getstate`, `.state`)."""
    if isinstance(value, dict) and "bit_generator" in value:
        return _by_value(value)
    if isinstance(value, list | tuple) and len(value) == 3 and isinstance(value[1], list | tuple):
        return _of_words(value[1])
    return None


def _of_words(words: Any) -> bytes:
    return plain(hash(tuple(words)))


def _by_value(state: Any) -> bytes:
    return plain(digest.of_value(state))


_GENERATORS: dict[type, Callable[[Any], bytes]] = {
    torch.Generator: lambda value: leaf(value.get_state()),
    Generator: lambda value: plain((vars(value)["_words"], vars(value)["_draws"])),
    np.random.Generator: lambda value: _by_value(value.bit_generator.state),
    np.random.RandomState: lambda value: _by_value(value.get_state(legacy=False)),
    np.random.BitGenerator: lambda value: _by_value(value.state),
    np.random.SeedSequence: lambda value: plain(value.n_children_spawned),
    random.Random: lambda value: _of_words(value.getstate()[1]),
}
GENERATORS = tuple(_GENERATORS)
