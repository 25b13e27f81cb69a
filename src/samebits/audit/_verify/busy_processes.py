"""Processes that keep every core busy beside a check, as other work on a shared machine does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_LOOP = """
import os, sys
parent = int(sys.argv[1])
while os.getppid() == parent:  # so that it ends when the check is killed
    for _ in range(10**6):
        pass
"""


@contextmanager
def busy_processes() -> Iterator[None]:
    """Runs one process per core that only counts, while the block runs."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    command = [sys.executable, "-I", "-S", "-c", _LOOP, str(os.getpid())]
    processes = [subprocess.Popen(command) for _ in range(cores)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
