"""The digits example, killed by SIGKILL at random instants by another process, and started again each time."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from samebits import _digest as digest
from samebits.checkpoint._store import CommitStore


class Digits:
    """Starts examples/digits.py in a session of its own, with output in a file."""

    def __init__(self, root, folder, epochs, patience=100):
        self.folder = folder
        arguments = ["--epochs", epochs, "--patience", patience]
        self.command = [sys.executable, root / "examples" / "digits.py", *arguments]

    def start(self, run_dir, workers=0):
        with open(self.folder / "log", "ab") as log:
            return subprocess.Popen(
                [*map(str, self.command), "--run-dir", str(run_dir), "--workers", str(workers)],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def log(self):
        return (self.folder / "log").read_text()


def end_of(run_dir):
    """Digest of all that the run's last commit holds: model, optimizer, scheduler, run.state."""
    manifest, state = CommitStore(run_dir).newest()
    assert manifest.finished
    return digest.of_value([state["objects"], state["run_state"]])


def kill_many(root, folder, kills, epochs, seed):
    """Kills, at uniformly drawn instants of its life, a run that is started again until it ends; then a new run."""
    draw = random.Random(seed)
    digits = Digits(root, folder, epochs)
    began = time.monotonic()
    assert digits.start(folder / "whole").wait() == 0, digits.log()
    seconds = time.monotonic() - began
    expected, done, ended = end_of(folder / "whole"), 0, []
    while done < kills or not ended or ended[-1] is None:
        run_dir = folder / f"run{sum(e is not None for e in ended)}"
        child = digits.start(run_dir, workers=draw.choice([0, 0, 2]))
        try:
            code = child.wait(draw.uniform(0, seconds) if done < kills else None)
        except subprocess.TimeoutExpired:
            # the training process alone: its workers must end by themselves
            os.kill(child.pid, signal.SIGKILL)
            code = child.wait()
            done += code == -signal.SIGKILL
        assert code in (0, -signal.SIGKILL), digits.log()
        ended.append(end_of(run_dir) if code == 0 else None)
    assert "Traceback" not in digits.log()
    print(f"{done} kills, {len([e for e in ended if e])} runs ended, {len(ended)} starts")
    return expected, [e for e in ended if e is not None]


@pytest.mark.slow
def test_four_kills_at_random_instants(root, tmp_path):
    """4 SIGKILLs at random instants of the digits run, resumed each time: every run ends with equal state."""
    expected, ends = kill_many(root, tmp_path, kills=4, epochs=4, seed=1)
    assert set(ends) == {expected}


@pytest.mark.slow
def test_another_seed_ends_elsewhere(root, tmp_path):
    """Negative control: the digest does tell two different trainings apart."""
    digits = Digits(root, tmp_path, epochs=1)
    assert digits.start(tmp_path / "a").wait() == 0
    source = (root / "examples" / "digits.py").read_text().replace("set_random_seed(1)", "set_random_seed(2)")
    other = tmp_path / "digits.py"
    other.write_text(source)
    digits.command[1] = other
    assert digits.start(tmp_path / "b").wait() == 0
    assert end_of(tmp_path / "a") != end_of(tmp_path / "b")
