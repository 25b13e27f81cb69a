"""The writer process among kills, full disks and impatient restarts: no snapshot is lost that need not be, and none is wrong."""

import functools
import itertools
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

import samebits
from samebits import _digest as digest
from samebits._context import Observer, process
from samebits.checkpoint._store import CommitStore
from samebits.checkpoint._writer.writer_process import PACKED, SnapshotMessage
from samebits.errors import CommitError
from samebits.train import _async_commits

# what torch imports with its first optimizer, once for all forked children
torch.optim.Adam([torch.zeros(1)])
STEPS = 120
LONG = 60
"""Seconds that no machine needs for a step or a commit."""


def train(run_dir, body=lambda run, step: None, save=1, steps=STEPS, observer=None):
    samebits.set_random_seed(3)
    if observer is not None:
        process.observers.append(observer)
    model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 3))
    opt = torch.optim.Adam(model.parameters(), 0.01)
    with samebits.Run(
        run_dir, model=model, opt=opt, save=save, check_complete=False
    ) as run:  # `body` may keep a log
        for step, x in run.steps([torch.randn(8, 6) for _ in range(steps)]):
            body(run, step)
            opt.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            opt.step()
            run.log(loss=loss)
            run.state.sum = run.state.get("sum", 0.0) + loss.item()
    return digest.of_value([model.state_dict(), opt.state_dict(), dict(run.state)])


def writer_of(pid="self"):
    """The writer process of a process, once it is there."""
    for child in (
        Path(f"/proc/{pid}/task/{os.getpid() if pid == 'self' else pid}/children").read_text().split()
    ):
        if b"samebits-writer" in Path(f"/proc/{child}/cmdline").read_bytes():
            return int(child)
    return None


WHOLE = []


@pytest.fixture
def expected(forked):
    """The digest of a run that nothing happens to."""
    if not WHOLE:
        WHOLE.append(forked(train, None).value)
    return WHOLE[0]


def start(work, most=STEPS):
    """A forked process that writes the number of each step it begins, and waits in its `most`-th; its pid and the pipe."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reader)
            torch.set_num_threads(1)
            begun = itertools.count(1)

            def report(run, step):
                os.write(writer, b"%d\n" % step.number)
                if next(begun) == most < STEPS:
                    time.sleep(LONG)  # whoever is to kill it has not come yet

            work(report)
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    return pid, reader


def last_of(reader, begun=b""):
    data = begun + b"".join(iter(lambda: os.read(reader, 1 << 16), b""))
    os.close(reader)
    lines = data.split(b"\n")[:-1]
    return int(lines[-1]) if lines else -1


def wait_until(fact):
    """Waits for something that comes by itself."""
    limit = time.monotonic() + LONG
    while not fact():
        assert time.monotonic() < limit
        time.sleep(0.002)


def newest(run_dir):
    """The newest commit, after the writer of the killed run has ended."""
    with CommitStore(run_dir) as store:
        found = store.newest()
        assert store.skipped == []
    return found


def kill_and_resume(run_dir, kills, save, expected, forked, ahead=(3, 7), pause=0.0):
    """SIGKILLs a random number of steps on; how many boundaries behind the last begun step the newest commit was, each time."""
    chance, behind = random.Random(7), []
    for _ in range(kills):
        begun, wanted = b"", chance.randint(*ahead)
        pid, reader = start(
            lambda report: train(run_dir, lambda *step: (report(*step), time.sleep(pause)), save), wanted + 3
        )
        while begun.count(b"\n") < wanted and (data := os.read(reader, 4)):
            begun += data
        time.sleep(chance.uniform(0, 0.003))
        os.kill(pid, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        last = last_of(reader, begun)
        found = newest(run_dir)
        behind.append(last - (found[0].step if found else 0))
    assert forked(train, run_dir).value == expected
    return behind


@pytest.mark.slow
def test_a_killed_run_loses_no_snapshot_that_was_taken(tmp_path, expected, forked):
    """12 SIGKILLs with a snapshot at each step: the last one becomes durable after the kill (two may find no slot), bits equal."""
    behind = kill_and_resume(tmp_path / "r", 12, 1, expected, forked)
    assert len(behind) == 12 and max(behind) <= 2
    lost = kill_and_resume(tmp_path / "explicit", 2, "explicit", expected, forked)
    assert max(lost) > 2  # negative control: without snapshots nothing is there


def test_a_run_that_never_listens_finds_slots(tmp_path, expected, forked, monkeypatch):
    """What the writer has finished is free at once, not when the run next asks: a kill after 80 steps loses two at most."""
    monkeypatch.setattr(_async_commits, "_POLL_INTERVAL", 1e9)
    behind = kill_and_resume(tmp_path / "r", 1, 1, expected, forked, ahead=(80, 80), pause=0.003)
    assert len(behind) == 1 and behind[0] <= 2


def test_the_lag_is_told_and_small(tmp_path, forked, capfd):
    """One line at the end says how many commits were made during the training and the largest lag."""
    run_dir = tmp_path / "r"
    durable = []

    class Watch(Observer):
        def committed(self, run, step):
            durable.append(step.step)

    def run():
        train(run_dir, lambda run, step: time.sleep(0.005), observer=Watch())
        return durable

    *beside, last = forked(run).value
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "during training" in line]
    commits, milliseconds, steps = map(
        int,
        re.search(
            r": (\d+) commits? during training, on disk within (\d+) ms \(at most (\d+) steps? behind\)", line
        ).groups(),
    )
    assert commits == len(beside) > 0 and last == STEPS  # the last one is made by the run itself
    print(line)
    # the figures themselves are a machine's; bench/checkpoint.py has them
    assert milliseconds < LONG * 1e3 and steps < STEPS
    forked(train, tmp_path / "none", lambda run, step: None, "explicit")
    assert "during training" not in capfd.readouterr().err


def test_observers_hear_of_each_durable_commit_once_and_in_order(tmp_path, forked):
    """`committed` comes for commits that are on disk, at a later boundary, in the order of their steps, the last included."""

    class Watch(Observer):
        durable, there = [], []

        def committed(self, run, step):
            self.durable.append(step.step)
            names = os.listdir(run.run_dir / "commits")
            self.there.append(any(int(name[:12]) >= step.step for name in names if name[0] == "0"))

    def body(run, step):
        if step.number % 30 == 20:
            wait_until(lambda: newest_step(run.run_dir) >= step.number - 2)

    def run():
        watch = Watch()
        train(tmp_path / "r", body, observer=watch)
        return watch.durable, watch.there

    durable, there = forked(run).value
    assert len(durable) > 3 and durable == sorted(set(durable)) and durable[-1] == STEPS
    assert all(there)


@pytest.mark.parametrize("deaths", [1, 3])
def test_a_writer_that_is_killed_is_replaced_and_said(tmp_path, expected, forked, capfd, deaths):
    """SIGKILL of the writer process: a warning, another one, equal bits; after the third the run commits by itself."""
    killed = []

    def body(run, step):
        time.sleep(0.002)
        if len(killed) < deaths and step.number % 10 == 5:
            wait_until(writer_of)
            killed.append(writer_of())
            os.kill(killed[-1], signal.SIGKILL)
            wait_until(lambda: writer_of() is None)

    def run():
        return train(tmp_path / "r", body), killed

    value, pids = forked(run).value
    assert value == expected and len(set(pids)) == deaths
    said = capfd.readouterr().err
    assert said.count("A new one is started") == min(deaths, 2)
    assert ("made by the run itself from now on" in said) == (deaths == 3)
    assert newest(tmp_path / "r")[0].step == STEPS


def test_a_writer_that_crashes_is_replaced_and_its_traceback_shown(tmp_path, expected, forked, capfd):
    """What a writer process raises is printed by the run, with its traceback; the run goes on with another one, to equal bits."""

    def run():
        def body(run, step):
            if step.number == 50:
                background = run.parts.saving.commits.store.writer
                # no such slot
                os.write(background._requests, PACKED.pack(*SnapshotMessage(10**6, 99, *[0] * 9)))
                wait_until(lambda: background._process.poll() is not None)

        return train(tmp_path / "r", body)

    assert forked(run).value == expected
    said = capfd.readouterr().err
    assert "IndexError: list index out of range" in said and "in serve" in said, said
    assert "is gone: it ended (exit code 1). A new one is started" in said


KILLED = """
import os, signal, sys, time
sys.path.insert(0, {tests!r})
from test_writer_process import train, writer_of

def body(run, step):
    if writer := writer_of():
        os.kill(writer, signal.SIGSTOP)
        print(writer, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.01)

train({run_dir!r}, body)
"""


@pytest.mark.slow
def test_who_reads_the_output_of_a_killed_run_does_not_wait_for_its_writer(tmp_path):
    """subprocess.run(capture_output=True) returns when the run is killed, while its writer still lives (it is stopped)."""
    script = KILLED.format(tests=str(Path(__file__).parent), run_dir=str(tmp_path / "r"))
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, capture_output=True, timeout=LONG, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    writer = int(ended.stdout.split()[-1])
    state = Path(f"/proc/{writer}/stat").read_text().rpartition(")")[2].split()[0]
    os.kill(writer, signal.SIGCONT)
    assert state in "Tt"
    # negative control: a process that holds stderr is waited for
    holds = "import os, subprocess; subprocess.Popen(['sleep', '2']); os._exit(3)"
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([sys.executable, "-c", holds], capture_output=True, timeout=1)


def test_a_disk_that_refuses_the_writer_raises_in_the_run(tmp_path, expected, forked):
    """A limit on file sizes in the writer process: CommitError with the cure at a next boundary; afterwards it resumes."""
    run_dir = tmp_path / "r"

    def body(run, step):
        time.sleep(0.002)
        if step.number == 60 and not run.resumed:
            wait_until(lambda: newest_step(run_dir) > 10)
            resource.prlimit(writer_of(), resource.RLIMIT_FSIZE, (500, 500))

    def run():
        try:
            train(run_dir, body)
        except CommitError as error:
            return str(error)

    message = forked(run).value
    assert (
        "File too large" in message
        and str(run_dir) in message
        and "ulimit -f" in message
        and "\n" not in message
    )
    assert newest(run_dir)[0].step > 10
    assert forked(train, run_dir).value == expected


def test_a_directory_that_is_removed_raises_in_the_run(tmp_path, forked):
    """rm -r of the run directory while it runs: CommitError that names it, not a hang."""
    run_dir = tmp_path / "r"

    def body(run, step):
        time.sleep(0.002)
        if step.number == 30:
            while run_dir.exists():  # the writer may just have made a file in it
                shutil.rmtree(run_dir, ignore_errors=True)

    def run():
        try:
            train(run_dir, body)
        except CommitError as error:
            return str(error)

    assert str(run_dir) in forked(run).value


def test_a_restart_waits_for_the_writer_of_the_killed_run(tmp_path, expected, forked):
    """The writer is stopped in its work, its run killed, a restart begun: it waits, and goes on from the writer's commit."""
    run_dir, gate = tmp_path / "r", tmp_path / "gate"

    def body(report, run, step):
        report(run, step)
        if step.number == 30:
            wait_until(gate.exists)

    pid, reader = start(lambda report: train(run_dir, functools.partial(body, report)), 50)
    wait_until(lambda: newest_step(run_dir) >= 28)
    writer = writer_of(pid)
    os.kill(writer, signal.SIGSTOP)
    gate.touch()
    begun = b""
    while begun.count(b"\n") < 40:  # the snapshots of ten steps wait
        begun += os.read(reader, 4)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    last, before = last_of(reader, begun), newest_step(run_dir)
    again, reader = start(lambda report: train(run_dir, report))
    time.sleep(0.3)
    os.set_blocking(reader, False)
    with pytest.raises(BlockingIOError):
        os.read(reader, 10)  # it has not begun a step
    os.set_blocking(reader, True)
    os.kill(writer, signal.SIGCONT)
    first = int(os.read(reader, 4).split(b"\n")[0])
    assert before < first >= last - 2
    assert last_of(reader) == STEPS - 1
    os.waitpid(again, 0)
    assert forked(train, run_dir).value == expected


def newest_step(run_dir):
    names = os.listdir(run_dir / "commits") if (run_dir / "commits").is_dir() else []
    return max((int(name[:12]) for name in names if name[0] == "0"), default=-1)


def test_signals_of_the_process_group_do_not_touch_the_writer(tmp_path, forked):
    """SIGTERM, SIGINT, SIGUSR1 and SIGHUP to the writer are ignored; it ends with its run."""
    seen = []

    def body(run, step):
        time.sleep(0.002)
        if step.number in (40, 60):
            seen.append(writer_of())
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
                os.kill(seen[-1], number)

    def run():
        return train(tmp_path / "r", body), seen, writer_of()

    _, pids, after = forked(run).value
    assert pids[0] == pids[1] is not None and after is None


@pytest.mark.parametrize("save", [1, "explicit"], ids=["writer process", "the run itself"])
def test_a_run_does_not_write_into_another_one_that_took_its_name(tmp_path, save):
    """Renamed while it runs, and its name given to a new run: an error, and the new run's commits are as they were."""
    folder = tmp_path / "r"

    def run_to_the_end(step_of_theft=None):
        samebits.set_random_seed(1)
        with samebits.Run(folder, save=save, keep=1) as run:
            for step, _ in run.steps(list(range(40))):
                if step.number == step_of_theft:
                    run.commit()
                elif step_of_theft is not None and step.number == step_of_theft + 1:
                    folder.rename(tmp_path / "old")
                    (folder / "commits" / "000000000007-00000000").mkdir(parents=True)
                    run.commit()

    with pytest.raises(CommitError, match="was renamed, and another folder has its name now"):
        run_to_the_end(10)
    assert [path.name for path in (folder / "commits").iterdir()] == ["000000000007-00000000"]
    shutil.rmtree(folder)
    (tmp_path / "old").rename(folder)
    run_to_the_end()
    assert CommitStore(folder).newest()[0].step == 40
