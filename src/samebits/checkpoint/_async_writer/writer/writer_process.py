"""The process that makes snapshots durable while the run goes on; it ends with the run, but not before its last snapshot.

Signals of the process group are blocked before it starts: a SIGTERM is the run's to answer.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import select
import time
from pathlib import Path
from typing import Any

from .commit_folder import Shelf
from .manifest_template import Commit, Draft
from .messages import END, PACKED, SnapshotMessage

LOOK_MS = 500
"""Between two looks at whether the run lives, where the kernel does not tell."""
LAG = 0.05
"""Seconds after which a snapshot, or a later one, is to be durable; a write that takes longer is late. As many are left out as
that allows: each write slows the training down, which shares memory and caches with it. What was taken last when the run is
killed is written in any case."""


def main(arguments: str) -> None:
    """Serves until the run closes its end of the pipe, or is gone."""
    options = json.loads(arguments)
    # Locked by the run before this process began; again, since some network file systems keep locks by process.
    fcntl.flock(options["lock"], fcntl.LOCK_EX | fcntl.LOCK_NB)
    shelf = Shelf(Path(options["commits"]), options["keep"], options["keep_best"])
    shelf.identity = options["identity"]
    writer = _Writer(shelf, options["slots"], options["reports"])
    run, requests = options["run"], options["requests"]
    poll, hurry, lives = select.poll(), select.poll(), True
    hurry.register(options["hurry"], select.POLLIN)
    poll.register(requests, select.POLLIN)
    with contextlib.suppress(OSError, AttributeError):  # an older kernel
        poll.register(os.pidfd_open(run), select.POLLIN)
    while lives:
        poll.poll(LOOK_MS)
        if hurry.poll(writer.pause() * 1e3):
            os.eventfd_read(options["hurry"])
        lives = os.getppid() == run
        lives &= writer.serve(requests)
    os._exit(0)


class _Writer:
    def __init__(self, shelf: Shelf, slots: list[int], reports: int) -> None:
        self.shelf, self.slots, self.reports = shelf, slots, reports
        self.maps: dict[int, mmap.mmap] = {}
        self.static: dict[str, Any] = {"plan": -1}
        self.base = -1
        self.began = self.took = 0.0
        """Of the last write: when, by the monotonic clock, and for how long, in seconds."""

    def pause(self) -> float:
        """Seconds until the next write should begin, unless somebody waits for it."""
        return max(0.0, self.began + max(LAG - self.took, self.took) - time.monotonic())

    def serve(self, requests: int) -> bool:
        """Writes the newest of the snapshots that wait; whether there may be more."""
        newest, ends = None, False
        while True:
            try:
                data = os.read(requests, PACKED.size)
            except BlockingIOError:
                data = None
            if not data:
                break
            record = SnapshotMessage(*PACKED.unpack(data))
            if record == END:
                ends = True
                break
            if newest is not None:
                self.report(newest, dropped=True)
            newest = record
        if newest is not None:
            self.write(newest)
        return data is None and not ends

    def write(self, record: SnapshotMessage) -> None:
        """Makes one snapshot durable, and reports it."""
        began, worked = time.monotonic(), time.process_time()
        memory = memoryview(self.map(record))
        try:
            told = self.store(record, memory)
        except OSError as error:
            wanted = {"step": record.step, "wanted": record.size}
            told = {
                "errno": error.errno,
                "strerror": error.strerror,
                "filename": str(error.filename),
                **wanted,
            }
        finally:
            memory.release()
        troubles, self.shelf.troubles = self.shelf.troubles, []
        self.began, self.took = began, time.monotonic() - began
        took = {"seconds": self.took, "cpu": time.process_time() - worked}
        self.report(record, at=time.monotonic(), troubles=troubles[:3], **took, **told)

    def store(self, record: SnapshotMessage, memory: memoryview) -> dict[str, Any]:
        """Hands a snapshot to the shelf."""
        parts, place = [], record.image
        for size in record[5:]:
            parts.append(bytes(memory[place : place + size]))
            place += size
        if self.static["plan"] != record.plan:
            self.static = {"plan": record.plan, **json.loads(parts[0])}
        self.follow(json.loads(parts[4]))
        before, middle, after = (part.decode() for part in parts[1:4])
        draft = Draft(record.step, before, middle, after, self.static["pieces"], self.static["order"])
        tensors = [memory[begin:end] for begin, end in self.static["spans"]]
        head, image = memory[: self.static["head"]], memory[: record.image]
        try:
            return {"commit": self.shelf.write(draft, head, tensors, image)}
        finally:
            for view in (*tensors, head, image):
                view.release()

    def follow(self, facts: dict[str, Any]) -> None:
        """Takes over what the run has committed itself in the meantime."""
        if facts["base"] != self.base:
            self.base = facts["base"]
            self.shelf.last = Commit(*facts["last"]) if facts["last"] else None
            self.shelf.corrupt = set(facts["corrupt"])

    def map(self, record: SnapshotMessage) -> mmap.mmap:
        """The memory of its slot; the run may have made it larger."""
        known = self.maps.get(record.slot)
        if known is None or len(known) < record.size:
            known = self.maps[record.slot] = mmap.mmap(self.slots[record.slot], 0, prot=mmap.PROT_READ)
        return known

    def report(self, record: SnapshotMessage, **told: Any) -> None:
        """Says what became of a snapshot; nobody listens when the run is gone."""
        with contextlib.suppress(OSError):
            os.write(self.reports, json.dumps({"number": record.number, **told}).encode() + b"\n")
