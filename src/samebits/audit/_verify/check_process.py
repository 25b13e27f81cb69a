"""One process of a check: its command and environment, and its outcome."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from samebits.audit._child.launch_spec import LaunchSpec
from samebits.audit._record.read_record import Record, read_record
from samebits.audit._verify.check_plan import ProcessVariation
from samebits.audit._verify.child_processes import ExitedProcess, run_child
from samebits.audit._verify.folder.working_folder import WorkingFolder
from samebits.audit._verify.older_cpu import AVX2_ENVIRONMENT
from samebits.audit._verify.process_start import Start
from samebits.audit._verify.reaper import remove
from samebits.errors import RecordError

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
# Threads that wait give their core away: with the default (spinning), two runs at once took six times as long.
_WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}
_IN_ORDER = {"PYTHONUNBUFFERED": "1"}
"""Output and tracebacks are in the log in the order in which they happened."""


@dataclass(frozen=True)
class Request:
    """The arguments of `verify`."""

    script: str
    args: tuple[str, ...] = ()
    as_run: bool = False
    """Start it as `samebits run` would: switch on, seeds set, hash seed fixed."""
    thread_invariant: bool = False
    """With `as_run`: the switch covers the number of intra-op threads, so the thread rows are promised."""
    machine_invariant: bool = False
    """With `as_run`: the switch covers the CPU, too."""
    steps: int | None = None
    groups: tuple[str, ...] = ()
    jobs: int = 1
    keep: bool = False
    seed: int = 0
    timeout: float | None = None
    in_place: bool = False
    """Run in the working directory itself, not in views of it."""


@dataclass(frozen=True)
class CheckEnvironment:
    """The surroundings of a process that no program may depend on."""

    variant: int
    hash_seed: int
    listing_seed: int
    slow: bool

    @classmethod
    def draw(cls, seed: int, variant: int) -> CheckEnvironment:
        """Returns the surroundings of a variant: 2n and 2n+1 list folders in opposite orders, and one is slow, so that
        the first two runs differ.
        """
        pair, own = random.Random(f"{seed} pair {variant // 2}"), random.Random(f"{seed} {variant}")
        return cls(
            variant, own.randrange(1, 2**32), 2 * pair.getrandbits(30) + variant % 2, bool(variant % 2)
        )


@dataclass(frozen=True)
class ProcessOutcome:
    """A process that ended, and its record (None: nothing readable)."""

    process: ProcessVariation
    variant: int
    ended: ExitedProcess
    record: Record | None

    @property
    def killed_as_planned(self) -> bool:
        """True if it was killed by its own SIGKILL at the planned kill point, and not by another process or too late."""
        by_signal = self.ended.returncode == -signal.SIGKILL and not self.ended.timed_out
        return by_signal and self.record is not None and self.record.killed is not None

    def failure(self) -> str:
        """The end of the process, if not as planned; empty otherwise."""
        if self.ended.timed_out:
            return f"a process took more than {self.ended.seconds:.0f} s: {self.ended.tail(1).strip()}"
        if self.process.kill is not None and self.ended.returncode in (0, -signal.SIGKILL):
            return ""
        if self.ended.returncode < 0:
            return f"a process was ended by {signal.Signals(-self.ended.returncode).name}"
        printed = self.ended.tail(1).strip()
        if not self.ended.returncode:
            return ""
        if self.ended.returncode != 1:  # an exception's is 1
            return f"a process ended with exit code {self.ended.returncode}: {printed}"
        return f"a process raised: {printed}"


@dataclass
class Runner:
    """Starts the script's processes in `scratch`, at most `jobs` at a time, each in its own surroundings."""

    request: Request
    scratch: Path
    timeout: float | None = None
    folder: WorkingFolder | None = None
    """The working directory of which each run root gets a view; None: the processes run in the directory itself."""
    on_end: Callable[[], None] = lambda: None
    _count: int = 0
    _slots: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.request.jobs)

    async def run(
        self, process: ProcessVariation, run_root: Path, variant: int | None = None
    ) -> ProcessOutcome:
        """Runs the script once; `variant` repeats the hash seed and listing order of an earlier process."""
        number = self._count
        self._count += 1
        surroundings = CheckEnvironment.draw(self.request.seed, number if variant is None else variant)
        home = self.scratch / str(number)
        async with self._slots:
            spec = self._prepare(process, home, run_root, surroundings)
            start = await asyncio.to_thread(self._start, process, self._layer(run_root))
            environment = self._environment(process, home / "t", surroundings, start)
            command = self._command(spec, start)
            ended = await run_child(command, environment, home / "log", self.timeout, start.folder)
        if self.folder is not None:
            self.folder.check()
        self.on_end()
        return ProcessOutcome(process, surroundings.variant, ended, _record_of(home / "record"))

    def remove_layer(self, run_root: Path) -> None:
        """Removes the files that a finished check wrote to the working directory."""
        if not self.request.keep:
            remove(self._layer(run_root))

    def _layer(self, run_root: Path) -> Path:
        """Returns the folder of a check's writes. It is not below the run root: a user's run directory that was copied,
        too, must not be resumed.
        """
        return run_root.with_name(f"layer of {run_root.name}")

    def _prepare(
        self, process: ProcessVariation, home: Path, run_root: Path, surroundings: CheckEnvironment
    ) -> Path:
        """Makes the folders and the spec of a process."""
        (home / "t").mkdir(parents=True)
        run_root.mkdir(exist_ok=True)
        return self._spec(process, home / "record", run_root, surroundings).write(home / "spec.json")

    def _start(self, process: ProcessVariation, layer: Path) -> Start:
        script = self.request.script
        if self.folder is None:
            return Start((), None, script)
        return self.folder.start(layer, script, moved=process.moved)

    def _command(self, spec: Path, start: Start) -> list[str]:
        launch = [sys.executable, "-m", "samebits.audit._child.launch", str(spec)]
        return [*start.before, *launch, start.script, *self.request.args]

    def _environment(
        self, process: ProcessVariation, temporary: Path, surroundings: CheckEnvironment, start: Start
    ) -> dict[str, str]:
        """Returns the user's environment except for what must not matter: the folder of temporary files, and the order
        of sets.
        """
        fixed = 0 if self.request.as_run else surroundings.hash_seed
        threads = {} if process.threads is None else dict.fromkeys(_THREADS, str(process.threads))
        cpu = AVX2_ENVIRONMENT if process.older_cpu else {}
        own = {"TMPDIR": str(temporary), "PYTHONHASHSEED": str(fixed)}
        if start.folder is not None and start.folder != Path.cwd():
            own["PWD"] = str(start.folder)  # as a shell's cd would set it
        return {**_WAITING, **_IN_ORDER, **os.environ, **threads, **cpu, **own}

    def _spec(
        self, process: ProcessVariation, record: Path, run_root: Path, surroundings: CheckEnvironment
    ) -> LaunchSpec:
        steps, kill = self.request.steps, process.kill
        return LaunchSpec(
            record_dir=str(record),
            all_memory=True,
            run_root=str(run_root),
            stop_after_steps=steps,
            batches_per_epoch=None if steps is None else max(1, steps // 2),
            commit_steps=process.commit_steps,
            kill=None if kill is None else {"at": kill.at, "step": kill.step},
            num_workers=process.num_workers,
            threads=process.threads,
            listing_seed=surroundings.listing_seed,
            slow=surroundings.slow,
            overlaid=self.folder is not None,
            switch=self.request.as_run,
            thread_invariant=self.request.thread_invariant,
            machine_invariant=self.request.machine_invariant,
            seed=0 if self.request.as_run else None,
        )


def _record_of(folder: Path) -> Record | None:
    try:
        return read_record(folder)
    except RecordError:  # it died before its first step
        return None
