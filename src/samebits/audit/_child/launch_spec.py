"""The settings of a launched process (records, variations, kills): one JSON file for the child."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from samebits._context import Across
from samebits.audit._child.kill_points import KILL_POINTS
from samebits.errors import InvalidArgumentError

LEVELS = ("loss", "state")


@dataclass(frozen=True)
class LaunchSpec:
    """One launch of a script (`samebits.audit._child.launch`). The defaults record all and vary nothing."""

    record_dir: str | None = None
    """Folder of `record.jsonl`; None records nothing."""
    by_rank: bool = False
    """With several ranks each has a folder of its own in `record_dir`."""
    level: str = "state"
    every: int = 1
    """Record each `every`-th step and the last one of each epoch."""
    all_memory: bool = False
    """Record also all values that the program holds between two steps (`take_memory`)."""
    digest_files: bool = False
    """Record also the SHA-256 of the script, its modules and the files that it reads."""
    run_root: str | None = None
    stop_after_steps: int | None = None
    batches_per_epoch: int | None = None
    commit_steps: tuple[int, ...] | None = None
    kill: dict[str, Any] | None = None
    """`{"at": one of KILL_POINTS, "step": k}`: the process kills itself there, with SIGKILL.

    In a job of several ranks also `"rank"`, which does it, and `"parent"`: True if it kills torchrun, too.
    """
    num_workers: int | None = None
    torch_workers: bool = True
    """Vary the number of workers of torch's loaders, too, not only of samebits'."""
    threads: int | None = None
    """Intra-op threads; the parent also puts them into the environment, for other libraries that read it."""
    listing_seed: int | None = None
    slow: bool = False
    """Sleep a little after each step, as a slower machine would take longer."""
    switch: bool = False
    """Op determinism on, and `seed` set, before the script starts."""
    across: Across = "runs"
    """With `switch`: as in `enable_op_determinism`."""
    seed: int | None = None
    overlaid: bool = False
    """The working directory is under an overlay, where an ordinary user cannot rename folders."""
    die_with_parent: bool = False
    """SIGKILL when the *thread* that started this process ends (Linux): keep that thread alive."""

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise InvalidArgumentError(f"LaunchSpec(level={self.level!r}): expected one of {LEVELS}")
        if self.every < 1:
            raise InvalidArgumentError(f"LaunchSpec(every={self.every}): expected 1 or more")
        if self.kill is not None and (
            self.kill.get("at") not in KILL_POINTS or not isinstance(self.kill.get("step"), int)
        ):
            raise InvalidArgumentError(
                f"LaunchSpec(kill={self.kill!r}): expected {{'at': one of {tuple(KILL_POINTS)}, 'step': int}}"
            )

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Writes the spec as JSON and returns the path."""
        path = Path(path)
        path.write_text(json.dumps(asdict(self), indent=1, sort_keys=True), encoding="utf-8")
        return path


def read_spec(path: str | os.PathLike[str]) -> LaunchSpec:
    """Returns the spec written by `LaunchSpec.write`. Raises `InvalidArgumentError` for any other file."""
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
        unknown = set(values) - {item.name for item in fields(LaunchSpec)}
    except (OSError, ValueError, TypeError) as error:
        raise InvalidArgumentError(f"read_spec({os.fspath(path)!r}): not a launch spec: {error}") from error
    if unknown:
        raise InvalidArgumentError(
            f"read_spec({os.fspath(path)!r}): unknown entries {sorted(unknown)}; "
            "parent and child must run the same version of samebits"
        )
    if values.get("commit_steps") is not None:
        values["commit_steps"] = tuple(values["commit_steps"])
    return LaunchSpec(**values)
