"""The seed that a run comes from, against what the commit says of itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from samebits._context import process
from samebits._inspect import user_code
from samebits.checkpoint import Manifest
from samebits.errors import RunMismatchError, UnseededError
from samebits.random._process import seeds

_CURE = "Call samebits.set_random_seed(seed) at the top of the program."


@dataclass(frozen=True)
class Origin:
    """A run's seed."""

    seed: int
    seeded: bool
    """Whether the program set it; else it is the operating system's, kept from the run's first start."""

    def to_dict(self) -> dict[str, Any]:
        """What a commit keeps."""
        return asdict(self)


def settle_seed(manifest: Manifest | None, where: str) -> Origin:
    """The seed that the program set; a program that sets none goes on with the one that the run began with.

    Raises `UnseededError` for none under op determinism, `RunMismatchError` for another one than the commit's.
    """
    mine = seeds.root_seed()
    then = None if manifest is None else Origin(**manifest.program)
    if mine is None:
        return _unseeded(then)
    if then is not None and then.seeded and then.seed != mine:
        raise RunMismatchError(
            f"{where} was made with seed {then.seed}, this program has seed {mine}. "
            "Set the same seed, or use another run directory."
        )
    return Origin(mine, seeded=True)


def _unseeded(then: Origin | None) -> Origin:
    if process.op_determinism:
        raise UnseededError(f"Run: nobody has set a seed. {_CURE}")
    user_code.warn(f"Run: nobody has set a seed, so another run will end with other weights. {_CURE}")
    process.seed = torch.initial_seed() if then is None else then.seed
    return Origin(process.seed, seeded=False)
