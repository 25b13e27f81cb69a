"""Ends every process of a check and removes its scratch folder as soon as the check itself is gone.

Runs as a script of its own (standard library only) whose standard input is a pipe from the check. The pipe
closes when the check ends in any way, SIGKILL included, so this is the only clean-up there is. A process
belongs to the check when its environment's TMPDIR is in the scratch folder: that also finds loader workers
and processes that left its process group.

`python reaper.py FOLDER hold FILES` also guards files of the user, those that the check's processes read
through links: by a lease on each, with which the kernel stops a process that opens one of them for writing
until we have checked.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

PATIENCE_S = 10.0
"""A process in an uninterruptible wait may take a while to die."""
WRITTEN = "written"
"""The scratch folder's file with the names of guarded files opened for writing, each ended by a NUL."""


def members(scratch: str) -> Iterator[int]:
    """Yields the process ids whose TMPDIR is in `scratch`. A zombie has no environment and does not count."""
    marker = b"TMPDIR=" + os.fsencode(scratch) + b"/"
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            with contextlib.suppress(OSError):
                environment = Path("/proc", entry, "environ").read_bytes()
                if any(item.startswith(marker) for item in environment.split(b"\0")):
                    yield int(entry)


def sweep(scratch: str) -> None:
    """Kills the members until there are none: one may start another during the search."""
    deadline = time.monotonic() + PATIENCE_S
    while (found := list(members(scratch))) and time.monotonic() < deadline:
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.005)


def remove(folder: str | os.PathLike[str]) -> None:
    """Removes a folder with its contents, also folders without permissions, which an overlay leaves."""
    for outer, inner, _ in os.walk(folder):
        for name in inner:
            path = os.path.join(outer, name)
            if not os.path.islink(path):
                with contextlib.suppress(OSError):
                    os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


def hold(scratch: str, files: list[bytes]) -> list[bytes]:
    """Guards `files` as long as this process lives; returns those that cannot be guarded.

    A process that opens one for writing waits in the kernel until the lease is released. If a process of the
    check did it, all of them are killed before: the file stays as it is, and is named in `WRITTEN`.
    """
    held: dict[int, bytes] = {}
    refused = []
    signal.signal(signal.SIGIO, lambda *_: _give_back(scratch, held))
    for file in files:
        try:
            handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            refused.append(file)
            continue
        try:
            fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            held[handle] = file
        except OSError:
            refused.append(file)
            os.close(handle)
    return refused


def _give_back(scratch: str, held: dict[int, bytes]) -> None:
    broken = [handle for handle in held if fcntl.fcntl(handle, fcntl.F_GETLEASE) == fcntl.F_UNLCK]
    with open(os.path.join(scratch, WRITTEN), "ab") as file:
        file.writelines(held[handle] + b"\0" for handle in broken)
    sweep(scratch)
    for handle in broken:
        del held[handle]
        os.close(handle)


def main() -> None:
    """Waits for the end of stdin, then does `python reaper.py FOLDER remove|keep`, or `... hold FILES`."""
    scratch, what = sys.argv[1:3]
    if what == "hold":
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        refused = hold(scratch, Path(sys.argv[3]).read_bytes().split(b"\0"))
        sys.stdout.buffer.write(b"\0".join(refused))
        sys.stdout.flush()
        os.close(1)
    sys.stdin.buffer.read()
    sweep(scratch)
    if what == "remove":
        remove(scratch)


if __name__ == "__main__":
    main()
