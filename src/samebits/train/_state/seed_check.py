"""The seed of a run, compared with the one in the commit."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from samebits._context import process
from samebits._inspect import user_code
from samebits._unseeded import CURE, no_seed
from samebits.checkpoint._manifest import Manifest
from samebits.errors import RunMismatchError
from samebits.random._process import seeds


@dataclass(frozen=True)
class RunSeed:
    """A run's seed."""

    seed: int
    seeded: bool
    """True if the program set it; else the operating system chose it at the run's first start."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields for a commit."""
        return asdict(self)


def resolve_seed(manifest: Manifest | None, where: str) -> RunSeed:
    """Returns the seed that the program set; a program without one keeps the seed of the run's first start.

    Raises `UnseededError` for none under op determinism, `RunMismatchError` for a seed that is not the commit's.
    """
    mine = seeds.root_seed()
    recorded = None if manifest is None else RunSeed(**manifest.program)
    if mine is None:
        return _default_seed(recorded)
    if recorded is not None and recorded.seeded and recorded.seed != mine:
        raise RunMismatchError(
            f"{where} was made with seed {recorded.seed}, this program has seed {mine}. "
            "Set the same seed, or use another run directory."
        )
    return RunSeed(mine, seeded=True)


def _default_seed(recorded: RunSeed | None) -> RunSeed:
    if process.op_determinism:
        raise no_seed("Run begins under op determinism")
    user_code.warn(f"Run: no seed was set, so another run will end with other weights. {CURE}.")
    process.seed = torch.initial_seed() if recorded is None else recorded.seed
    return RunSeed(process.seed, seeded=False)
