"""One writer per run where there is no lock: a file that its owner renews, and that others may take when it stops.

The promise: a second process that finds a lease renewed within `seconds` does not write. The gap: an object store has
no "write if I still own this", so an owner that is frozen for longer than `seconds` exactly between its last check of
the lease and its write can still write once after another has taken over. That write is a whole commit of the same run,
with its own name; a run replays to the same bits from either.
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
"""Renewals within `seconds`: a lease survives a few that fail."""
LIMIT = 4096


class Lease:
    """The one-writer lease: `acquire` before writing, `check` before each commit, `release` after.

    A lease of a killed process of this machine is taken over at once, that of another machine after it has not changed for
    `seconds`. Times are measured, never compared between hosts.
    """

    def __init__(self, files: FsspecFiles, seconds: float = SECONDS) -> None:
        self._files = files
        self._seconds = seconds
        self._facts: dict[str, Any] = {}
        self._stop = threading.Event()
        self._writing = threading.Lock()
        """Held during a write: a file that is being written reads as cut off."""
        self._renewal: threading.Thread | None = None
        self._pid = 0

    @property
    def owned(self) -> bool:
        """True if this very process (not one that it was forked from) has the lease."""
        return bool(self._facts) and self._pid == os.getpid()

    def take(self) -> None:
        """Acquires the lease, after waiting until its owner no longer renews it.

        Raises:
            RunDirectoryError: its owner is alive.
            RemoteStorageError: the storage failed.
        """
        self._facts = {"owner": uuid4().hex, "host": socket.gethostname(), "beat": 0, **_process_facts()}
        self._pid = os.getpid()
        try:
            if self._read() is not None or not self._files.create(LEASE, self._text()):
                self._wait_for_owner()
                self._files.write(LEASE, [self._text()])
            self.check()
        except BaseException:
            self._facts = {}
            raise
        process.leases.add(self._facts["owner"])
        self._stop.clear()
        self._renewal = threading.Thread(target=self._renew, name="samebits-lease", daemon=True)
        self._renewal.start()

    def check(self) -> None:
        """Raises RunDirectoryError when another process has taken over the lease, or somebody has removed it."""
        with self._writing:
            text = self._read()
        if text is None:
            raise RunDirectoryError(
                f"run directory {self._files.url} was removed (its {LEASE} is gone). Put it back and run again: it resumes "
                "from the newest commit in it, or starts at the first step where there is none."
            )
        now = _parse(text)
        if now.get("owner") != self._facts["owner"]:
            raise RunDirectoryError(
                f"run directory {self._files.url} is no longer this process's: {_owner_text(now)} has taken it over. "
                "Two processes cannot write one run; end one of them."
            )

    def release(self) -> None:
        """Releases the lease; in a forked child, which does not own it, only forgets it."""
        if self.owned:
            self._stop.set()
            if self._renewal is not None:
                self._renewal.join()
            process.leases.discard(self._facts["owner"])
            with suppress(RemoteStorageError, RunDirectoryError):  # otherwise the lease expires
                self.check()
                self._files.remove(LEASE)
        self._facts = {}

    def _wait_for_owner(self) -> None:
        text = self._read()
        first = _parse(text)
        if first.get("owner") in process.leases:
            raise RunDirectoryError(
                f"run directory {self._files.url} is already open in this process (pid {os.getpid()}). "
                "Close the other run first, or give each run a directory of its own."
            )
        if text is None or _has_ended(first):
            return
        print(
            f"samebits: {self._files.url} was left by {_owner_text(first)}; waiting up to {self._seconds:.0f} s for a sign of life",
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
                    f"run directory {self._files.url} is in use by {_owner_text(_parse(now) or first)}. "
                    "Wait until it ends or stop it; two processes cannot write one run."
                )

    def _renew(self) -> None:
        while not self._stop.wait(self._seconds / BEATS):
            with suppress(Exception):  # the training thread learns of it by check()
                self.check()
                self._facts["beat"] += 1
                with self._writing:
                    self._files.write(LEASE, [self._text()])

    def _read(self) -> bytes | None:
        try:
            return self._files.read(LEASE, LIMIT)
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


def _owner_text(facts: dict[str, Any]) -> str:
    return f"process {facts.get('pid', '?')!a} on host {facts.get('host', '?')!a}"


def _process_facts() -> dict[str, Any]:
    return {"pid": os.getpid(), "machine": _machine(), "started": _start_time(os.getpid())}


def _has_ended(facts: dict[str, Any]) -> bool:
    """Returns True if a lease's process was one of this machine and has ended; False if that cannot be known."""
    if type(facts.get("pid")) is not int or facts.get("machine") is None or facts["machine"] != _machine():
        return False
    return _start_time(facts["pid"]) != facts.get("started")


def _machine() -> str | None:
    """Returns the boot id of this machine and the PID namespace of this process: containers may share a host name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return None


def _start_time(pid: int) -> str | None:
    """Returns when a process began, in ticks since boot, since its id may have been reused; None without such a process."""
    try:
        state, *numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else numbers[18]  # dead, and its parent has not waited for it yet
