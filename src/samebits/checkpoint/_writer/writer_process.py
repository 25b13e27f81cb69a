"""Makes snapshots durable, as a process beside the run; it ends after the run and the run's last snapshot.

Signals of the process group are blocked before it starts: the run reacts to a SIGTERM, not its writer.

A snapshot is in a slot, a file without a name that both processes have mapped: the image of the tensor file,
then the data for the manifest. Its record, of a fixed size, goes into a pipe that both may read, and only one
gets it: so the run withdraws a snapshot that the writer has not begun by reading its record. Reports come
back as lines of JSON.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import select
import struct
import time
from pathlib import Path
from typing import Any, NamedTuple

from samebits.checkpoint._retention import Retention
from samebits.checkpoint._writer.commit_folder import Commit, CommitFolder, ManifestTemplate

SLOTS = 3
"""One being written, one waiting, one to fill."""


class SnapshotMessage(NamedTuple):
    """One snapshot: its number, its slot, and the lengths of its parts, in their order there."""

    number: int
    slot: int
    step: int
    layout: int
    """Snapshots of the same layout have the same `static`."""
    image: int
    static: int
    before: int
    middle: int
    after: int
    note: int
    facts: int

    @property
    def size(self) -> int:
        """Bytes that it takes in the slot."""
        return sum(self[4:])


PACKED = struct.Struct(f"<{len(SnapshotMessage._fields)}Q")
END = SnapshotMessage(*[0] * len(SnapshotMessage._fields))
"""The last message: the run needs no writer any more."""


POLL_MS = 500
"""Milliseconds between two checks that the run lives, where the kernel does not notify."""
LAG = 0.05
"""Seconds within which a snapshot, or a later one, should be durable; a write that takes longer is late. As
many snapshots as possible are skipped within it: each write slows the training down, which shares memory and
caches with it. The last snapshot of a killed run is always written."""


def main(arguments: str) -> None:
    """Writes snapshots until the run closes its end of the pipe or ends."""
    options = json.loads(arguments)
    # The run has locked it already. Lock it again: some network file systems keep locks by process.
    fcntl.flock(options["lock"], fcntl.LOCK_EX | fcntl.LOCK_NB)
    folder = CommitFolder(Path(options["commits"]), Retention(*options["retention"]))
    folder.identity = options["identity"]
    writer = _Writer(folder, options["slots"], options["reports"])
    run, requests = options["run"], options["requests"]
    poll, hurry, run_lives = select.poll(), select.poll(), True
    hurry.register(options["hurry"], select.POLLIN)
    poll.register(requests, select.POLLIN)
    with contextlib.suppress(OSError, AttributeError):  # an older kernel
        poll.register(os.pidfd_open(run), select.POLLIN)
    while run_lives:
        poll.poll(POLL_MS)
        if hurry.poll(writer.pause() * 1e3):
            os.eventfd_read(options["hurry"])
        run_lives = os.getppid() == run
        run_lives &= writer.serve(requests)
    os._exit(0)


class _Writer:
    def __init__(self, folder: CommitFolder, slots: list[int], reports: int) -> None:
        self.folder, self.slots, self.reports = folder, slots, reports
        self.maps: dict[int, mmap.mmap] = {}
        self.static: dict[str, Any] = {"layout": -1}
        self.base = -1
        self.started = self.duration = 0.0
        """Start of the last write (monotonic clock) and its duration, in seconds."""

    def pause(self) -> float:
        """Returns the seconds until the next write should begin, unless the run waits for it."""
        return max(0.0, self.started + max(LAG - self.duration, self.duration) - time.monotonic())

    def serve(self, requests: int) -> bool:
        """Writes the newest of the waiting snapshots; returns True if there may be more."""
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
        started, worked = time.monotonic(), time.process_time()
        memory = memoryview(self.map(record))
        try:
            fields = self.store(record, memory)
        except OSError as error:
            wanted = {"step": record.step, "wanted": record.size}
            fields = {
                "errno": error.errno,
                "strerror": error.strerror,
                "filename": str(error.filename),
                **wanted,
            }
        finally:
            memory.release()
        troubles, self.folder.troubles = self.folder.troubles, []
        self.started, self.duration = started, time.monotonic() - started
        duration = {"seconds": self.duration, "cpu": time.process_time() - worked}
        self.report(record, at=time.monotonic(), troubles=troubles[:3], **duration, **fields)

    def store(self, record: SnapshotMessage, memory: memoryview) -> dict[str, Any]:
        """Writes a snapshot as a commit and returns the fields of its report."""
        parts, place = [], record.image
        for size in record[5:]:
            parts.append(bytes(memory[place : place + size]))
            place += size
        if self.static["layout"] != record.layout:
            self.static = {"layout": record.layout, **json.loads(parts[0])}
        self.follow_run(json.loads(parts[5]))
        before, middle, after, note = (part.decode() for part in parts[1:5])
        pieces, order = self.static["pieces"], self.static["order"]
        template = ManifestTemplate(record.step, before, middle, after, pieces, order, note)
        tensors = [memory[begin:end] for begin, end in self.static["spans"]]
        head, image = memory[: self.static["head"]], memory[: record.image]
        try:
            return {"commit": self.folder.write(template, head, tensors, image)}
        finally:
            for view in (*tensors, head, image):
                view.release()

    def follow_run(self, facts: dict[str, Any]) -> None:
        """Takes over the commits that the run has made itself in the meantime."""
        if facts["base"] != self.base:
            self.base = facts["base"]
            self.folder.last = Commit(*facts["last"]) if facts["last"] else None
            self.folder.corrupt = set(facts["corrupt"])

    def map(self, record: SnapshotMessage) -> mmap.mmap:
        """Returns the memory of the record's slot; the run may have made it larger."""
        known = self.maps.get(record.slot)
        if known is None or len(known) < record.size:
            known = self.maps[record.slot] = mmap.mmap(self.slots[record.slot], 0, prot=mmap.PROT_READ)
        return known

    def report(self, record: SnapshotMessage, **fields: Any) -> None:
        """Reports the outcome of a snapshot; nothing reads it when the run has ended."""
        with contextlib.suppress(OSError):
            os.write(self.reports, json.dumps({"number": record.number, **fields}).encode() + b"\n")
