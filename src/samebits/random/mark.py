"""Where the process's generators are, taken in a few us: to see whether anybody drew, and to put them back.

`generators.capture` asks each library for its state, and NumPy's and Python's make objects of 624 words, which costs
ten times as much. Here their memory is copied. Where it lies is tried out on generators of our own; where it does not
lie as expected (another Python, another bit generator), the libraries are asked after all.
"""

from __future__ import annotations

import ctypes
import functools
import random
import struct
from typing import Any, NamedTuple

import numpy as np
import torch

_PYTHON: Any = random._inst  # type: ignore[attr-defined]
_NUMPY: Any = np.random.get_state.__self__  # type: ignore[attr-defined]
"""The global generators, whatever has been put in front of their functions."""
_TWISTER = 625 * 4
"""Bytes of a Mersenne Twister: 624 words and a position, which NumPy has behind them and Python in front."""


class Mark(NamedTuple):
    """A place in the streams of all process-wide generators. Equal marks: nobody drew or seeded in between."""

    torch: bytes
    numpy: Any
    python: Any
    cuda: tuple[bytes, ...]

    def restore(self) -> None:
        """Puts every generator back to here."""
        torch.default_generator.set_state(_tensor(self.torch))
        _NUMPY.set_state(_numpy_state(*self.numpy))
        random.setstate(_python_state(*self.python))
        for generator, state in zip(torch.cuda.default_generators, self.cuda, strict=False):
            generator.set_state(_tensor(state))


def mark() -> Mark:
    """The place where all process-wide generators are now."""
    cuda = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    return Mark(_bytes(torch.default_generator), _numpy_place(), _python_place(), tuple(map(_bytes, cuda)))


def _bytes(generator: torch.Generator) -> bytes:
    state = generator.get_state()
    return ctypes.string_at(state.data_ptr(), state.numel())


def _tensor(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)


def _memory(address: int, size: int) -> Any:
    """What lies there; `.raw` is a copy of it as it is then."""
    return (ctypes.c_char * size).from_address(address)


# NumPy: the words and position, then whether a normal is kept, and which


def _numpy_place() -> tuple[Any, bytes]:
    bits = _NUMPY._bit_generator
    if _seen.bits is not bits:
        _seen.look(bits)
    if _seen.words is None:
        return _Asked(_NUMPY.get_state(legacy=False)), b""
    return _seen.words.raw, _seen.kept.raw


class _Seen:
    """Where the memory of NumPy's global generator lies; None: elsewhere than expected."""

    bits: Any = None
    words: Any = None
    kept: Any = None

    def look(self, bits: Any) -> None:
        """At a bit generator that is new."""
        normal = _kept_normal()
        known = type(bits) is np.random.MT19937 and normal is not None
        self.bits, self.words = bits, _memory(bits.ctypes.state_address, _TWISTER) if known else None
        self.kept = _memory(id(_NUMPY) + (normal or 0), 16)


_seen = _Seen()


def _numpy_state(words: Any, kept: bytes) -> Any:
    if isinstance(words, _Asked):
        return words.state
    twister = np.frombuffer(words, np.uint32)
    has_gauss, gauss = struct.unpack("ixxxxd", kept)
    return "MT19937", twister[:-1], int(twister[-1]), has_gauss, gauss


class _Asked:
    """A state that NumPy gave out, which can be compared."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Asked) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        with np.printoptions(threshold=1 << 20):
            return repr(self.state)


@functools.cache
def _kept_normal() -> int | None:
    """Where in a RandomState its kept normal lies: an int, whether there is one, and a double; None: elsewhere."""
    own, number = np.random.RandomState(0), 0.0625019073486328125
    state = own.get_state(legacy=False)
    own.set_state({**state, "has_gauss": 1, "gauss": number})
    place = _whole(own).find(struct.pack("ixxxxd", 1, number)[8:]) - 8
    if place < 0 or _whole(own)[place : place + 4] != struct.pack("i", 1):
        return None
    own.normal()  # takes it
    return place if _whole(own)[place : place + 4] == struct.pack("i", 0) else None


def _whole(found: Any) -> bytes:
    return ctypes.string_at(id(found), type(found).__basicsize__)


# Python: the position and words, then the kept normal


def _python_place() -> tuple[Any, Any]:
    if _python_words is None:
        return random.getstate(), None
    return _python_words.raw, _PYTHON.gauss_next


def _python_state(words: Any, kept: float | None) -> Any:
    if isinstance(words, tuple):
        return words
    position, *twister = np.frombuffer(words, np.uint32).tolist()
    return _PYTHON.VERSION, (*twister, position), kept


def _lies_behind_the_head() -> bool:
    """Whether a `random.Random` has its words where CPython's has them."""
    own = random.Random(7)
    own.random()
    if type(own).__basicsize__ < object.__basicsize__ + _TWISTER:
        return False
    position, *twister = np.frombuffer(_whole(own), np.uint8)[object.__basicsize__ :][:_TWISTER].view(
        np.uint32
    )
    return own.getstate()[1] == (*map(int, twister), int(position))


_python_words = _memory(id(_PYTHON) + object.__basicsize__, _TWISTER) if _lies_behind_the_head() else None
