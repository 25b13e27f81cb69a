"""Where a run comes from, its seed and its environment, against what the commit says of itself."""

from __future__ import annotations

import sys
import warnings
from dataclasses import asdict, dataclass
from typing import Any

import torch

from samebits.checkpoint import Manifest
from samebits.context import process
from samebits.determinism.environment import differences, environment_fingerprint
from samebits.determinism.settings import active
from samebits.errors import RunMismatchError, UnseededError
from samebits.random import seeds

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


def check_environment(manifest: Manifest, where: str, *, allow_changed: bool) -> None:
    """Raises `RunMismatchError` when software, hardware or flags differ from the commit's (threads are put back)."""
    now = {**environment_fingerprint(), "threads": manifest.environment.get("threads")}
    changed = differences(manifest.environment, now)
    if changed and not allow_changed:
        raise RunMismatchError(
            f"{where} was made in another environment ({'; '.join(changed)}), where the same bits are not promised. "
            "Go back to it, or pass Run(allow_changed_environment=True)."
        )


def keep_threads(manifest: Manifest) -> None:
    """Sets the number of intra-op threads that the run began with, where bits depend on it."""
    settings = active()
    if settings is not None and settings.thread_invariant:
        return
    threads, now = manifest.environment.get("threads"), torch.get_num_threads()
    if isinstance(threads, int) and threads != now:
        message = f"samebits: the run began with {threads} threads; set_num_threads({threads}) instead of {now} keeps the bits"
        print(message, file=sys.stderr)
        torch.set_num_threads(threads)


def _unseeded(then: Origin | None) -> Origin:
    if process.op_determinism:
        raise UnseededError(f"Run: nobody has set a seed. {_CURE}")
    warnings.warn(
        f"Run: nobody has set a seed, so another run will end with other weights. {_CURE}", stacklevel=6
    )
    process.seed = torch.initial_seed() if then is None else then.seed
    return Origin(process.seed, seeded=False)
