"""The states of random generators: read, compared, hashed and restored.

Of generator objects, and of the process-wide ones, which are read at every step and element: `of_process`
takes a few us. NumPy's and Python's own functions make objects of 624 words, which costs ten times as much,
so their memory is copied. Its address was tested on generators of our own; where it is not as expected
(another Python, another bit generator), the libraries' functions are called after all.
"""

from __future__ import annotations

import ctypes
import functools
import random
import struct
from typing import Any, NamedTuple

import numpy as np
import torch
import xxhash

from samebits import _digest as digest
from samebits._objects.hashes import Leaves, leaf, plain

TWISTER_WORDS, NOTHING = 624, np.empty(0, np.uint32)
_PYTHON: Any = random._inst  # type: ignore[attr-defined]
_NUMPY: Any = np.random.get_state.__self__  # type: ignore[attr-defined]
"""The global generators, whatever has replaced their functions."""
PROCESS_GENERATORS = (torch.default_generator, _PYTHON, _NUMPY)
_viewed: dict[Any, tuple[np.ndarray, Any]] = {}
"""The memory of Mersenne Twisters, as words and as bytes."""
_chars = functools.cache(lambda size: ctypes.c_char * size)
"""The type of so many bytes. Its `raw` copies by the least code: a step drives code out of the caches."""


class HasRngState:
    """A generator of samebits', which returns its state itself."""

    def _rng_state(self) -> Any:
        """Returns the state, of plain values."""
        raise NotImplementedError


RESTORABLE = (
    *(torch.Generator, random.Random),
    *(np.random.Generator, np.random.RandomState, np.random.BitGenerator),
)
GENERATORS = (*RESTORABLE, np.random.SeedSequence, HasRngState)


def is_of_process(generator: Any) -> bool:
    """Returns True for a generator of the whole process: torch's (CUDA's, too), NumPy's, Python's."""
    # while nobody has seeded NumPy, the switch has one of its own stand there
    now: Any = np.random.mtrand._rand  # type: ignore[attr-defined]
    return any(generator is one for one in (*PROCESS_GENERATORS, now, *torch.cuda.default_generators))


# Generator objects


def state_of(generator: Any) -> Any:
    """Returns the state of one of `GENERATORS`, as its library gives it; None for `random.SystemRandom`."""
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return None if isinstance(generator, random.SystemRandom) else generator.getstate()
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    if isinstance(generator, np.random.SeedSequence):
        return generator.n_children_spawned
    if isinstance(generator, HasRngState):
        return generator._rng_state()
    return (generator.bit_generator if isinstance(generator, np.random.Generator) else generator).state


def restore_state(generator: Any, state: Any) -> None:
    """Restores one of `RESTORABLE` to a state of `state_of`."""
    if isinstance(generator, random.Random):
        if state is not None:
            generator.setstate(state)
    elif isinstance(generator, torch.Generator | np.random.RandomState):
        generator.set_state(state)
    else:
        bits = generator.bit_generator if isinstance(generator, np.random.Generator) else generator
        bits.state = state


def of_generator(value: Any) -> bytes:
    state = state_of(value)
    if isinstance(state, torch.Tensor):
        return leaf(state)
    return plain(digest.of_value(state)) if isinstance(state, dict) else of_state(state) or plain(state)


def of_state(value: Any) -> bytes | None:
    """Returns `of_generator`'s hash for this state of a NumPy or Python generator; None for others."""
    if isinstance(value, dict) and "bit_generator" in value:
        return plain(digest.of_value(value))
    if isinstance(value, list | tuple) and len(value) == 3 and isinstance(value[1], list | tuple):
        return plain(hash(tuple(value[1])))  # the hash of a tuple of integers is a fixed function
    return None


def of_loader(loader: Any) -> list[torch.Generator]:
    """Returns a torch loader's private generators: they advance from epoch to epoch, so they are state."""
    places = [loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)]
    places.append(getattr(places[-1], "sampler", None))
    found = [getattr(place, "generator", None) for place in places]
    unique = {id(one): one for one in found if isinstance(one, torch.Generator)}
    return list(unique.values())


# The generators of the process


class ProcessStates(NamedTuple):
    """Positions in the streams of all process-wide generators; equal ones: no draw or seed in between."""

    torch: bytes
    numpy: Any
    python: Any
    cuda: tuple[bytes, ...]

    def restore(self) -> None:
        torch.default_generator.set_state(_tensor(self.torch))
        _NUMPY.set_state(self.numpy_state())
        random.setstate(self.python_state())
        for generator, state in zip(torch.cuda.default_generators, self.cuda, strict=False):
            generator.set_state(_tensor(state))

    def numpy_state(self) -> dict[str, Any]:
        """Returns the state as `numpy.random.get_state(legacy=False)` does."""
        words, kept = self.numpy
        if isinstance(words, _LibraryState):
            return words.state
        twister = np.frombuffer(words, np.uint32)
        has_gauss, gauss = struct.unpack(_KEPT, kept)
        own = {"key": twister[:-1], "pos": int(twister[-1])}
        return {"bit_generator": "MT19937", "state": own, "has_gauss": has_gauss, "gauss": gauss}

    def python_state(self) -> tuple[Any, ...]:
        """Returns the state as `random.getstate()` does."""
        words, kept = self.python
        if isinstance(words, tuple):
            return words
        position, *twister = np.frombuffer(words, np.uint32).tolist()
        return _PYTHON.VERSION, (*twister, position), kept


def of_process() -> ProcessStates:
    """Returns the states of all process-wide generators: torch's (CUDA's, if used), NumPy's, Python's."""
    cuda = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    return ProcessStates(_bytes(torch.default_generator), _numpy(), _python(), tuple(map(_bytes, cuda)))


def generators() -> Leaves:
    """Returns one leaf for each process-wide generator; NumPy's without its cached second normal."""
    words = numpy_words()
    version, twister, kept_normal = random.getstate()
    names = ["torch", "numpy", "python"]
    parts = [
        leaf(torch.default_generator.get_state()),
        xxhash.xxh3_64_digest(words)  # type: ignore[arg-type]
        if words.size
        else plain(digest.of_value(_NUMPY._bit_generator.state)),
        plain((version, hash(twister), kept_normal)),
    ]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        for number in range(torch.cuda.device_count()):
            names.append(f"cuda{number}")
            parts.append(leaf(torch.cuda.default_generators[number].get_state()))
    return Leaves(tuple(names), b"".join(parts))


def numpy_words() -> np.ndarray:
    """Returns NumPy's legacy generator in place: 624 words, then the number drawn; empty if replaced."""
    bits = _NUMPY._bit_generator
    if bits in _viewed:
        return _viewed[bits][0]
    return view_of(bits, bits.ctypes.state_address) if type(bits) is np.random.MT19937 else NOTHING


def python_words() -> np.ndarray:
    """Returns Python's `random` in place: the number drawn, then 624 words; a copy if CPython moved them."""
    if _PYTHON_WORDS is not None:
        return _PYTHON_WORDS
    *twister, position = _PYTHON.getstate()[1]
    return np.array([position, *twister], np.uint32)


def view_of(owner: Any, address: int) -> np.ndarray:
    """Returns the 625 words at an address, which `owner` keeps alive."""
    memory = _chars(4 * (1 + TWISTER_WORDS)).from_address(address)
    _viewed[owner] = np.frombuffer(memory, np.uint32), memory
    return _viewed[owner][0]


def _bytes(generator: torch.Generator) -> bytes:
    state = generator.get_state()
    return _chars(state.numel()).from_address(state.data_ptr()).raw


def _tensor(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)


def _numpy() -> tuple[Any, bytes]:
    """Returns the words and position, and the cached normal; or NumPy's own state."""
    if _KEPT_NORMAL is None or not numpy_words().size:
        return _LibraryState(_NUMPY.get_state(legacy=False)), b""
    return _viewed[_NUMPY._bit_generator][1].raw, _KEPT_NORMAL.raw


def _python() -> tuple[Any, Any]:
    """Returns the position and words, and the cached normal; or Python's own state."""
    if _PYTHON_WORDS is None:
        return random.getstate(), None
    return _viewed[_PYTHON][1].raw, _PYTHON.gauss_next


class _LibraryState:
    """A state from NumPy's function, which can be compared."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _LibraryState) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def __repr__(self) -> str:
        with np.printoptions(threshold=1 << 20):
            return repr(self.state)


_KEPT = "ixxxxd"
"""A cached normal in a RandomState: 1 if there is one, and its value."""


def _kept_normal() -> Any:
    """Returns the memory of the cached normal of NumPy's global generator; None where it is not found."""
    own, number = np.random.RandomState(0), 0.0625019073486328125
    own.set_state({**own.get_state(legacy=False), "has_gauss": 1, "gauss": number})
    place = _whole(own).find(struct.pack(_KEPT, 1, number)[8:]) - 8
    if place < 0 or _whole(own)[place : place + 4] != struct.pack("i", 1):
        return None
    own.normal()  # takes it
    if _whole(own)[place : place + 4] != struct.pack("i", 0):
        return None
    return (ctypes.c_char * 16).from_address(id(_NUMPY) + place)


def _has_cpython_layout() -> bool:
    """Returns True if a `random.Random` has its words where CPython's has them."""
    own = random.Random(7)
    own.random()
    size = 4 * (1 + TWISTER_WORDS)
    if type(own).__basicsize__ < object.__basicsize__ + size:
        return False
    position, *twister = np.frombuffer(_whole(own)[object.__basicsize__ :][:size], np.uint32).tolist()
    return own.getstate()[1] == (*twister, position)


def _whole(states: Any) -> bytes:
    return ctypes.string_at(id(states), type(states).__basicsize__)


_KEPT_NORMAL = _kept_normal()
_PYTHON_WORDS = view_of(_PYTHON, id(_PYTHON) + object.__basicsize__) if _has_cpython_layout() else None
