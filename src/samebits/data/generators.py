"""Keys and NumPy generators for calls of a user's function, one for each element."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from samebits.context import Words
from samebits.kernels import kernel
from samebits.random._philox import fold

Place = int | tuple[int, ...]
"""Where an element is: its ordinal, or its group's ordinal and its number therein."""


def key_words(key: Words, places: Iterable[Place]) -> np.ndarray:
    """`words.fold(key, *place)` of every place: uint64, of shape (places, 2)."""
    several = list(places)
    paths = np.array(several, np.int64).reshape(len(several), -1)
    rows = np.empty((len(several), 2), np.uint64)
    _fold_paths(*key, paths, rows)
    return rows


@kernel("void(uint64, uint64, int64[:, ::1], uint64[:, ::1])")
def _fold_paths(seed: Any, offset: Any, paths: Any, rows: Any) -> None:
    for row in range(paths.shape[0]):
        own_seed, own_offset = seed, offset
        for part in range(paths.shape[1]):
            own_seed, own_offset = fold(own_seed, own_offset, np.uint64(paths[row, part]))
        rows[row, 0] = own_seed
        rows[row, 1] = own_offset


def key_tensors(rows: np.ndarray) -> tuple[torch.Tensor, ...]:
    """One key tensor of shape (2,) for each row: 0.5 us each, where making one alone costs 2.6."""
    return torch.from_numpy(rows).unbind(0)


_spare = threading.local()
"""A generator that nobody has in hand, one for each thread: to set one costs 0.9 us, to make one 8."""


def call_with_generators(
    call: Callable[..., Any], elements: Sequence[Any], rows: np.ndarray, results: list[Any]
) -> None:
    """Appends `call(element, rng=...)` for every element: its generator is Philox, with the row's 128 bits as cipher key.

    It is one object, set anew for each call, unless the user has kept it: what somebody else still refers to is left
    to him, and another one is made.
    """
    generator, _spare.generator = (
        getattr(_spare, "generator", None),
        None,
    )  # a call within a call makes its own
    nothing = np.zeros(4, np.uint64)
    inner: dict[str, Any] = {"counter": nothing}
    state = {
        "bit_generator": "Philox", "state": inner, "buffer": nothing, "buffer_pos": 4, "has_uint32": 0, "uinteger": 0
    }  # fmt: skip
    for element, row in zip(elements, rows, strict=True):
        if generator is None:
            generator = np.random.Generator(np.random.Philox(0))
        inner["key"] = row
        generator.bit_generator.state = state
        results.append(call(element, rng=generator))
        if _references(generator) != _UNKEPT:
            generator = None
    _spare.generator = generator


def _references(generator: np.random.Generator) -> tuple[int, int]:
    """How many refer to it, and to its bits: the numbers differ between Pythons, not between kept and unkept."""
    return sys.getrefcount(generator), sys.getrefcount(generator.bit_generator)


def _unkept() -> tuple[int, int]:
    generator = np.random.Generator(np.random.Philox(0))
    return _references(generator)


_UNKEPT = _unkept()
