"""The state of this process: the switch, the seed, the position, the observers, and the overrides of a check.

The lowest layer: it imports nothing of the package, so that every module may read it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from types import FrameType, ModuleType
from typing import Any, Literal, NamedTuple, get_args
from zlib import crc32

VERSION = "0.1.0.dev0"
"""The version of samebits, here too because sources need not be installed."""

_URL_SIGNS = re.compile(r"[^A-Za-z0-9-]+")

Words = tuple[int, int]
"""A counter-based RNG key as two unsigned 64-bit integers (seed, offset)."""


class Position(NamedTuple):
    """The position of a run: small integers and the loop's name.

    `step` counts the batches of the whole run from 0, `batch_index` those of the epoch.
    """

    loop: str
    epoch: int
    batch_index: int
    step: int
    phase: str = "train"
    """ "train", or "validate" between two batches of a `Run.validate` in the body of this step."""
    name: str = ""
    """The name of the validation."""
    phase_batch: int = 0
    """The batch of the validation, from 0."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the form stored in a commit."""
        return self._asdict()

    @property
    def inside(self) -> tuple[str | int, ...]:
        """The place in the step's body; draws in a validation are keyed by it, besides loop and step."""
        return () if self.phase == "train" else (self.phase, self.name, self.phase_batch)


@dataclass(frozen=True)
class CheckOverrides:
    """The changes that `samebits verify` makes to a run that it observes. A normal run has none."""

    run_root: Path | None = None
    """The folder that holds every run directory."""
    stop_after_steps: int | None = None
    """The number of steps, over all processes of the run, after which it ends as if exhausted."""
    num_workers: int | None = None
    """The number of workers of every `samebits.data.Pipeline`."""
    commit_steps: tuple[int, ...] | None = None
    """Commit at the boundary before each of these steps, and at no other but the last."""
    check_complete: bool = True
    """True if a `Run` looks for forgotten state."""
    raise_incomplete: bool = True
    """True if a `Run` raises what it finds; `verify` sees effects, and asks only for what does no harm."""
    any_environment: bool = False
    """True if a commit of another environment is resumed as it is: the environment is what is varied."""
    folders: re.Pattern[str] | None = None
    """The folders that the check has moved: in a record, a text has the paths below them without these."""

    @property
    def batches_per_epoch(self) -> int | None:
        """The number of batches after which an epoch ends, so that its validation is within the steps."""
        return None if self.stop_after_steps is None else max(1, self.stop_after_steps // 2)


OnUnimplemented = Literal["raise", "warn"]
Across = Literal["runs", "threads", "machines"]
ACROSS: tuple[Across, ...] = get_args(Across)
"""The steps of `enable_op_determinism(across=...)`. Each includes those before it."""


@dataclass(frozen=True)
class OpDeterminismSettings:
    """The arguments of `enable_op_determinism`."""

    across: Across = "runs"
    on_unimplemented: OnUnimplemented = "raise"


class Observer:
    """Receives the events of a `Run`. All methods do nothing; an observer must not change the run.

    `step` is a `Position`. Order in one iteration: `boundary` (state is complete, the batch of this position
    is not drawn yet), perhaps `commit_writing`, then `step_begins`, then the user's loop body.
    """

    def run_opened(self, run: Any) -> None:
        """`run` (a `samebits.Run`) was entered and, if there was a commit, restored."""

    def boundary(self, run: Any, step: Position, frame: FrameType) -> None:
        """The run is between two iterations, before `step`; `frame` is the frame of the user's loop."""

    def commit_writing(self, run: Any, step: Position) -> None:
        """Inside a commit: the tensors are on disk, the manifest that makes it real is not."""

    def committed(self, run: Any, step: Position) -> None:
        """The commit for the boundary before `step` is durable."""

    def step_begins(self, run: Any, step: Position, batch: Any, *, ends_epoch: bool) -> None:
        """`batch` is about to be passed to the user's loop body."""

    def validation_begins(self, run: Any, step: Position) -> None:
        """A validation phase that the library itself runs begins, inside the body of `step`."""

    def workers_wanted(self, number: int) -> None:
        """A `samebits.data.Pipeline` is about to be read; `number` is the program's number of workers."""

    def logged(self, run: Any, values: dict[str, Any]) -> None:
        """The user called `run.log(**values)`."""

    def run_closed(self, run: Any, *, finished: bool) -> None:
        """The run's `with` block was left."""


@dataclass
class _ProcessState:
    """The process-wide state that several packages share."""

    op_determinism: OpDeterminismSettings | None = None
    """The settings of the switch; None while it is off."""
    asked_op_determinism: OpDeterminismSettings | None = None
    """The settings that the command line asked for (`samebits run --across machines`)."""
    seed: int | None = None
    seeded: bool = False
    """True if the program set the seed; else a `Run` took the one that the operating system chose."""
    position: Position | None = None
    run_key: Words | None = None
    rows_by_place: bool = False
    """True in a loop with shards and a sharded model: a draw for an element hangs on its place in the whole
    tensor."""
    rank_key: tuple[str | int, ...] = ()
    """Folded into the keys of draws in a step where several processes share a run: ("rank", 2)."""
    generator: Any = None
    """The global `samebits.random.Generator`, if there is one."""
    observers: list[Observer] = field(default_factory=list)
    overrides: CheckOverrides = field(default_factory=CheckOverrides)
    open_runs: dict[int, Thread] = field(default_factory=dict)
    """The thread of each open `Run`, by the run's id."""
    preemption: Any = None
    """The `Preemption` whose signal handlers are installed."""
    locked_run_dirs: dict[str, int] = field(default_factory=dict)
    """Locked run directories, and each lock's process: a record lock does not exclude its own process."""
    notices: dict[str, str] = field(default_factory=dict)
    """Warnings of op determinism that were shown: subject to text. A run's record also names earlier ones."""


process = _ProcessState()


@dataclass
class _UnseededStates:
    """The states of generators when their library or samebits was imported, whichever came later.

    A generator with the same state has not been seeded: it has what the system gave it.
    """

    torch_seed: int | None = None
    python_state: tuple[Any, ...] | None = None
    numpy_seed: Any = None
    """The system's seed of NumPy's generator; None also if it was seeded before."""


at_import = _UnseededStates()


def note_torch(torch: ModuleType) -> None:
    """Notes the seed of torch's default generator, for `random._process.seeds`."""
    at_import.torch_seed = torch.default_generator.initial_seed()


def note_random(random: ModuleType) -> None:
    """Notes the state of Python's generator, for `determinism._guards.python_draws`."""
    at_import.python_state = random.getstate()


def note_numpy(random: ModuleType) -> None:
    """Notes the seed of NumPy's legacy generator, for `determinism._guards.numpy_draws`."""
    at_import.numpy_seed = getattr(random.mtrand._rand._bit_generator, "seed_seq", None)


def notify(event: str, *args: Any, **kwargs: Any) -> None:
    """Calls the method `event` of every observer, in the order of subscription."""
    for observer in process.observers:
        getattr(observer, event)(*args, **kwargs)


@contextmanager
def observed(observer: Observer) -> Iterator[None]:
    """Subscribes `observer` to the events of every `Run` in this process while the block runs."""
    process.observers.append(observer)
    try:
        yield
    finally:
        process.observers.remove(observer)


def is_url(path: str | os.PathLike[str]) -> bool:
    """Returns True if a run directory is a URL that fsspec opens ("s3://bucket/run"), not a path."""
    return isinstance(path, str) and "://" in path


def resolve_run_dir(path: str | os.PathLike[str]) -> Path | str:
    """Returns the absolute folder of a run directory, below a check's run root if any; a URL as given."""
    root = process.overrides.run_root
    if is_url(path):
        url = str(path).rstrip("/")
        # No folder of a check may be another's, nor be outside of it ("..").
        return url if root is None else root / url_folder(url)
    absolute = Path(path).expanduser().absolute()
    if root is None or absolute.is_relative_to(root):
        return absolute
    return root / absolute.relative_to(absolute.anchor)


def url_folder(url: str) -> str:
    """Returns the name of a folder that stands for a URL."""
    return f"{_URL_SIGNS.sub('_', url)[:100]}-{crc32(url.encode()):08x}"


def cache_root() -> Path:
    """Returns $SAMEBITS_CACHE_DIR, else $XDG_CACHE_HOME/samebits, else ~/.cache/samebits.

    Raises RuntimeError without a home directory.
    """
    if named := os.environ.get("SAMEBITS_CACHE_DIR"):
        return Path(named)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base, "samebits")
    return Path.home() / ".cache" / "samebits"


def run_dirs(resolved: Path | str | None) -> list[Path]:
    """Returns the folder of a run, and its original path if a check moved it: more files may be there."""
    if not isinstance(resolved, Path):
        return []
    root = process.overrides.run_root
    if root is None or not resolved.is_relative_to(root):
        return [resolved]
    return [resolved, Path(resolved.anchor) / resolved.relative_to(root)]


def shown_run_dir(resolved: Path | str | None) -> str:
    """Returns the run directory as messages name it: that of the script, wherever a check moved it."""
    return str(run_dirs(resolved)[-1] if isinstance(resolved, Path) else resolved)
