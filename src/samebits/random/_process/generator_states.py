"""The process-wide generators of torch, NumPy and Python: filled from a key, and restored after a block.

They belong to the process: call this from the training thread only.
"""

from __future__ import annotations

import array
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch

from samebits import _digest as _digest
from samebits._byte_digest import of_bytes
from samebits._context import Words
from samebits._native import kernel
from samebits._objects import rng_states
from samebits._objects.rng_states import ProcessStates, numpy_words, view_of
from samebits.random import _int_keys as int_keys
from samebits.random._cpu import philox
from samebits.random._cpu.philox import fill_words, fold
from samebits.random._process import mt19937

_TWISTER_WORDS = 624
_SEED_WORDS = (
    4  # 128 bits seed NumPy's and Python's Mersenne Twister; a fill of all 624 words costs 25 us there
)
_STREAM = int_keys.as_uint64("samebits.random.generators")
_CUDA = int_keys.as_uint64("cuda")
_KEPT, _PYTHON = rng_states._KEPT_NORMAL, rng_states._PYTHON
_PYTHON_WORDS: Any = rng_states._PYTHON_WORDS
_KEPT_WORDS: Any = None if _KEPT is None else np.frombuffer(_KEPT, np.uint64)


def fill(key: Words, initial_seed: int | None = None) -> None:
    """Sets the generators of torch, NumPy and Python (and CUDA, if it is initialised) from `key`.

    torch's whole Mersenne Twister state is filled: `torch.manual_seed` uses 32 bits of its seed, so that
    positions collide. `torch.initial_seed()` stays what it is, or becomes `initial_seed`.
    """
    default = torch.default_generator
    initial = default.initial_seed() if initial_seed is None else initial_seed
    numpy = numpy_words()
    # by one call: code that has left the processor's caches costs more than the work
    if (
        _has_known_layout()
        and numpy.size
        and _fill_in_place(*key, _STREAM, initial, _BUFFER, numpy, _PYTHON_WORDS, _KEPT_WORDS, mt19937.BASE)
    ):
        default.set_state(_BUFFER_TENSOR)
        _PYTHON.gauss_next = None
    else:
        _fill_by_libraries(words_of(key), initial)
    if torch.cuda.is_initialized():
        for number, generator in enumerate(torch.cuda.default_generators):
            generator.manual_seed(int_keys.fold(key, _STREAM, _CUDA, number)[0])


def words_of(key: Words) -> np.ndarray:
    """Returns the words that `fill` uses: uint32, 624 for torch and four each for NumPy and Python."""
    words = np.empty(_TWISTER_WORDS + 2 * _SEED_WORDS, np.uint32)
    philox.fill_words(*int_keys.fold(key, _STREAM), words)
    return words


def _fill_by_libraries(words: np.ndarray, initial_seed: int) -> None:
    torch.default_generator.set_state(torch_state(words, initial_seed))
    seed_numpy_and_python(words[_TWISTER_WORDS:])
    numpy: Any = np.random.mtrand._rand  # type: ignore[attr-defined]
    if type(numpy._bit_generator) is not np.random.MT19937:  # whose kept normal `seed` does not drop
        numpy.set_state({**numpy.get_state(legacy=False), "has_gauss": 0, "gauss": 0.0})


@cache
def _has_known_layout() -> bool:
    fold(0, 0, 0)  # once called, it serves keys of Python integers, too (`philox.folded`)
    return _PYTHON_WORDS is not None and _KEPT is not None and supports_in_place_seeding()


@kernel(
    "boolean(uint64, uint64, uint64, uint64, uint64[::1], uint32[::1], uint32[::1], uint64[::1], uint32[::1])"
)
def _fill_in_place(
    seed: Any, offset: Any, stream: Any, initial: Any,
    torch: Any, numpy: Any, python: Any, kept: Any, base: Any,
) -> Any:  # fmt: skip
    """Writes torch's state, and NumPy's and Python's in place; False where Python would seed otherwise."""
    words = np.empty(632, np.uint32)
    own_seed, own_offset = fold(seed, offset, stream)
    fill_words(own_seed, own_offset, words)
    if words[631] == np.uint32(0):  # Python leaves out zeros at the end of its seed
        return False
    torch[0] = initial
    for i in range(624):
        torch[3 + i] = words[i]
    mt19937.seed_in_place(numpy, python, words[624:], base)
    kept[0] = kept[1] = np.uint64(0)
    return True


def seed_numpy_and_python(seeds: np.ndarray) -> None:
    """Seeds NumPy's legacy global generator and Python's `random` with four of eight uint32 words each."""
    np.random.seed(seeds[:_SEED_WORDS])  # noqa: NPY002 (the legacy generator is what user code draws from)
    random.seed(int.from_bytes(seeds[_SEED_WORDS:].tobytes(), "little"))


@cache
def supports_in_place_seeding() -> bool:
    """Returns True if NumPy's generator has the known layout: tried once, on a generator of our own."""
    seeds = np.arange(1, 1 + 2 * _SEED_WORDS, dtype=np.uint32)
    ours, theirs = np.random.MT19937(0), np.random.MT19937(0)
    words = view_of(ours, ours.ctypes.state_address)
    if not np.array_equal(words, _words_of(ours)):
        return False
    mt19937.seed_in_place(words, np.empty(1 + _TWISTER_WORDS, np.uint32), seeds, mt19937.BASE)
    np.random.RandomState(theirs).seed(seeds[:_SEED_WORDS])
    return np.array_equal(_words_of(ours), _words_of(theirs))


def _words_of(bits: np.random.MT19937) -> list[int]:
    state = bits.state["state"]
    return [*state["key"], state["pos"]]


_blocks = 0


@contextmanager
def preserve_states() -> Iterator[ProcessStates]:
    """Restores the generators after the block, whatever it draws or seeds; yields their states."""
    global _blocks
    states = rng_states.of_process()
    _blocks += 1
    try:
        yield states
    finally:
        _blocks -= 1
        _restore(states)


def _restore(states: ProcessStates) -> None:
    """Restores the generators: in place in 3 us, else by the libraries' functions in 80."""
    twister, kept = states.numpy
    known = _has_known_layout() and numpy_words().size and isinstance(twister, bytes)
    if not known or torch.cuda.is_initialized():
        states.restore()
        return
    torch.default_generator.set_state(torch.frombuffer(bytearray(states.torch), dtype=torch.uint8))
    numpy_words()[:] = np.frombuffer(twister, np.uint32)
    _KEPT.raw = kept
    words, _PYTHON.gauss_next = states.python
    _PYTHON_WORDS[:] = np.frombuffer(words, np.uint32)


class _DiscardStates:
    """Marks a block after which the generators are filled again: it does not restore them."""

    def __enter__(self) -> None:
        global _blocks
        _blocks += 1

    def __exit__(self, *_: object) -> None:
        global _blocks
        _blocks -= 1


DISCARD_STATES = _DiscardStates()
"""An object of a plain class: a function of contextlib takes 20 us more between two steps."""


_objects_set = 0


def note_objects_set(change: int) -> None:
    """Counts the tasks under way (1, then -1) in which the generators of objects are set for each element."""
    global _objects_set
    _objects_set += change


def sets_objects() -> bool:
    """Returns True in a task in which the generators of objects are set: such a one needs no seed."""
    return _objects_set > 0


def is_preserving() -> bool:
    """Returns True inside a block after which a seed that is set now is lost."""
    return _blocks > 0


def digest() -> str:
    """Returns a digest of the states of all process-wide generators: equal digests, equal next draws."""
    states = rng_states.of_process()
    version, twister, kept_normal = states.python_state()
    numpy = states.numpy_state()
    own = numpy["state"]
    plain = (numpy["bit_generator"], numpy["has_gauss"], numpy["gauss"].hex(), version, repr(kept_normal))
    if "key" in own:  # the Mersenne Twister; a user may have set another generator
        parts = [own["key"], repr((own["pos"], *plain)).encode()]
    else:
        parts = [repr((own, *plain)).encode()]
    return of_bytes(states.torch, *parts, array.array("I", twister).tobytes(), *states.cuda)


# The layout of torch's CPU generator state (CPUGeneratorImplState, 5056 bytes): the seed as u64, `left` and
# `seeded` as i32, `next` as u64, 624 words as u64, and the two kept normals, zero when there are none.
# left = 1, next = 0 is the state after seeding: the first draw twists.
_BUFFER = np.zeros(632, np.uint64)
_BUFFER.view(np.int32)[2:4] = 1
_BUFFER_TENSOR = torch.from_numpy(_BUFFER.view(np.uint8))


def torch_state(stream: np.ndarray, initial_seed: int) -> torch.Tensor:
    _BUFFER[0] = initial_seed
    _BUFFER[3 : 3 + _TWISTER_WORDS] = stream[:_TWISTER_WORDS]
    return _BUFFER_TENSOR
