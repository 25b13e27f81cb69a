"""Ends every process of a check and removes its scratch folder as soon as the check itself is gone.

Runs as a script of its own (standard library only) whose standard input is a pipe from the check. The pipe
closes when the check ends in any way, SIGKILL included, so this is the only clean-up there is. A process
belongs to the check when its environment's TMPDIR lies in the scratch folder: that also finds loader workers
and whatever left its process group.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

PATIENCE_S = 10.0
"""A process in an uninterruptible wait may take a while to die."""


def members(scratch: str) -> Iterator[int]:
    """The process ids whose TMPDIR lies in `scratch`. A zombie has no environment and does not count."""
    marker = b"TMPDIR=" + os.fsencode(scratch) + b"/"
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            with contextlib.suppress(OSError):
                environment = Path("/proc", entry, "environ").read_bytes()
                if any(item.startswith(marker) for item in environment.split(b"\0")):
                    yield int(entry)


def sweep(scratch: str) -> None:
    """Kills the members until there are none: one may have started another while it was looked for."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := list(members(scratch))) and time.monotonic() < deadline:
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.005)


def main() -> None:
    """Waits for the end of standard input; then `python warden.py FOLDER remove|keep`."""
    scratch, remove = sys.argv[1], sys.argv[2] == "remove"
    sys.stdin.buffer.read()
    sweep(scratch)
    if remove:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
