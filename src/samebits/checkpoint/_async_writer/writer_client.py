"""The run's side of its writer process: snapshots go there, reports come back; a writer that dies is replaced."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

import samebits.checkpoint._async_writer
from samebits.checkpoint._async_writer.snapshot_memory import SnapshotMemory
from samebits.checkpoint._async_writer.state_layout import StateLayout
from samebits.checkpoint._async_writer.writer.manifest_template import Draft
from samebits.checkpoint._async_writer.writer.messages import END, PACKED, SLOTS, SnapshotMessage
from samebits.checkpoint._run_directory import lock_for_writer

_MAIN = "import sys; sys.path += {path!r}; from writer.writer_process import main; main(sys.argv[1])"
_PATH = [
    str(Path(samebits.checkpoint._async_writer.__file__).parent),
    str(Path(xxhash.__file__).parent.parent),
]
_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}
"""Sent to a whole process group, they are the run's to answer."""
_PATIENCE = 120.0
"""Seconds without any sign of a writer until it is given up."""


class CommitReport(NamedTuple):
    """What became of a snapshot."""

    number: int
    told: Mapping[str, Any]


class WriterDiedError(Exception):
    """The writer process has ended by itself, or does not answer; `said` is what it left on stderr: a traceback."""

    def __init__(self, why: str, said: str = "") -> None:
        super().__init__(why)
        self.said = said


class Background:
    """One writer process and the slots that it shares with this one.

    Args:
        run_dir: locked by this process.
        options: what `writer.process.main` needs to know of the shelf.

    Raises:
        OSError: the process, or memory for it, is not to be had.
    """

    def __init__(self, run_dir: Path, options: Mapping[str, Any]) -> None:
        held = lock_for_writer(run_dir)
        if held is None:
            raise BlockingIOError(f"{run_dir} has another writer process")
        self._owner = os.getpid()
        self._slots = [SnapshotMemory() for _ in range(SLOTS)]
        self._pending: dict[int, SnapshotMessage] = {}
        """Snapshots of which nothing was heard yet, in their order."""
        self._number = 0
        self._line = b""
        self._unread: list[CommitReport] = []
        """Heard while a slot was looked for; `poll` tells of them."""
        self._taken, self._requests = os.pipe()
        self._reports, reports = os.pipe()
        self._hurry = os.eventfd(0, os.EFD_NONBLOCK)
        self._said = os.memfd_create("samebits-writer-stderr")
        os.set_blocking(self._taken, False)
        os.set_blocking(self._reports, False)
        slots = [slot.fd for slot in self._slots]
        told = {
            **options,
            "lock": held,
            "run": self._owner,
            "slots": slots,
            "requests": self._taken,
            "reports": reports,
            "hurry": self._hurry,
        }
        try:
            self._process = _start(
                json.dumps(told), [held, *slots, self._taken, reports, self._hurry], self._said
            )
        except BaseException:
            self._close_files()
            raise
        finally:
            os.close(reports)
            os.close(
                held
            )  # the lock is the new process's alone: it may outlive this one, and no worker may hold it

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._pending

    def submit(
        self, plan: StateLayout, values: list[Any], made: Draft, facts: Mapping[str, Any]
    ) -> int | None:
        """Copies a snapshot and hands it over; its number. One that waits, and that nobody has begun, gives way.

        None: every slot is in use. Raises OSError when there is no memory, WriterDiedError.
        """
        if len(self._pending) == SLOTS:  # as far as was heard
            self._unread += self._hear()
        free = [place for place in range(SLOTS) if all(r.slot != place for r in self._pending.values())]
        if not free:
            return None
        slot = self._slots[free[0]]
        slot.copy(plan, values)
        static = self._static(slot, plan)
        texts = [part.encode() for part in (made.before, made.middle, made.after, json.dumps(facts))]
        slot.put(plan.layout.size + static, texts)
        self._number += 1
        record = SnapshotMessage(
            self._number, free[0], made.step, plan.number, plan.layout.size, static, *map(len, texts)
        )
        waiting = len(self._pending) > 1
        self._send(record)
        if waiting:
            self._take_back()
        return self._number

    def poll(self, timeout: float = 0) -> list[CommitReport]:
        """What the writer has told since, after waiting for at most `timeout` seconds. Raises WriterDiedError."""
        unread, self._unread = self._unread, []
        if timeout and not unread:
            select.select([self._reports], [], [], timeout)
        return unread + self._hear()

    def drain(self) -> Iterable[CommitReport]:
        """Waits until nothing is under way. Raises WriterDiedError."""
        heard = time.monotonic()
        if self._pending:
            os.eventfd_write(self._hurry, 1)
        while self._pending or self._unread:
            reports = self.poll(timeout=1.0)
            if reports:
                heard = time.monotonic()
            elif time.monotonic() - heard > _PATIENCE:
                raise WriterDiedError(f"no answer for {_PATIENCE:.0f} s")
            yield from reports

    def close(self, *, kill: bool = False) -> None:
        """Ends the process, which first writes what it was given, and lets go of everything. In a forked child: only that."""
        if os.getpid() == self._owner:
            if kill:
                self._process.kill()
            os.eventfd_write(self._hurry, 1)
            with suppress(BrokenPipeError):  # a word, since forked workers keep the pipe open
                os.write(self._requests, PACKED.pack(*END))
            try:
                self._process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._close_files()

    def _hear(self) -> list[CommitReport]:
        """What lies in the pipe. Raises WriterDiedError."""
        try:
            data = os.read(self._reports, 1 << 16)
        except BlockingIOError:
            return []
        if not data:
            raise self._ended()
        *lines, self._line = (self._line + data).split(b"\n")
        reports = [json.loads(line) for line in lines]
        for told in reports:
            self._pending.pop(told["number"], None)
        return [CommitReport(told["number"], told) for told in reports]

    def _static(self, slot: SnapshotMemory, plan: StateLayout) -> int:
        """Puts what is the same for all snapshots of a plan behind the image; its length."""
        if slot.static is None or slot.static[0] is not plan:
            layout = plan.layout
            static = json.dumps(
                {
                    "head": len(layout.head),
                    "spans": layout.spans,
                    "pieces": layout.pieces,
                    "order": layout.order,
                }
            ).encode()
            slot.put(layout.size, [static])
            slot.static = plan, len(static)
        return slot.static[1]

    def _send(self, record: SnapshotMessage) -> None:
        try:
            os.write(self._requests, PACKED.pack(*record))
        except BrokenPipeError:
            raise self._ended() from None
        self._pending[record.number] = record

    def _ended(self) -> WriterDiedError:
        code, size = self._process.wait(), os.fstat(self._said).st_size
        return WriterDiedError(
            f"it ended (exit code {code})", os.pread(self._said, size, 0).decode(errors="replace")
        )

    def _take_back(self) -> None:
        """Frees the slot of the snapshot before the last one, unless the writer has begun it."""
        try:
            record = SnapshotMessage(*PACKED.unpack(os.read(self._taken, PACKED.size)))
        except BlockingIOError:
            return
        if record.number == self._number:  # it was the last: all before it have been begun
            self._send(record)
        else:
            del self._pending[record.number]

    def _close_files(self) -> None:
        for slot in self._slots:
            slot.close()
        for descriptor in (self._taken, self._reports, self._requests, self._hurry, self._said):
            os.close(descriptor)


def _start(arguments: str, descriptors: list[int], said: int) -> subprocess.Popen[bytes]:
    """`said`: a file for its stderr. This process's own may be a pipe, whose reader would wait for the writer of a killed run."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # what is blocked stays so in the new process
    try:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _MAIN.format(path=_PATH), arguments, "samebits-writer"],
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
