"""One writer per run where there is no lock: a file that its owner renews, and that others may take when it stops.

What it promises: a second process that finds a lease renewed within `seconds` does not write. What it cannot: an
object store has no "write if I still own this", so an owner that was frozen for longer than `seconds` in the very
instant between its last look at the lease and its write can still write once after another has taken over. That
write is a whole commit of the same run, with a name of its own; a run replays to the same bits from either.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from samebits._context import process
from samebits.checkpoint._remote.fsspec_files import FsspecFiles
from samebits.errors import RemoteStorageError, RunDirectoryError

LEASE = "lease.json"
SECONDS = 60.0
BEATS = 4
"""Renewals within `seconds`: a lease outlives a few that fail."""
LIMIT = 4096


class Lease:
    """`take` before writing, `check` before each commit, `release` after. Times are measured, never compared between hosts.

    A lease that a killed process of this machine left is taken over at once, that of another machine after it was
    seen unchanged for `seconds`.
    """

    def __init__(self, bucket: FsspecFiles, seconds: float = SECONDS) -> None:
        self._bucket = bucket
        self._seconds = seconds
        self._facts: dict[str, Any] = {}
        self._stop = threading.Event()
        self._writing = threading.Lock()
        """A file that is being written reads as cut off."""
        self._renewal: threading.Thread | None = None
        self._pid = 0

    @property
    def owned(self) -> bool:
        """Whether this very process (not one that it was forked from) took the lease."""
        return bool(self._facts) and self._pid == os.getpid()

    def take(self) -> None:
        """Waits for a lease that is no longer renewed.

        Errors:
            RunDirectoryError: its owner lives.
            RemoteStorageError: the storage failed.
        """
        self._facts = {"owner": uuid4().hex, "host": socket.gethostname(), "beat": 0, **_this_process()}
        self._pid = os.getpid()
        try:
            if self._read() is not None or not self._bucket.create(LEASE, self._text()):
                self._wait_for_the_owner()
                self._bucket.write(LEASE, [self._text()])
            self.check()
        except BaseException:
            self._facts = {}
            raise
        process.leases.add(self._facts["owner"])
        self._stop.clear()
        self._renewal = threading.Thread(target=self._renew, name="samebits-lease", daemon=True)
        self._renewal.start()

    def check(self) -> None:
        """Raises RunDirectoryError when another process has taken the lease over, or somebody has removed it."""
        with self._writing:
            text = self._read()
        if text is None:
            raise RunDirectoryError(
                f"run directory {self._bucket.url} was removed (its {LEASE} is gone). Put it back and run again: it resumes "
                "from the newest commit in it, or starts at the first step where there is none."
            )
        now = _parse(text)
        if now.get("owner") != self._facts["owner"]:
            raise RunDirectoryError(
                f"run directory {self._bucket.url} is no longer this process's: {_who(now)} has taken it over. "
                "Two processes cannot write one run; end one of them."
            )

    def release(self) -> None:
        """Gives the lease back; in a forked child, where it is not ours, only forgets it."""
        if self.owned:
            self._stop.set()
            if self._renewal is not None:
                self._renewal.join()
            process.leases.discard(self._facts["owner"])
            with suppress(RemoteStorageError, RunDirectoryError):  # else it runs out
                self.check()
                self._bucket.remove(LEASE)
        self._facts = {}

    def _wait_for_the_owner(self) -> None:
        text = self._read()
        first = _parse(text)
        if first.get("owner") in process.leases:
            raise RunDirectoryError(
                f"run directory {self._bucket.url} is already open in this process (pid {os.getpid()}). "
                "Close the other run first, or give each run a directory of its own."
            )
        if text is None or _is_gone(first):
            return
        print(
            f"samebits: {self._bucket.url} was left by {_who(first)}; waiting up to {self._seconds:.0f} s for a sign of life",
            file=sys.stderr,
        )
        end = time.monotonic() + self._seconds
        while time.monotonic() < end:
            time.sleep(self._seconds / 60)
            now = self._read()
            if now is None:
                return
            if now != text:
                raise RunDirectoryError(
                    f"run directory {self._bucket.url} is in use by {_who(_parse(now) or first)}. "
                    "Wait until it ends or stop it; two processes cannot write one run."
                )

    def _renew(self) -> None:
        while not self._stop.wait(self._seconds / BEATS):
            with suppress(Exception):  # check() tells the training thread
                self.check()
                self._facts["beat"] += 1
                with self._writing:
                    self._bucket.write(LEASE, [self._text()])

    def _read(self) -> bytes | None:
        try:
            return self._bucket.read(LEASE, LIMIT)
        except FileNotFoundError:
            return None

    def _text(self) -> bytes:
        return json.dumps(self._facts).encode()


def _parse(text: bytes | None) -> dict[str, Any]:
    try:
        facts = json.loads(text or b"{}")
    except (ValueError, RecursionError):  # cut off by a kill
        return {}
    return facts if isinstance(facts, dict) else {}


def _who(facts: dict[str, Any]) -> str:
    return f"process {facts.get('pid', '?')!a} on host {facts.get('host', '?')!a}"


def _this_process() -> dict[str, Any]:
    return {"pid": os.getpid(), "machine": _machine(), "started": _started(os.getpid())}


def _is_gone(facts: dict[str, Any]) -> bool:
    """Whether a lease's process was one of this machine and is there no more; False when nobody can tell."""
    if type(facts.get("pid")) is not int or facts.get("machine") is None or facts["machine"] != _machine():
        return False
    return _started(facts["pid"]) != facts.get("started")


def _machine() -> str | None:
    """Which boot of which machine, and the process numbers that this process sees: containers may share a host name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return None


def _started(pid: int) -> str | None:
    """When a process began, in ticks since boot: its number may be another's by now. None: there is no such process."""
    try:
        state, *numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else numbers[18]  # dead, and its parent has not asked yet
