"""One process of a check: its command, environment and surroundings, and its outcome."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from samebits._context import Across, CheckOverrides
from samebits.audit._child.launch_spec import LaunchSpec, TraceSpec
from samebits.audit._record.record_file import Record, folder_of_rank, read_record
from samebits.audit._verify import reaper
from samebits.audit._verify.check_plan import GROUPS, ProcessVariation
from samebits.audit._verify.child_processes import ExitedProcess, run_child
from samebits.audit._verify.working_folder import Start, WorkingFolder
from samebits.errors import RecordError

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
# Threads that wait give their core away: by default they spin, and two runs at once took six times as long.
_WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}
_IN_ORDER = {"PYTHONUNBUFFERED": "1"}
"""Output and tracebacks are in the log in the order in which they happened."""


_TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=0", "--no-python")
_TORCHRUN_REPORT = re.compile(r"[WE]\d{4} .* torch/distributed/elastic/")
_LOST_ANOTHER_RANK = re.compile(r"^RanksError: .* lost another rank|[Cc]onnection (closed|reset) by peer")
_HASH_SEED_OF_RANK = 'PYTHONHASHSEED=$(((PYTHONHASHSEED + RANK) % 4294967296)) exec "$@"'


@dataclass(frozen=True)
class Request:
    """The arguments of `verify`."""

    script: str
    args: tuple[str, ...] = ()
    as_run: bool = False
    """Start it as `samebits run` would: switch on, seeds set, hash seed fixed."""
    across: Across = "runs"
    """With `as_run`: as in `enable_op_determinism`; the rows that it promises decide the verdict."""
    run_seed: int = 0
    steps: int | None = None
    groups: tuple[str, ...] = GROUPS
    jobs: int = 1
    keep: bool = False
    seed: int = 0
    timeout: float | None = None
    in_place: bool = False
    """Run in the working directory itself, not in views of it."""
    require: tuple[str, ...] = ()
    """Groups without which the verdict is not good."""
    find_op: bool = False
    """Search for the first op that differs, if a check fails."""
    within: float | None = None
    """Seconds that all checks together should take: those of least weight are left out."""
    nproc_per_node: int | None = None
    """Start the script through torchrun, as a job with that number of ranks on this machine."""
    world_sizes: tuple[int, ...] = ()
    """Start it as jobs of these numbers of ranks: the baseline has the first, and is no job if that is 1."""

    @property
    def ranks(self) -> int:
        """The number of processes that one run of the script has."""
        return self.nproc_per_node or next(iter(self.world_sizes), 1)

    def ranks_of(self, process: ProcessVariation) -> int:
        return process.world_size or self.ranks

    def is_job(self, process: ProcessVariation) -> bool:
        """Returns True if that run is started through torchrun."""
        return self.nproc_per_node is not None or self.ranks_of(process) > 1


@dataclass(frozen=True)
class CheckEnvironment:
    """The surroundings of a process that no program may depend on."""

    variant: int
    hash_seed: int
    listing_seed: int
    slow: bool

    @classmethod
    def draw(cls, seed: int, variant: int) -> CheckEnvironment:
        """Returns the surroundings of a variant.

        2n and 2n+1 list folders in opposite orders, and one is slow, so that the first two runs differ.
        """
        pair, own = random.Random(f"{seed} pair {variant // 2}"), random.Random(f"{seed} {variant}")
        listing = 2 * pair.getrandbits(30) + variant % 2
        return cls(variant, own.randrange(1, 2**32), listing, bool(variant % 2))


@dataclass(frozen=True)
class ProcessOutcome:
    """A process that ended, and its record (None: nothing readable); of a torchrun job, each rank's."""

    process: ProcessVariation
    variant: int
    ended: ExitedProcess
    records: tuple[Record | None, ...]
    trace: Path = Path()
    """The file of its trace, if it was traced; of a job, that name with the rank at its end."""

    @property
    def record(self) -> Record | None:
        return self.records[0]

    @property
    def killed_as_planned(self) -> bool:
        """True if it was killed by its own SIGKILL at the planned kill point, not by another process or late.

        When one rank of a job is killed, torchrun ends the others, and itself with exit code 1.
        """
        one_rank = self.process.kill is not None and self.process.kill.rank is not None
        by_signal = self.ended.returncode == (1 if one_rank else -signal.SIGKILL) and not self.ended.timed_out
        return by_signal and any(record.killed is not None for record in self.records if record is not None)

    def failure(self) -> str:
        """The end of the process, if not as planned; empty otherwise."""
        if self.ended.timed_out:
            return f"a process took more than {self.ended.seconds:.0f} s: {self.ended.tail(1).strip()}"
        if self.killed_as_planned:
            return ""
        if self.process.kill is not None and self.ended.returncode in (0, -signal.SIGKILL):
            return ""
        if self.ended.returncode < 0:
            return f"a process was ended by {signal.Signals(-self.ended.returncode).name}"
        printed = self.ended.tail(1).strip()
        if not self.ended.returncode:
            return ""
        if len(self.records) > 1:
            return self._failure_of_rank()
        if self.ended.returncode != 1:  # an exception's is 1
            return f"a process ended with exit code {self.ended.returncode}: {printed}"
        error = _error(self.record)  # the last line that it printed may be a note of the exception
        return f"a process raised: {error if error and not error.startswith('SystemExit') else printed}"

    def output(self, lines: int) -> str:
        """Returns the last lines that the script printed, without torchrun's about the ranks' ends."""
        return self.ended.tail(lines, _TORCHRUN_REPORT if len(self.records) > 1 else None)

    def _failure_of_rank(self) -> str:
        """Returns the end of the first rank to fail; others are ended, or lose their connection."""
        ended = {
            rank: (record.path.stat().st_mtime_ns, error)
            for rank, record in enumerate(self.records)
            if record is not None and (error := _error(record))
        }
        # torchrun alone knows how a rank without an exception has ended.
        report = self.ended.log.read_text(errors="replace")
        cause = re.search(r"Root Cause.*?rank +: (\d+).*?exitcode +: (-?\d+)", report, re.DOTALL)
        if cause is not None and int(cause[1]) not in ended:
            return f"rank {cause[1]} ended with exit code {cause[2]}"
        own = {rank: end for rank, end in ended.items() if not _LOST_ANOTHER_RANK.search(end[1])} or ended
        first = min(own, key=lambda rank: own[rank], default=None)
        return self.ended.tail(1).strip() if first is None else f"rank {first} raised: {ended[first][1]}"


@dataclass
class Runner:
    """Starts the script's processes in `scratch`, at most `jobs` at a time, each in its own surroundings."""

    request: Request
    scratch: Path
    folder: WorkingFolder | None = None
    """The working directory; each run root gets a view of it. None: processes run in the directory itself."""
    _count: int = 0
    _slots: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.request.jobs)

    async def run(
        self,
        process: ProcessVariation,
        run_root: Path,
        patience: float | None,
        variant: int | None = None,
        trace: TraceSpec | None = None,
    ) -> ProcessOutcome:
        """Runs the script once, for at most `patience` seconds.

        `variant` repeats the hash seed and listing order of an earlier process. A step is traced as `trace`
        says, whose file is in the outcome.
        """
        number = self._count
        self._count += 1
        surroundings = CheckEnvironment.draw(self.request.seed, number if variant is None else variant)
        home = self.scratch / str(number)
        async with self._slots:
            trace = trace and replace(trace, file=str(home / "trace"))
            spec = self._prepare(process, home, run_root, surroundings, trace, digest_files=number == 0)
            start = await asyncio.to_thread(self._start, process, self._layer(run_root))
            environment = self._environment(process, home / "t", surroundings, start)
            command = self._command(process, spec, start)
            with busy_processes() if process.busy else nullcontext():
                ended = await run_child(command, environment, home / "log", patience, start.folder)
            if self.request.is_job(process):  # ranks have sessions of their own
                await asyncio.to_thread(reaper.sweep, str(home))
        if self.folder is not None:
            self.folder.check()
        records = self._records(process, home / "record", is_traced=trace is not None)
        return ProcessOutcome(process, surroundings.variant, ended, records, home / "trace")

    def _records(
        self, process: ProcessVariation, folder: Path, *, is_traced: bool
    ) -> tuple[Record | None, ...]:
        number = self.request.ranks_of(process)
        if number == 1:
            return (_record_of(folder),)
        folders = [folder_of_rank(folder, rank) for rank in range(number)]
        if is_traced:  # it ended itself behind its last step
            return tuple(map(_record_of, folders))
        replayed_from = min(process.commit_steps or (0,))
        return tuple(_without_interrupted_step(_record_of(one), replayed_from) for one in folders)

    def remove_layer(self, run_root: Path) -> None:
        """Removes the files that a finished check wrote to the working directory."""
        if not self.request.keep:
            reaper.remove(self._layer(run_root))

    def _layer(self, run_root: Path) -> Path:
        """Returns the folder of a check's writes, not below the run root: a copied run is not resumed."""
        return run_root.with_name(f"layer of {run_root.name}")

    def _prepare(
        self,
        process: ProcessVariation,
        home: Path,
        run_root: Path,
        surroundings: CheckEnvironment,
        trace: TraceSpec | None,
        *,
        digest_files: bool,
    ) -> Path:
        (home / "t").mkdir(parents=True)
        run_root.mkdir(exist_ok=True)
        spec = self._spec(process, home / "record", run_root, surroundings)
        own_reads = process.num_workers == 0  # where there are workers, they read the data
        spec = replace(spec, digest_files=digest_files or own_reads, trace=trace)
        return spec.write(home / "spec.json")

    def _start(self, process: ProcessVariation, layer: Path) -> Start:
        script = self.request.script
        if self.folder is None:
            return Start((), None, script)
        return self.folder.start(layer, script, moved=process.moved)

    def _command(self, process: ProcessVariation, spec: Path, start: Start) -> list[str]:
        launch = [sys.executable, "-m", "samebits.audit._child.launch", str(spec)]
        return [*start.before, *self._torchrun(process), *launch, start.script, *self.request.args]

    def _torchrun(self, process: ProcessVariation) -> list[str]:
        """Returns the words before each rank's command; hash seeds differ by rank, as in a user's job."""
        if not self.request.is_job(process):
            return []
        number = self.request.ranks_of(process)
        each = [] if self.request.as_run else ["sh", "-c", _HASH_SEED_OF_RANK, "sh"]
        return [*_TORCHRUN, f"--nproc-per-node={number}", *each]

    def _environment(
        self, process: ProcessVariation, temporary: Path, surroundings: CheckEnvironment, start: Start
    ) -> dict[str, str]:
        """Returns the user's environment with another temporary folder, and another order of sets."""
        fixed = 0 if self.request.as_run else surroundings.hash_seed
        threads = {} if process.threads is None else dict.fromkeys(_THREADS, str(process.threads))
        cpu = AVX2_ENVIRONMENT if process.older_cpu else {}
        own = {"TMPDIR": str(temporary), "PYTHONHASHSEED": str(fixed)}
        if start.folder is not None and start.folder != Path.cwd():
            own["PWD"] = str(start.folder)  # as a shell's cd would set it
        several = self.request.ranks > 1 or self.request.world_sizes
        as_torchrun = {"OMP_NUM_THREADS": "1"} if several else {}  # which says so in a banner
        given = dict(process.variables)
        return {**_WAITING, **_IN_ORDER, **as_torchrun, **os.environ, **threads, **cpu, **given, **own}

    def _spec(
        self, process: ProcessVariation, record: Path, run_root: Path, surroundings: CheckEnvironment
    ) -> LaunchSpec:
        overrides = CheckOverrides(
            run_root=run_root,
            stop_after_steps=self.request.steps,
            num_workers=process.num_workers,
            commit_steps=process.commit_steps,
        )
        job = self.request.is_job(process)
        return LaunchSpec(
            record_dir=str(record),
            by_rank=job,
            all_memory=True,
            overrides=overrides,
            kill=process.kill,
            torch_workers=process.torch_workers,
            threads=process.threads,
            listing_seed=surroundings.listing_seed,
            slow=surroundings.slow,
            overlaid=self.folder is not None,
            switch=self.request.as_run,
            across=self.request.across,
            seed=self.request.run_seed if self.request.as_run else None,
            die_with_parent=job,
        )


def _error(record: Record | None) -> str:
    return (record is not None and record.end is not None and record.end.get("error")) or ""


def _without_interrupted_step(record: Record | None, replayed_from: int) -> Record | None:
    """Returns the record without its last step if another rank's end ended the rank, perhaps in that step.

    It may have died before the record's last line. A step that no resumed process replays was complete.
    """
    if record is None or record.killed is not None or (record.end is not None and not _error(record)):
        return record
    if record.steps and next(reversed(record.steps))[1] >= replayed_from:
        record.steps.popitem()
    return record


def _record_of(folder: Path) -> Record | None:
    try:
        return read_record(folder)
    except RecordError:  # it died before its first step
        return None


def jobs() -> int:
    """Returns the number of jobs: on two cores two take 0.6 of the time; a GPU's memory may hold only one."""
    return 1 if torch.cuda.is_available() else min(2, os.cpu_count() or 1)


_LOOP = """
import os, random, sys, time
parent = int(sys.argv[1])
while os.getppid() == parent:  # so that it ends when the check is killed
    end = time.monotonic() + 0.04 * random.random()
    while time.monotonic() < end:
        pass
    time.sleep(0.04 * random.random())
"""


@contextmanager
def busy_processes() -> Iterator[None]:
    """Runs one process per core that keeps it busy half of the time, in bursts of up to 40 ms.

    Work that comes and goes delays one thread more than another; steady work delays all of them alike.
    """
    command = [sys.executable, "-I", "-S", "-c", _LOOP, str(os.getpid())]
    processes = [subprocess.Popen(command) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


AVX2_ENVIRONMENT = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "NPY_DISABLE_CPU_FEATURES": (
        "X86_V4 AVX512_ICL AVX512_SPR AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL"
    ),
    "SAMEBITS_CPU_NAME": "x86-64-v3",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
}
"""With these a process's libraries play a CPU of 2013: vectors of 256 bits, no matrix instructions."""
