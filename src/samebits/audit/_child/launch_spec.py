"""The settings of a launched process (records, variations, kills): one JSON file for the child."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from samebits._context import Across, CheckOverrides
from samebits.audit._child.kill_points import Kill
from samebits.errors import InvalidArgumentError

LEVELS = ("loss", "state")


@dataclass(frozen=True)
class TraceSpec:
    """The step of a script to trace, op by op, and the op of it whose arguments are to be saved."""

    file: str
    """The trace; of a job, with the rank's number at its end."""
    loop: str = ""
    step: int = -1
    """The first step of `loop` that is traced. -1: from the script's first line."""
    stop: int | None = None
    """The step before which the process ends; None: it runs to its end."""
    capture: int | None = None
    """The number of an op: its arguments and outputs are written beside the file, and the process ends."""
    repeats: int = 0
    """Calls of that op in that process; without `capture`, of each op."""
    fill: bool = False
    """Memory that an op takes is filled with zeros."""


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
    overrides: CheckOverrides = field(default_factory=CheckOverrides)
    """Under a `run_root` nothing is raised that a `Run` finds, and the process knows its moved folders."""
    kill: Kill | None = None
    """The process kills itself there. In a job (`by_rank`) the kill's rank does, or rank 0, with torchrun."""
    trace: TraceSpec | None = None
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

    def write(self, path: str | os.PathLike[str]) -> Path:
        path = Path(path)
        path.write_text(json.dumps(asdict(self), indent=1, sort_keys=True, default=str), encoding="utf-8")
        return path


def read_spec(path: str | os.PathLike[str]) -> LaunchSpec:
    """Returns the spec written by `LaunchSpec.write`. Raises `InvalidArgumentError` for any other file."""
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8"))
        overrides, kill = CheckOverrides(**values.pop("overrides", {})), values.pop("kill", None)
        trace = values.pop("trace", None)
        root, steps = overrides.run_root, overrides.commit_steps
        overrides = replace(overrides, run_root=root and Path(root), commit_steps=steps and tuple(steps))
        kill, trace = kill and Kill(**kill), trace and TraceSpec(**trace)
        return LaunchSpec(**values, overrides=overrides, kill=kill, trace=trace)
    except (OSError, ValueError, TypeError) as error:
        raise InvalidArgumentError(
            f"read_spec({os.fspath(path)!r}): no launch spec of this version of samebits: {error}"
        ) from error
