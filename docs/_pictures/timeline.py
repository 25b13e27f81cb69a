"""The times of a run that is killed and resumed (docs/explanation/resume.md)."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("resumed.py")


def measure() -> dict[str, Any]:
    """Returns the steps of each process and the commits, as [seconds, steps done, digest of the weights]."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        processes = []
        for arguments in (["--kill"], []):
            command = [sys.executable, str(SCRIPT), name, *arguments]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            processes.append((folder / "log.txt").read_text().splitlines()[sum(map(len, processes)) :])
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
        commits = [
            (file.stat().st_mtime, int(file.parent.name.partition("-")[0]), "")
            for file in sorted((folder / "run" / "commits").glob("*/manifest.json"))
        ]
    steps = [
        [(float(t), int(n) + 1, digest) for t, n, digest in map(str.split, lines)] for lines in processes
    ]
    begin = steps[0][0][0]
    shifted = [[(time - begin, *rest) for time, *rest in rows] for rows in (*steps, commits)]
    return {"processes": shifted[:2], "commits": shifted[2]}


if __name__ == "__main__":
    print(json.dumps(measure(), indent=1))
