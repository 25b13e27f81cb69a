"""Runs a program whole, and again killed at random instants and started anew; compares what it prints at its end.

A program gets its folder as its first argument, appends a line to `$PROGRESS` after each step
(`tick()`), and prints a line `FINAL ...`.
"""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

SEEDS = range(10)
"""Of the kills of each library's program."""
SPARE_S = 0.05
"""A kill comes up to so many seconds after its step."""


def tick():
    """Notes that a step has been done; called by the programs."""
    time.sleep(float(os.environ.get("STEP_S", "0.01")))
    with Path(os.environ["PROGRESS"]).open("a", encoding="utf-8") as file:
        file.write("x")


def _start(command, folder, environment):
    folder.mkdir(parents=True, exist_ok=True)
    given = {
        **os.environ,
        "PROGRESS": str(folder / "progress"),
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
    }
    with (folder / "output").open("a") as output:
        return subprocess.Popen(
            [sys.executable, *map(str, command), str(folder)],
            cwd=folder, env={**given, **environment}, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip


def _steps(folder):
    file = folder / "progress"
    return file.stat().st_size if file.exists() else 0


def lines(folder, *beginnings):
    """The different lines of a folder's output that begin with one of these."""
    return {
        line
        for line in (folder / "output").read_text(errors="replace").splitlines()
        if line.startswith(beginnings)
    }


def final(folder):
    """The last FINAL line of a folder; raises with the output if there is none."""
    output = (folder / "output").read_text(errors="replace")
    lines = [line for line in output.splitlines() if line.startswith("FINAL")]
    if not lines:
        raise AssertionError(f"no FINAL line:\n{output[-3000:]}")
    return lines[-1]


def whole(command, folder, **environment):
    """What a program prints that nobody kills, and its number of steps."""
    code = _start(command, folder, environment).wait()
    line = final(folder)
    assert code == 0, (folder / "output").read_text(errors="replace")[-3000:]
    return line, _steps(folder)


def killed(command, folder, steps, *, kills=5, seed=0, how=signal.SIGKILL, code=None, **environment):
    """What a program prints that is killed `kills` times at random instants, each at least two steps after a start.

    `code`: the exit code of each killed process, where it is known.
    """
    draws = random.Random(seed)
    for at in sorted(draws.sample(range(3, steps - 1), kills)):
        before = _steps(folder)
        process = _start(command, folder, environment)
        while process.poll() is None and _steps(folder) < max(at, before + 2):
            time.sleep(0.001)
        time.sleep(draws.random() * SPARE_S)
        if process.poll() is None:
            if how == signal.SIGKILL:
                os.killpg(process.pid, how)  # its workers, too
            else:
                process.send_signal(how)
        process.wait()
        if process.returncode == 0:
            break
        assert code is None or process.returncode == code, (folder / "output").read_text(errors="replace")[
            -3000:
        ]
    code = _start(command, folder, environment).wait()
    line = final(folder)
    assert code == 0, (folder / "output").read_text(errors="replace")[-3000:]
    return line
