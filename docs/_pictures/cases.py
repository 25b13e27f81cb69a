"""The causes of docs/explanation/why.md: `training.py` with one thing changed, alone and with samebits.

`python docs/_pictures/cases.py threads` prints the largest difference of a weight.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

SCRIPT = Path(__file__).with_name("training.py")
Change = tuple[Mapping[str, str], Sequence[str]]
"""Environment variables and arguments."""
UNCHANGED: Change = ({}, ())
CASES: dict[str, dict[str, Change]] = {
    "threads": {"1 thread": ({}, ("--threads", "1")), "4 threads": ({}, ("--threads", "4"))},
    "vectors": {"ONEDNN_MAX_CPU_ISA=SSE41": ({"ONEDNN_MAX_CPU_ISA": "SSE41"}, ())},
    "vendors": {"MKL_CBWR=COMPATIBLE": ({"MKL_CBWR": "COMPATIBLE"}, ())},
    "random": {"one number more drawn after 11 steps": ({}, ("--draw",))},
    "loaders": {"2 loader workers": ({}, ("--workers", "2"))},
    "checkpoints": {"killed after 25 steps, resumed after 20": ({}, ("--kill",))},
}  # fmt: skip
"""By cause, the changes by their name in the picture."""


def measure(causes: Sequence[str] = tuple(CASES)) -> dict[str, dict[str, list[list[float]]]]:
    """Runs the trainings of some causes, each in a process of its own.

    Returns, for each cause and change, a list for torch alone and one with samebits: for each step the
    largest difference of a weight from the unchanged training.
    """
    changes = {"": UNCHANGED} | {name: one for cause in causes for name, one in CASES[cause].items()}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        runs = {
            (name, who): pool.submit(_weights, Path(folder, f"{number}-{who}.npy"), change, who)
            for number, (name, change) in enumerate(changes.items())
            for who in ("torch", "samebits")
        }
        rows = {key: run.result() for key, run in runs.items()}
    return {
        cause: {
            name: [
                np.abs(rows[name, who] - rows["", who]).max(1).tolist() for who in ("torch", "samebits")
            ]
            for name in CASES[cause]
        }
        for cause in causes
    }  # fmt: skip


def _weights(out: Path, change: Change, who: str) -> np.ndarray:
    """Runs one training, a second time after its kill; returns its weights, a row for each step."""
    variables, arguments = change
    command = [sys.executable, str(SCRIPT), str(out), *arguments, *(["--samebits"] * (who == "samebits"))]
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", **variables}
    for _ in range(1 + ("--kill" in arguments)):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
    return np.load(out)


if __name__ == "__main__":
    for cause, changes in measure(sys.argv[1:] or tuple(CASES)).items():
        for name, (alone, ours) in changes.items():
            print(f"{cause}: {name}: torch alone {max(alone):.1e}, with samebits {max(ours):.1e}", flush=True)
