"""The number of draws of a step from the process's generators, read from their states without hooks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

import numpy as np
import torch

from samebits._context import Words
from samebits._objects.rng_states import numpy_words, python_words
from samebits._unseeded import no_seed
from samebits.random._process import generator_states
from samebits.random._process.mt19937 import BASE, MANY, SEEDED, WORDS, words_since

_NAMES = "torch", "numpy", "python"
_VERDICTS = {MANY: "many", SEEDED: "reseeded"}


_Note = tuple[Words | np.ndarray, tuple[tuple[int, int], ...]]
_note: _Note | None = None
"""The states when the step began: the key of `fill`, or words as of `words_of`; CUDA's seeds and offsets."""


def begin(key: Words) -> None:
    """Fills the generators from `key`, and starts the count."""
    global _note
    generator_states.fill(key)
    _note = key, _cuda() if torch.cuda.is_initialized() else ()


def snapshot() -> _Note | None:
    """Returns the start of the count, for `restore`."""
    return _note


def restore(noted: _Note | None) -> None:
    """Counts from an earlier start again, once the generators are restored."""
    global _note
    _note = noted


def note_seeds(seeds: np.ndarray) -> None:
    """Starts the count where torch has just been seeded, and NumPy and Python by `seeds`."""
    words = np.concatenate([_torch()[6 : 6 + 2 * WORDS : 2], seeds])
    restore((words, _cuda() if torch.cuda.is_initialized() else ()))


def draws() -> dict[str, int | str]:
    """Returns the 32-bit words drawn from each generator since the step began: {"torch": 4, "numpy": 0, ...}.

    Outside of the steps of a `Run`, since `set_random_seed`. "reseeded": it was seeded (or another kind of
    generator was put there); "many": more than a million words were drawn, or another state was set. A CUDA
    device, once used, is "cuda:0" and so on, with the difference of its Philox offset. A draw by keys, or
    from a generator object, does not count. Costs some microseconds, and 2 milliseconds for "many". Raises
    `UnseededError` if there was neither a step nor `set_random_seed`.

    Example:
        >>> samebits.set_random_seed(1)
        >>> x = torch.rand(3)
        >>> samebits.random.draws()
        {'torch': 3, 'numpy': 0, 'python': 0}
    """
    if _note is None:
        raise no_seed(
            "samebits.random.draws() counts from the last seed or step",
            "there is none",
            "call it in a step of a samebits.Run",
        )
    start, cuda = _note
    words = start if isinstance(start, np.ndarray) else generator_states.words_of(start)
    counts = words_since(_torch(), numpy_words(), python_words(), words, BASE)
    seen: dict[str, int | str] = {
        name: _VERDICTS.get(count, count) for name, count in zip(_NAMES, counts, strict=True)
    }
    if torch.cuda.is_initialized():
        seen |= {f"cuda:{number}": count for number, count in enumerate(_cuda_since(cuda))}
    return seen


def _cuda_since(begun: tuple[tuple[int, int], ...]) -> Iterator[int | str]:
    for (seed, offset), (old_seed, old_offset) in zip_longest(_cuda(), begun, fillvalue=(-1, 0)):
        moved = offset - old_offset
        yield "reseeded" if old_seed not in (-1, seed) or moved < 0 else moved


def _torch() -> np.ndarray:
    """Returns the state of torch's CPU generator as 1264 words; `generator_states` describes them."""
    return torch.default_generator.get_state().numpy().view(np.uint32)


def _cuda() -> tuple[tuple[int, int], ...]:
    return tuple((g.initial_seed(), g.get_offset()) for g in torch.cuda.default_generators)
