"""Hundreds of SIGKILLs over the digits example, in every phase of its life: always the same end, always a commit to load."""

import collections
import ctypes
import errno
import json
import mmap
import os
import random
import re
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from samebits.checkpoint._store import CommitStore
from samebits.testing._run_and_kill import final_digest

HOST = Path(__file__).parents[1] / "support" / "chaos_host.py"
PHASES = (
    "start-up", "batch wait", "mid-step", "snapshot", "tensor write", "before the rename", "after the rename",
    "validation", "second resume",
)  # fmt: skip
IN_THE_RUN = ("start-up", "batch wait", "mid-step", "snapshot", "validation", "end")  # as chaos_host.PHASES
LAYOUT = struct.Struct("<biii")
EPOCHS, STEPS = 2, 38
LIMIT_S = 120
"""A process of the example that takes longer hangs."""
WRITING = re.compile(r"tmp-[0-9a-f]{32}")
IN_CREATE, IN_MOVED_TO = 0x100, 0x80
LIBC = ctypes.CDLL(None, use_errno=True)


class Watch:
    """The names that appear in a run's folder of commits, as the kernel tells them."""

    def __init__(self, commits):
        commits.mkdir(parents=True, exist_ok=True)
        self.commits = commits
        self.descriptor = LIBC.inotify_init1(os.O_NONBLOCK)
        self._add(commits)

    def _add(self, folder):
        if LIBC.inotify_add_watch(self.descriptor, os.fsencode(folder), IN_CREATE | IN_MOVED_TO) < 0:
            assert ctypes.get_errno() == errno.ENOENT  # renamed already

    def new(self, seconds):
        """What appeared within `seconds`: (mask, name); the inside of a folder that is being written counts, too."""
        if not select.select([self.descriptor], [], [], seconds)[0]:
            return []
        data, found = os.read(self.descriptor, 1 << 16), []
        while data:
            _, mask, _, length = struct.unpack_from("iIII", data)
            name = data[16 : 16 + length].rstrip(b"\0").decode()
            found.append((mask, name))
            if WRITING.fullmatch(name):
                self._add(self.commits / name)
            data = data[16 + length :]
        return found

    def close(self):
        os.close(self.descriptor)


class Host:
    """A chaos_host, and the one run that it has under way."""

    def __init__(self, script, folder):
        self.script, self.folder = script, folder
        folder.mkdir()
        self.map_file = folder / "whereabouts"
        self.map_file.write_bytes(bytes(LAYOUT.size))
        with open(self.map_file, "r+b") as file:
            self.map = mmap.mmap(file.fileno(), LAYOUT.size)
        self.process = subprocess.Popen(
            [sys.executable, HOST, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self, run_dir, workers, cadence):
        LAYOUT.pack_into(self.map, 0, 0, -1, -1, 0)
        request = {"log": str(self.folder / "log"), "whereabouts": str(self.map_file), **cadence}
        request["args"] = arguments(run_dir, workers)
        print(json.dumps(request), file=self.process.stdin, flush=True)
        return int(self.process.stdout.readline())

    def where(self):
        """Phase, step, last durable step of the run under way."""
        phase, step, durable, _ = LAYOUT.unpack_from(self.map)
        return IN_THE_RUN[phase], step, durable

    def ended(self):
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def code(self):
        return int(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def arguments(run_dir, workers):
    return list(map(str, ["--epochs", EPOCHS, "--patience", 100, "--run-dir", run_dir, "--workers", workers]))


@dataclass
class Chaos:
    """What is to be hit, and what was."""

    kills: int
    least: int
    seed: int
    hits: collections.Counter = field(default_factory=collections.Counter)
    steps: collections.Counter = field(default_factory=collections.Counter)
    ends: list = field(default_factory=list)
    skipped: int = 0
    starts: int = 0
    runs: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next_run(self):
        """Where to kill the next run (nowhere: enough were killed), and a generator of its own."""
        with self.lock:
            self.runs += 1
            assert self.runs < 20 + 2 * self.kills, f"some phase is never hit: {self.hits}"
            draw = random.Random(f"{self.seed} {self.runs}")
            lacking = [phase for phase in PHASES if self.hits[phase] < self.least]
            if not lacking and sum(self.hits.values()) >= self.kills:
                return [], draw
            wanted = [draw.choice(lacking or PHASES) for _ in range(3)]
            return sorted(
                wanted, key=lambda phase: phase == "second resume"
            ), draw  # it needs two kills before it

    def hit(self, phase, step):
        with self.lock:
            self.hits[phase] += 1
            self.steps[step] += 1

    def died(self):
        """Another thread has failed."""
        self.kills = self.least = 0


def live(chaos, script, folder):
    """Run after run, each killed up to three times and then left to its end, until nothing is wanted."""
    host = Host(script, folder)
    try:
        for number in range(10**6):
            wanted, draw = chaos.next_run()
            if not wanted:
                return
            one_run(chaos, host, folder / f"run{number}", wanted, draw)
    finally:
        host.close()


def cadence_of(draw):
    """Commits by the training process itself at drawn steps, or by the writer process at every step, or by budget."""
    if draw.random() < 0.4:
        return {
            "save": None,
            "commit_steps": sorted(draw.sample(range(STEPS), draw.randint(STEPS // 2, STEPS))),
        }
    return {"save": draw.choice([1, 1, 1, "3%"]), "commit_steps": None}


def one_run(chaos, host, run_dir, wanted, draw):
    """Kills one run in each of the `wanted` phases, as far as they come, and lets it come to its end."""
    killed, durable = 0, -1
    for phase in [*wanted, None]:
        workers, cadence, group = (
            draw.choice([0, 0, 2]),
            cadence_of(draw),
            phase in DISK or draw.random() < 0.5,
        )
        if phase == "start-up":
            code, hit = plain_process(host, run_dir, workers, draw), "start-up"
        else:
            code, hit = forked_process(
                host, run_dir, workers, cadence, phase, group, draw, resuming=killed >= 2
            )
        chaos.starts += 1
        assert code in (0, -signal.SIGKILL), (host.folder / "log").read_text()[-3000:]
        if code == -signal.SIGKILL:
            killed += 1
            chaos.hit(hit, host.where()[1])
            durable = max(durable, host.where()[2])
            # else the writer process is still at it, and the next start meets it
            if group or cadence["save"] is None:
                durable = check_loadable(chaos, run_dir, durable)
    chaos.ends.append(final_digest(run_dir))


def check_loadable(chaos, run_dir, durable):
    """The newest commit that can be loaded is no older than what was said to be durable. Raises when there is none."""
    store = CommitStore(run_dir)
    found = store.newest()
    chaos.skipped += len(store.skipped)
    step = -1 if found is None else found[0].step
    assert step >= durable, f"step {durable} was durable, {step} can be loaded: {store.skipped}"
    return step


def plain_process(host, run_dir, workers, draw):
    """`python examples/digits.py`, killed within the time that imports take. Returns its exit code."""
    LAYOUT.pack_into(host.map, 0, 0, -1, -1, 0)
    command = [sys.executable, host.script, *arguments(run_dir, workers)]
    with open(host.folder / "log", "ab") as log:
        child = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        return child.wait(draw.uniform(0, 2))
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()


def forked_process(host, run_dir, workers, cadence, phase, group, draw, *, resuming):
    """A run of the host, killed in `phase` (None: not at all). Returns its exit code, and where it died.

    `group`: with all that it has started, as when a container dies; else the training process alone.
    """
    watch = Watch(run_dir / "commits") if phase in DISK else None
    pid = host.start(run_dir, workers, cadence)
    if phase is not None:
        if watch:
            wait_on_disk(host, watch, phase, draw)
        else:
            wait_in_run(host, phase, draw)
        if not host.ended():
            (os.killpg if group else os.kill)(pid, signal.SIGKILL)
    deadline = time.monotonic() + LIMIT_S
    while not host.ended() and time.monotonic() < deadline:
        time.sleep(0.002)
    if not host.ended():
        os.killpg(pid, signal.SIGKILL)
        host.code()
        raise AssertionError(f"a run took more than {LIMIT_S} s: {(host.folder / 'log').read_text()[-3000:]}")
    if watch:
        watch.close()
    return host.code(), died_in(host, run_dir, phase, by_itself=cadence["save"] is None, resuming=resuming)


DISK = {
    "tensor write": lambda mask, name: WRITING.fullmatch(name),
    "before the rename": lambda mask, name: name == "manifest.json",
    "after the rename": lambda mask, name: mask & IN_MOVED_TO and name[0] != "t",
}


def wait_on_disk(host, watch, phase, draw):
    """Until the commits' folder shows, once or several times, what `phase` begins with."""
    for _ in range(draw.randrange(12) + 1):
        while not host.ended():
            if any(DISK[phase](mask, name) for mask, name in watch.new(0.05)):
                break


def wait_in_run(host, phase, draw):
    """Until the run itself says that it is there, at or behind a drawn step, and a moment longer."""
    if phase == "second resume":
        time.sleep(draw.uniform(0, 0.25))
        return
    step = draw.randrange(STEPS - 4)
    while not host.ended():
        now, at, _ = host.where()
        if now == phase and at >= step:
            time.sleep(draw.uniform(0, 0.002))
            return
        time.sleep(0.0001)


def died_in(host, run_dir, wanted, *, by_itself, resuming):
    """Where a killed run really died: what it wrote down, and what it left on the disk."""
    phase, step, _ = host.where()
    if phase in ("start-up", "end") or step < 0:
        return "second resume" if resuming and phase == "start-up" else phase
    if wanted not in DISK and not (by_itself and phase == "snapshot"):
        return phase
    for folder in (run_dir / "commits").glob("tmp-*"):
        if WRITING.fullmatch(folder.name):
            return "before the rename" if (folder / "manifest.json").exists() else "tensor write"
    return wanted if wanted == "after the rename" else phase


def table(chaos, seconds):
    rows = [f"{phase:18} {chaos.hits[phase]:5}" for phase in PHASES]
    other = {phase: count for phase, count in chaos.hits.items() if phase not in PHASES}
    rows.append(f"{'elsewhere':18} {sum(other.values()):5}")
    rows.append(f"{'all kills':18} {sum(chaos.hits.values()):5}   at {len(chaos.steps)} different steps")
    rows.append(
        f"{chaos.starts} processes, {len(chaos.ends)} runs to their end, {len(set(chaos.ends))} final digest(s)"
    )
    rows.append(
        f"newest commits that could not be loaded: {chaos.skipped}, each with a valid older one; {seconds:.0f} s"
    )
    return "\n".join(rows)


def chaos_of(script, folder, kills, least, seed, jobs=2):
    """Kills until there were `kills`, at least `least` in each phase; returns the digest of a run in peace, and Chaos."""
    chaos, errors = Chaos(kills, least, seed), []
    subprocess.run([sys.executable, script, *arguments(folder / "whole", 0)], check=True, capture_output=True)

    def work(number):
        try:
            live(chaos, script, folder / f"host{number}")
        except BaseException as error:
            errors.append(error)
            chaos.died()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return final_digest(folder / "whole"), chaos


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_three_hundred_kills_in_every_phase(root, tmp_path, capsys):
    """300 SIGKILLs over the digits run, at least 20 in each phase: always the same end, always a commit to load."""
    seed = int(os.environ.get("SAMEBITS_CHAOS_SEED", random.SystemRandom().randrange(2**32)))
    kills = int(os.environ.get("SAMEBITS_CHAOS_KILLS", "300"))
    least, began = kills // 15, time.monotonic()
    expected, chaos = chaos_of(root / "examples" / "digits.py", tmp_path, kills, least, seed)
    with capsys.disabled():
        print(f"\nSAMEBITS_CHAOS_SEED={seed}\n{table(chaos, time.monotonic() - began)}")
    assert set(chaos.ends) == {expected}
    assert all(chaos.hits[phase] >= least for phase in PHASES), chaos.hits


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_a_run_that_forgets_is_found_by_chaos(root, tmp_path):
    """Negative control: the same kills over a run whose augmentation depends on the process show other ends."""
    source = (root / "examples" / "digits.py").read_text()
    script = tmp_path / "digits.py"
    script.write_text(
        source.replace("0.05 * torch.randn", "(os.getpid() % 7) * torch.randn").replace(
            "import copy", "import copy, os"
        )
    )
    expected, chaos = chaos_of(script, tmp_path, kills=3, least=0, seed=1)
    assert set(chaos.ends) != {expected}
