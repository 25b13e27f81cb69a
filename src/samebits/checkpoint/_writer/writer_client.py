"""The run's side of its writer process: it sends snapshots, reads reports, and detects a writer that died."""

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
from typing import Any

import xxhash

import samebits.checkpoint
from samebits.checkpoint._prepared_commit import PreparedCommit
from samebits.checkpoint._run_directory import lock_for_writer
from samebits.checkpoint._safetensors_file import FileLayout
from samebits.checkpoint._writer.snapshot_memory import SnapshotMemory
from samebits.checkpoint._writer.writer_process import END, PACKED, SLOTS, SnapshotMessage

_CODE = (
    "import sys; sys.path += {path!r}; from samebits.checkpoint._writer.writer_process import main; "
    "main(sys.argv[1])"
)
_PATH = [str(Path(samebits.checkpoint.__file__).parents[2]), str(Path(xxhash.__file__).parents[1])]
"""Folders of the writer's imports: of samebits and xxhash. It imports neither torch nor NumPy."""
_SIGNALS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}
"""Signals that are sent to a whole process group: the run reacts to them, not its writer."""
_TIMEOUT = 120.0
"""Seconds without a report after which a writer is considered dead."""


Report = Mapping[str, Any]
"""The outcome of a snapshot: its `number`, and the fields of `writer_process`."""


class WriterDiedError(Exception):
    """Raised when the writer process has ended or does not answer; `stderr` is its output: a traceback."""

    def __init__(self, why: str, stderr: str = "") -> None:
        super().__init__(why)
        self.stderr = stderr


class WriterClient:
    """One writer process and the slots that it shares with this one. `run_dir` is locked by this process.

    Raises OSError when the process cannot be started, or there is no memory for it.
    """

    def __init__(self, run_dir: Path, options: Mapping[str, Any]) -> None:
        held = lock_for_writer(run_dir)
        if held is None:
            raise BlockingIOError(f"{run_dir} has another writer process")
        self._owner = os.getpid()
        self._slots = [SnapshotMemory() for _ in range(SLOTS)]
        self._pending: dict[int, SnapshotMessage] = {}
        """Snapshots without a report yet, in their order."""
        self._number = 0
        self._line = b""
        self._unread: list[Report] = []
        """Reports read while looking for a free slot; `poll` returns them."""
        self._request_reader, self._requests = os.pipe()
        self._reports, reports = os.pipe()
        self._hurry = os.eventfd(0, os.EFD_NONBLOCK)
        self._stderr = os.memfd_create("samebits-writer-stderr")
        os.set_blocking(self._request_reader, False)
        os.set_blocking(self._reports, False)
        slots = [slot.fd for slot in self._slots]
        fields = {
            **options,
            "lock": held,
            "run": self._owner,
            "slots": slots,
            "requests": self._request_reader,
            "reports": reports,
            "hurry": self._hurry,
        }
        try:
            self._process = _start(
                json.dumps(fields), [held, *slots, self._request_reader, reports, self._hurry], self._stderr
            )
        except BaseException:
            self._close_files()
            raise
        finally:
            os.close(reports)
            # The lock is the new process's alone: it may outlive this one, and no worker may hold it
            os.close(held)

    @property
    def idle(self) -> bool:
        """True if no snapshot is under way."""
        return not self._pending

    def reserve(self, size: int) -> None:
        """Takes memory for the first snapshot, of about `size` bytes, beside this thread."""
        self._slots[0].reserve(size)

    def submit(self, commit: PreparedCommit, facts: Mapping[str, Any]) -> int | None:
        """Copies a snapshot and sends it; returns its number. It replaces a waiting one that was not begun.

        Returns None if every slot is in use. Raises OSError when there is no memory, WriterDiedError.
        """
        if len(self._pending) == SLOTS:  # as of the last report
            self._unread += self._read_reports()
        free = [place for place in range(SLOTS) if all(r.slot != place for r in self._pending.values())]
        if not free:
            return None
        slot = self._slots[free[0]]
        slot.copy(commit)
        layout, template = commit.layout, commit.template
        static = self._write_static(slot, layout)
        parts = template.before, template.middle, template.after, template.note, json.dumps(facts)
        texts = [part.encode() for part in parts]
        slot.write(layout.size + static, texts)
        self._number += 1
        record = SnapshotMessage(
            self._number, free[0], template.step, layout.number, layout.size, static, *map(len, texts)
        )
        waiting = len(self._pending) > 1
        self._send(record)
        if waiting:
            self._withdraw()
        return self._number

    def poll(self, timeout: float = 0) -> list[Report]:
        """Returns the writer's new reports, within `timeout` seconds. Raises WriterDiedError."""
        unread, self._unread = self._unread, []
        if timeout and not unread:
            select.select([self._reports], [], [], timeout)
        return unread + self._read_reports()

    def drain(self) -> Iterable[Report]:
        """Yields reports until no snapshot is under way. Raises WriterDiedError."""
        last_report = time.monotonic()
        if self._pending:
            os.eventfd_write(self._hurry, 1)
        while self._pending or self._unread:
            reports = self.poll(timeout=1.0)
            if reports:
                last_report = time.monotonic()
            elif time.monotonic() - last_report > _TIMEOUT:
                raise WriterDiedError(f"no answer for {_TIMEOUT:.0f} s")
            yield from reports

    def close(self, *, kill: bool = False) -> None:
        """Ends the process after its last snapshots; frees all. A forked child only frees its copies."""
        if os.getpid() == self._owner:
            if kill:
                self._process.kill()
            os.eventfd_write(self._hurry, 1)
            with suppress(BrokenPipeError):  # a word, since forked workers keep the pipe open
                os.write(self._requests, PACKED.pack(*END))
            try:
                self._process.wait(_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._close_files()

    def _read_reports(self) -> list[Report]:
        """Reads the reports in the pipe. Raises WriterDiedError."""
        try:
            data = os.read(self._reports, 1 << 16)
        except BlockingIOError:
            return []
        if not data:
            raise self._died_error()
        *lines, self._line = (self._line + data).split(b"\n")
        reports: list[Report] = [json.loads(line) for line in lines]
        for report in reports:
            self._pending.pop(report["number"], None)
        return reports

    def _write_static(self, slot: SnapshotMemory, layout: FileLayout) -> int:
        """Writes the part that all snapshots of a layout share after the image; returns its length."""
        if slot.static is None or slot.static[0] is not layout:
            static = json.dumps(
                {
                    "head": len(layout.head),
                    "spans": layout.spans,
                    "pieces": layout.pieces,
                    "order": layout.order,
                }
            ).encode()
            slot.write(layout.size, [static])
            slot.static = layout, len(static)
        return slot.static[1]

    def _send(self, record: SnapshotMessage) -> None:
        try:
            os.write(self._requests, PACKED.pack(*record))
        except BrokenPipeError:
            raise self._died_error() from None
        self._pending[record.number] = record

    def _died_error(self) -> WriterDiedError:
        code, size = self._process.wait(), os.fstat(self._stderr).st_size
        return WriterDiedError(
            f"it ended (exit code {code})", os.pread(self._stderr, size, 0).decode(errors="replace")
        )

    def _withdraw(self) -> None:
        """Withdraws the snapshot before the last one and frees its slot, unless the writer has begun it."""
        try:
            record = SnapshotMessage(*PACKED.unpack(os.read(self._request_reader, PACKED.size)))
        except BlockingIOError:
            return
        if record.number == self._number:  # it was the last: all before it have been begun
            self._send(record)
        else:
            del self._pending[record.number]

    def _close_files(self) -> None:
        for slot in self._slots:
            slot.close()
        for descriptor in (self._request_reader, self._reports, self._requests, self._hurry, self._stderr):
            os.close(descriptor)


def _start(arguments: str, descriptors: list[int], stderr: int) -> subprocess.Popen[bytes]:
    """Starts the process. Its `stderr` is a file: a pipe's reader would wait for a killed run's writer."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # what is blocked stays so in the new process
    try:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _CODE.format(path=_PATH), arguments, "samebits-writer"],
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
