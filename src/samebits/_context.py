"""What this process knows: the switch, the seed, the position, the observers, and what a check overrides.

The lowest layer: it imports nothing of the package, so that everything above may read it.
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
from typing import Any, Literal
from zlib import crc32

VERSION = "0.1.0.dev0"
"""Of samebits; what is installed says so too, but sources that are used as they lie are installed nowhere."""

_URL_SIGNS = re.compile(r"[^A-Za-z0-9-]+")

Words = tuple[int, int]
"""A counter-based RNG key as two unsigned 64-bit integers (seed, offset)."""


@dataclass(frozen=True)
class Position:
    """Where a run is: small integers and the loop's name.

    `step` counts the batches of the whole run from 0, `batch_index` those of the epoch.
    """

    loop: str
    epoch: int
    batch_index: int
    step: int
    phase: str = "train"
    """ "train", or "validate" between two batches of a `Run.validate` in the body of this step."""
    name: str = ""
    """Of the validation."""
    phase_batch: int = 0
    """The batch of the validation, from 0."""

    def to_dict(self) -> dict[str, Any]:
        """What a commit keeps."""
        return dict(vars(self))

    @property
    def inside(self) -> tuple[str | int, ...]:
        """Where in the step's body this is; what is drawn in a validation is keyed by it, besides loop and step."""
        return () if self.phase == "train" else (self.phase, self.name, self.phase_batch)


@dataclass(frozen=True)
class CheckOverrides:
    """What `samebits verify` changes from outside in a run that it observes. A normal run has none set."""

    run_root: Path | None = None
    """Every run directory is moved below this folder."""
    stop_after_steps: int | None = None
    """The run ends, as if exhausted, after this many steps of this and earlier processes together."""
    batches_per_epoch: int | None = None
    """An epoch ends after this many batches (validation included)."""
    num_workers: int | None = None
    """The workers of every `samebits.data.Pipeline`."""
    commit_steps: tuple[int, ...] | None = None
    """Commit at the boundary before each of these steps, and at no other but the last."""
    check_complete: bool = True
    """Whether a `Run` looks for forgotten state itself: `verify` names it by what it does."""


OnUnimplemented = Literal["raise", "warn"]


@dataclass(frozen=True)
class OpDeterminismSettings:
    """The arguments of `enable_op_determinism`."""

    thread_invariant: bool = False
    on_unimplemented: OnUnimplemented = "raise"


class Observer:
    """Receives the events of a `Run`. All methods do nothing here; an observer must not change the run.

    `step` is a `Position`. Order in one iteration: `boundary` (state is complete, the batch of this position
    is not drawn yet), perhaps `commit_writing`, then `step_begins`, then the user's loop body.
    """

    def run_opened(self, run: Any) -> None:
        """`run` (a `samebits.Run`) was entered and, if there was a commit, restored."""

    def boundary(self, run: Any, step: Position, frame: FrameType) -> None:
        """The run stands between two iterations, before `step`; `frame` is the frame of the user's loop."""

    def commit_writing(self, run: Any, step: Position) -> None:
        """Inside a commit: the tensors are on disk, the manifest that makes it real is not."""

    def committed(self, run: Any, step: Position) -> None:
        """The commit for the boundary before `step` is durable."""

    def step_begins(self, run: Any, step: Position, batch: Any, *, ends_epoch: bool) -> None:
        """`batch` is about to be handed to the user's loop body."""

    def validation_begins(self, run: Any, step: Position) -> None:
        """A validation phase that the library itself runs begins, inside the body of `step`."""

    def workers_wanted(self, number: int) -> None:
        """A `samebits.data.Pipeline` is about to be read; `number` is what its program asks for."""

    def logged(self, run: Any, values: dict[str, Any]) -> None:
        """The user called `run.log(**values)`."""

    def run_closed(self, run: Any, *, finished: bool) -> None:
        """The run's `with` block was left."""


@dataclass
class _ProcessState:
    """The process-wide state, but for caches; one object so that a reader sees all of it at once."""

    op_determinism: OpDeterminismSettings | None = None
    """The settings of the switch; None while it is off."""
    seed: int | None = None
    position: Position | None = None
    run_key: Words | None = None
    rank_key: tuple[str | int, ...] = ()
    """What the keys of draws in a step are folded with too, where several processes share a run: ("rank", 2)."""
    generator: Any = None
    """The global `samebits.random.Generator`, once there is one."""
    observers: list[Observer] = field(default_factory=list)
    overrides: CheckOverrides = field(default_factory=CheckOverrides)
    open_runs: dict[int, Thread] = field(default_factory=dict)
    """The thread of each open `Run`, by the run's id."""
    preemption: Any = None
    """The `Preemption` whose signal handlers are installed."""
    locked_run_dirs: dict[str, int] = field(default_factory=dict)
    """Run directories that are locked, and the process that did it: a record lock does not exclude its own process."""
    leases: set[str] = field(default_factory=set)
    """The owners of leases on run directories behind URLs that this process is."""
    notices: dict[str, str] = field(default_factory=dict)
    """Warnings of op determinism that were shown: subject to text. A run's record names those from before it, too."""


process = _ProcessState()


@dataclass
class _Unseeded:
    """How generators stood when their library or samebits was imported, whichever came later.

    By this it is told whether somebody has seeded them: a process that nobody seeded has what the system gave it.
    """

    torch_seed: int | None = None
    python_state: tuple[Any, ...] | None = None
    numpy_seed: Any = None
    """What NumPy's generator was seeded with by the system; None once somebody has seeded it, too."""


at_import = _Unseeded()


def note_torch(torch: ModuleType) -> None:
    """For `random.seeds`: the seed of torch's default generator."""
    at_import.torch_seed = torch.default_generator.initial_seed()


def note_random(random: ModuleType) -> None:
    """For `determinism.python_guard`: the state of Python's generator."""
    at_import.python_state = random.getstate()


def note_numpy(random: ModuleType) -> None:
    """For `determinism.numpy_guard`: the seed of NumPy's legacy generator."""
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
    """Whether a run directory lies in a storage that fsspec opens ("s3://bucket/run"), not on a path."""
    return isinstance(path, str) and "://" in path


def resolve_run_dir(path: str | os.PathLike[str]) -> Path | str:
    """The absolute folder of a run directory, or its URL: as given, or a folder below the run root that a check set."""
    root = process.overrides.run_root
    if is_url(path):
        url = str(path).rstrip("/")
        # No folder of a check may be another's, nor lie elsewhere ("..").
        return url if root is None else root / f"{_URL_SIGNS.sub('_', url)[:100]}-{crc32(url.encode()):08x}"
    absolute = Path(path).expanduser().absolute()
    if root is None or absolute.is_relative_to(root):
        return absolute
    return root / absolute.relative_to(absolute.anchor)


def run_dirs(resolved: Path | str | None) -> list[Path]:
    """The folder of a run, and what the program calls it where a check has moved it: other files of its may lie there."""
    if not isinstance(resolved, Path):
        return []
    root = process.overrides.run_root
    if root is None or not resolved.is_relative_to(root):
        return [resolved]
    return [resolved, Path(resolved.anchor) / resolved.relative_to(root)]
