"""Setters of generators that belong to objects: each is set from a row of words, saved, and put back.

NumPy's and Python's own functions take 5 to 50 us for a Mersenne Twister, so its words are written where they
lie, if the layout is the known one; of other kinds the libraries' functions are called.
"""

from __future__ import annotations

import ctypes
import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch

from samebits._objects import rng_states
from samebits.random._process import generator_states

WORDS = 626
"""Words of a row: 624 for a Mersenne Twister, with 624 before and after them (the next draw twists)."""
_TWISTER = 625
_SEEDED_IN_PYTHON = ("seed", "random", "getrandbits", "getstate", "setstate")

State = Any


class OwnedState(ABC):
    """The state of a generator that is set, saved and put back."""

    words = 8
    """Words that `set` reads of a row, besides the number before them."""

    def __init__(self, generator: Any) -> None:
        self._generator = generator

    @abstractmethod
    def set(self, row: np.ndarray) -> None:
        """Sets the generator from a row of `WORDS` uint32 words."""

    @abstractmethod
    def save(self) -> State:
        """Returns the state, for `restore`."""

    @abstractmethod
    def restore(self, state: State) -> None:
        """Puts a saved state back."""

    def mark(self) -> bytes:
        """Returns bytes that differ once it was drawn from."""
        return rng_states.of_generator(self._generator)


class _LibrarySaved(OwnedState):
    """A state that the library's own functions save and put back."""

    def save(self) -> State:
        return rng_states.state_of(self._generator)

    def restore(self, state: State) -> None:
        rng_states.restore_state(self._generator, state)


class _SeededState(_LibrarySaved):
    """A generator that is set by its `seed`."""

    def set(self, row: np.ndarray) -> None:
        self._generator.seed(_integer(row, 1, 4))


class _TorchState(_LibrarySaved):
    words = WORDS - 2

    def set(self, row: np.ndarray) -> None:
        generator = self._generator
        if generator.device.type == "cpu":
            generator.set_state(generator_states.torch_state(row[1:], generator.initial_seed()))
        else:
            generator.manual_seed(_integer(row, 1, 2) >> 1)


class _BitsState(_LibrarySaved):
    """A bit generator of NumPy's that is no Mersenne Twister."""

    def set(self, row: np.ndarray) -> None:
        bits = self._generator
        make = _INNER.get(type(bits))
        if make is None:
            bits.state = type(bits)(np.random.SeedSequence(row[1:5].tolist())).state
        else:
            bits.state = {"bit_generator": type(bits).__name__, "has_uint32": 0, "uinteger": 0, **make(row)}


class _TwisterState(OwnedState):
    """A Mersenne Twister in memory. Python's has the number drawn before its words, NumPy's after them."""

    words = WORDS - 2

    def __init__(self, generator: Any, address: int, first: int) -> None:
        super().__init__(generator)
        self._words = np.ctypeslib.as_array((ctypes.c_uint32 * _TWISTER).from_address(address))
        self._part = slice(first, first + _TWISTER)

    def set(self, row: np.ndarray) -> None:
        self._words[:] = row[self._part]

    def save(self) -> State:
        return self._words.copy()

    def restore(self, state: State) -> None:
        self._words[:] = state


class _CongruentialState(OwnedState):
    """NumPy's PCG64 in memory: a number and an increment of 128 bits, and half of a draw that it keeps."""

    def __init__(self, bits: Any) -> None:
        super().__init__(bits)
        address = bits.ctypes.state_address
        pointer = ctypes.c_uint64.from_address(address).value
        self._numbers = np.ctypeslib.as_array((ctypes.c_uint32 * 8).from_address(pointer))
        self._kept = np.ctypeslib.as_array((ctypes.c_uint32 * 2).from_address(address + 8))

    def set(self, row: np.ndarray) -> None:
        self._numbers[:] = row[1:9]
        self._numbers[4] |= 1  # an increment is odd
        self._kept[:] = 0

    def save(self) -> State:
        return self._numbers.copy(), self._kept.copy()

    def restore(self, state: State) -> None:
        self._numbers[:], self._kept[:] = state


class _PythonState(OwnedState):
    """A `random.Random`: a Mersenne Twister, and a normal number that it keeps for its next call."""

    def __init__(self, generator: random.Random) -> None:
        super().__init__(generator)
        self._twister = _TwisterState(generator, id(generator) + object.__basicsize__, 0)
        self.words = self._twister.words

    def set(self, row: np.ndarray) -> None:
        self._twister.set(row)
        self._generator.gauss_next = None

    def save(self) -> State:
        return self._twister.save(), self._generator.gauss_next

    def restore(self, state: State) -> None:
        words, self._generator.gauss_next = state
        self._twister.restore(words)


class _LegacyState(OwnedState):
    """A `RandomState`: a bit generator, and a normal number that it keeps for its next call."""

    def __init__(self, generator: Any, kept_at: int) -> None:
        super().__init__(generator)
        self._bits = _of_bits(generator._bit_generator)
        self.words = self._bits.words
        self._kept = (ctypes.c_char * 16).from_address(id(generator) + kept_at)

    def set(self, row: np.ndarray) -> None:
        self._bits.set(row)
        self._kept.raw = bytes(16)

    def save(self) -> State:
        return self._bits.save(), self._kept.raw

    def restore(self, state: State) -> None:
        self._bits.restore(state[0])
        self._kept.raw = state[1]


def owned_state(generator: Any) -> OwnedState | None:
    """Returns the setter of a generator; None for `random.SystemRandom`, which has no state."""
    if isinstance(generator, random.SystemRandom):
        return None
    if isinstance(generator, torch.Generator):
        return _TorchState(generator)
    if isinstance(generator, random.Random):
        kind = type(generator)
        own = any(getattr(kind, name) is not getattr(random.Random, name) for name in _SEEDED_IN_PYTHON)
        return _SeededState(generator) if own or rng_states._PYTHON_WORDS is None else _PythonState(generator)
    if isinstance(generator, np.random.RandomState):
        kept = rng_states._KEPT_NORMAL  # of the process's own, where all have it
        if kept is None:
            return _SeededState(generator)
        return _LegacyState(generator, ctypes.addressof(kept) - id(rng_states._NUMPY))
    return _of_bits(generator.bit_generator if isinstance(generator, np.random.Generator) else generator)


def _of_bits(bits: Any) -> OwnedState:
    if type(bits) is np.random.MT19937 and generator_states.supports_in_place_seeding():
        return _TwisterState(bits, bits.ctypes.state_address, 1)
    if type(bits) in (np.random.PCG64, np.random.PCG64DXSM) and _has_known_congruential_layout():
        return _CongruentialState(bits)
    return _BitsState(bits)


@cache
def _has_known_congruential_layout() -> bool:
    """Returns True if NumPy's PCG64 has its numbers where expected: tried once, on a generator of ours."""
    row, bits = np.arange(WORDS, dtype=np.uint32), np.random.PCG64(0)
    bits.state = {**bits.state, "has_uint32": 1, "uinteger": 77}
    kept = ctypes.c_uint64.from_address(bits.ctypes.state_address + 8).value
    if kept != 1 + (77 << 32):
        return False
    numbers = ctypes.string_at(ctypes.c_uint64.from_address(bits.ctypes.state_address).value, 32)
    if numbers != b"".join(bits.state["state"][name].to_bytes(16, "little") for name in ("state", "inc")):
        return False
    _CongruentialState(bits).set(row)
    expected = {"bit_generator": "PCG64", "has_uint32": 0, "uinteger": 0, **_congruential(row)}
    return bits.state == expected


def _integer(row: np.ndarray, first: int, count: int) -> int:
    return int.from_bytes(row[first : first + count].tobytes(), "little")


def _congruential(row: np.ndarray) -> dict[str, Any]:
    return {"state": {"state": _integer(row, 1, 4), "inc": _integer(row, 5, 4) | 1}}  # it must be odd


def _philox(row: np.ndarray) -> dict[str, Any]:
    state = {"counter": np.zeros(4, np.uint64), "key": row[1:5].copy().view(np.uint64)}
    return {"state": state, "buffer": np.zeros(4, np.uint64), "buffer_pos": 4}


def _small(row: np.ndarray) -> dict[str, Any]:
    return {"state": {"state": row[1:9].copy().view(np.uint64)}}


_INNER: dict[type, Callable[[np.ndarray], dict[str, Any]]] = {
    np.random.PCG64: _congruential,
    np.random.PCG64DXSM: _congruential,
    np.random.Philox: _philox,
    np.random.SFC64: _small,
}
"""The parts of a bit generator's `state`."""
