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
from samebits._context import Words
from samebits._inspect import rng_states
from samebits._inspect.rng_states import NOTHING, ProcessStates, numpy_words, view_of
from samebits.random import _int_keys as words
from samebits.random._cpu import philox
from samebits.random._process import mt19937

_TWISTER_WORDS = 624
_SEED_WORDS = (
    4  # 128 bits seed NumPy's and Python's Mersenne Twister; a fill of all 624 words costs 25 us there
)
_STREAM = words.as_uint64("samebits.random.generators")
_CUDA = words.as_uint64("cuda")


def fill(key: Words, initial_seed: int | None = None) -> np.ndarray:
    """Sets the generators of torch, NumPy and Python (and CUDA, if it is initialised) from `key`.

    torch's whole Mersenne Twister state is filled: `torch.manual_seed` uses 32 bits of its seed, so that positions
    collide. `torch.initial_seed()` stays what it is, or becomes `initial_seed`.
    Returns the words used: uint32, 624 for torch and four each for NumPy and Python.
    """
    own = words.fold(key, _STREAM)
    stream = np.empty(_TWISTER_WORDS + 2 * _SEED_WORDS, np.uint32)
    philox.fill_words(*own, stream)
    default = torch.default_generator
    default.set_state(torch_state(stream, default.initial_seed() if initial_seed is None else initial_seed))
    seeds = stream[_TWISTER_WORDS:]
    _seed_numpy(seeds[:_SEED_WORDS])
    _seed_python(seeds)
    if torch.cuda.is_initialized():
        for number, generator in enumerate(torch.cuda.default_generators):
            generator.manual_seed(words.fold(own, _CUDA, number)[0])
    return stream


def seed_numpy_and_python(seeds: np.ndarray) -> None:
    """Seeds NumPy's legacy global generator and Python's `random` with four of eight uint32 words each."""
    np.random.seed(seeds[:_SEED_WORDS])  # noqa: NPY002 (the legacy generator is what user code draws from)
    _seed_python(seeds)


def _seed_python(seeds: np.ndarray) -> None:
    random.seed(int.from_bytes(seeds[_SEED_WORDS:].tobytes(), "little"))


def _seed_numpy(seeds: np.ndarray) -> None:
    """Seeds NumPy in 6 us; `numpy.random.seed` takes 30 us between two steps for an array."""
    words = numpy_words() if supports_in_place_seeding() else NOTHING
    if not words.size:
        np.random.seed(seeds)  # noqa: NPY002
        if type(np.random.mtrand._rand._bit_generator) is not np.random.MT19937:  # type: ignore[attr-defined]
            _forget_kept_normal()
        return
    np.random.seed(0)  # noqa: NPY002 (forgets a kept normal)
    mt19937.seed_in_place(words, seeds, mt19937.BASE)


def _forget_kept_normal() -> None:
    """Drops a stored normal number; `numpy.random.seed` does so for a Mersenne Twister only."""
    one: Any = np.random.mtrand._rand  # type: ignore[attr-defined]
    one.set_state({**one.get_state(legacy=False), "has_gauss": 0, "gauss": 0.0})


@cache
def supports_in_place_seeding() -> bool:
    """Returns True if NumPy's generator has the known layout: tried once, on a generator of our own."""
    seeds = np.arange(1, 1 + _SEED_WORDS, dtype=np.uint32)
    ours, theirs = np.random.MT19937(0), np.random.MT19937(0)
    words = view_of(ours, ours.ctypes.state_address)
    if not np.array_equal(words, _words_of(ours)):
        return False
    mt19937.seed_in_place(words, seeds, mt19937.BASE)
    np.random.RandomState(theirs).seed(seeds)
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
        states.restore()


@contextmanager
def discard_states() -> Iterator[None]:
    """Marks a block after which the generators are filled again, so they need not be restored, which costs 0.2 ms."""
    global _blocks
    _blocks += 1
    try:
        yield
    finally:
        _blocks -= 1


def is_preserving() -> bool:
    """Returns True inside a block after which a seed that is set now is lost."""
    return _blocks > 0


def digest() -> str:
    """Returns a digest of the states of all process-wide generators: equal digest, equal draws from here on."""
    states = rng_states.of_process()
    version, twister, kept_normal = states.python_state()
    numpy = states.numpy_state()
    own = numpy["state"]
    plain = (numpy["bit_generator"], numpy["has_gauss"], numpy["gauss"].hex(), version, repr(kept_normal))
    if "key" in own:  # the Mersenne Twister; a user may have set another generator
        parts = [own["key"], repr((own["pos"], *plain)).encode()]
    else:
        parts = [repr((own, *plain)).encode()]
    return _digest.of_bytes(states.torch, *parts, array.array("I", twister).tobytes(), *states.cuda)


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
