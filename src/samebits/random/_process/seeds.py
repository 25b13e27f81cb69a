"""The seed of the process: one call for all libraries, and the seeds that others have set."""

from __future__ import annotations

from itertools import chain

import numpy as np
import torch

from samebits import _context as context
from samebits.errors import InvalidArgumentError
from samebits.random import _int_keys as int_keys
from samebits.random._cpu import philox
from samebits.random._process import draw_counts, generator_states

if context.at_import.torch_seed is None:  # torch was imported without our import hook
    context.note_torch(torch)
_STREAM = int_keys.as_uint64("samebits.random.seeds")


def set_random_seed(seed: int) -> None:
    """Seeds Python, NumPy, torch (all devices) and samebits' own streams; sets `torch.initial_seed()`.

    torch is seeded by `torch.manual_seed(seed)`; NumPy and Python with 128 bits each from the seed's key. The
    global generator is dropped: `samebits.random.get_global_generator` makes a new one of this seed. Raises
    `InvalidArgumentError` unless `seed` is an int with 0 <= seed < 2**63, and changes nothing then.

    Example:
        >>> samebits.set_random_seed(7)
        >>> first = torch.rand(3)
        >>> samebits.set_random_seed(7)
        >>> torch.equal(torch.rand(3), first), torch.initial_seed()
        (True, 7)
    """
    checked = _check_seed(seed)
    own_seed, offset = int_keys.fold(int_keys.root(checked), _STREAM)
    blocks = (philox.words_of(own_seed, (offset + block) % 2**64) for block in range(2))
    seeds = np.array([*chain.from_iterable(blocks)], np.uint32)
    torch.manual_seed(checked)
    generator_states.seed_numpy_and_python(seeds)
    if context.process.position is None:  # in a step it is a reseeding, which draws() must report
        draw_counts.note_seeds(seeds)
    context.process.seed, context.process.seeded, context.process.generator = checked, True, None


def _check_seed(seed: int) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise InvalidArgumentError(
            f"set_random_seed takes an int, got {seed!r} ({type(seed).__name__}); for example "
            "set_random_seed(1)"
        )
    if not 0 <= seed < 2**63:
        what = "a negative seed" if seed < 0 else "a seed of 2**63 or more"
        raise InvalidArgumentError(f"set_random_seed got {what} ({seed}); use 0 <= seed < 2**63")
    return int(seed)


def torch_was_seeded() -> bool:
    """Returns True if torch's CPU generator was seeded, before or after samebits was imported.

    An unseeded process has a 53-bit number of the operating system there, as which `torch.seed()` counts too
    once it is drawn anew; a number below 2**32 counts as a chosen seed.
    """
    now = torch.default_generator.initial_seed()
    return now != context.at_import.torch_seed or now < 2**32


def root_seed() -> int | None:
    """Returns the seed of `set_random_seed`, else the one that torch was seeded with, else None."""
    if context.process.seed is not None:
        return context.process.seed
    return torch.initial_seed() if torch_was_seeded() else None
