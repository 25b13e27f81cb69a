"""The commits of a run: asynchronous ones by the writer process, the others by the run; equal bytes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from samebits._context import Position
from samebits._inspect import user_code
from samebits.checkpoint._commit_parts import Group, together, write_parts
from samebits.checkpoint._store import CommitStore
from samebits.checkpoint._writer.writer_client import Report, WriterDiedError
from samebits.errors import CommitError
from samebits.train._cadence import Cadence

_POLL_INTERVAL = 0.01
"""Seconds between two reads of the writer's reports: a read is a system call, and steps may be shorter."""
_LARGE = 1 << 26
"""Bytes of a state whose memory is taken before the first snapshot; a smaller one's is there in 0.1 s."""
_MAX_DEATHS = 3
"""Writer processes that may die before the run makes all commits itself."""


class Commits:
    """The commits in `run_dir`: makes them, and knows which are durable."""

    def __init__(self, run_dir: Path | str, cadence: Cadence, keep: int, keep_best: int) -> None:
        self.cadence = cadence
        self.store = CommitStore(run_dir, keep, keep_best)
        self._sync = False
        """True if the run makes every commit itself."""
        self._deaths = self.written = 0
        self._next_poll = 0.0
        self.lag, self.lag_steps = 0.0, 0
        """Longest time until a boundary's snapshot, or a later one, was durable: in seconds and in steps."""
        self._checked: object = None
        """The layout of the last state whose copies were checked."""
        self._snapshots: dict[int, tuple[Position, float]] = {}
        """Position and time of snapshots that the writer is not known to have written, nor a later one."""
        self._written: list[Position] = []
        """Boundaries whose commits the writer process has written, and a URL has not got yet."""

    def due(self, step: int) -> bool:
        if not self.cadence.due(step):  # the usual answer
            return False
        writer, last = self.store.writer, self.store.last
        if writer is not None and self.cadence.one_at_a_time and not writer.idle:
            return False
        return last is None or last.step != step

    def commit(
        self,
        state: dict[str, Any],
        position: Position,
        facts: Mapping[str, Any],
        on_tensors_written: Callable[[], None],
        check: Callable[[], None],
        group: Group | None = None,
    ) -> list[Position]:
        """Commits, waits until the commit is durable, and returns the earlier snapshots that have become so.

        `facts`: the fields of the manifest besides `position` and the state; `check` raises for a state that
        cannot be restored; `group`: of ranks that all call this, each of which writes its rows of DTensors.
        """
        self._await_writer()
        started = time.perf_counter()
        facts = {**facts, "step": position.step, "position": position.to_dict()}
        if group is None:
            check()
            self.store.write(self.store.prepare(state, **facts), on_tensors_written)
        else:
            together(group, "in a commit", check)
            write_parts(group, self.store, state, on_tensors_written=on_tensors_written, **facts)
        self.cadence.record_commit(time.perf_counter() - started)
        # of commits in parts none was a snapshot
        earlier = self._take_durable() if group is None else []
        return [*earlier, position]

    def reserve(self, state: dict[str, Any]) -> None:
        """Prepares for snapshots of such a state, beside the training, if the first would wait long."""
        leaves = (leaf for leaf in pytree.tree_leaves(state) if isinstance(leaf, torch.Tensor))
        size = sum(leaf.nbytes for leaf in leaves)
        if size >= _LARGE and not self._sync:
            with suppress(OSError):  # then the first snapshot meets it, too
                self.store.reserve(size)

    def snapshot(
        self, state: dict[str, Any], position: Position, facts: Mapping[str, Any], check: Callable[[], None]
    ) -> bool:
        """Takes a snapshot for the writer process; returns False if the run has to `commit` instead.

        Later changes are not in it. Where the writer has not finished the earlier ones, it replaces the
        newest that the writer has not begun.
        """
        if self._sync:
            return False
        started = time.perf_counter()
        commit = self.store.prepare(state, step=position.step, position=position.to_dict(), **facts)
        if commit.layout is not self._checked:
            check()
            self._checked = commit.layout
        at = time.monotonic()  # before the writer can begin it
        try:
            number = self.store.snapshot(commit)
        except WriterDiedError as error:
            self._on_writer_died(error)
            return not self._sync
        except OSError as error:
            self._fall_back_to_sync(f"there is no memory or process for it ({error})")
            return False
        if number is not None:
            self._snapshots[number] = position, at
        self.cadence.record_commit(time.perf_counter() - started)
        return True

    @property
    def under_way(self) -> bool:
        """True if there is a commit that is not known to be durable."""
        return bool(self._snapshots or self._written)

    def poll(self) -> list[Position]:
        """Returns the boundaries whose commits have become durable since the last call.

        Raises CommitError when the disk, or the storage of a URL, has refused one.
        """
        now = time.monotonic()
        if not self.under_way or now < self._next_poll:
            return []
        self._next_poll = now + _POLL_INTERVAL
        if self.store.writer is not None:
            try:
                self._read_reports(self.store.writer.poll())
            except WriterDiedError as error:
                self._on_writer_died(error)
        return self._take_durable()

    def wait(self) -> list[Position]:
        """Waits until nothing is under way; returns the boundaries as `poll` does."""
        self._await_writer()
        return self._take_durable(wait=True)

    def close(self) -> list[Position]:
        """Waits, ends the writer process, releases the run directory; a failed commit is a warning."""
        durable: list[Position] = []
        try:
            durable = self.wait()
        except CommitError as error:
            user_code.warn(str(error))
        finally:
            with suppress(OSError):
                self.store.close()
        if self.written:
            commits = "1 commit" if self.written == 1 else f"{self.written} commits"
            steps = "1 step" if self.lag_steps == 1 else f"{self.lag_steps} steps"
            print(
                f"samebits: {self.store.where}: {commits} during training, on disk within "
                f"{self.lag * 1e3:.0f} ms (at most {steps} behind)",
                file=sys.stderr,
            )
        return durable

    def _await_writer(self) -> None:
        """Waits until the writer process has written what it got."""
        if self.store.writer is None:
            return
        try:
            for report in self.store.writer.drain():
                self._read_reports([report])
        except WriterDiedError as error:
            self._on_writer_died(error)

    def _take_durable(self, *, wait: bool = False) -> list[Position]:
        self.store.publish(wait=wait)
        self.store.warn()
        step = self.store.durable_step
        durable = [position for position in self._written if position.step <= step]
        self._written = [position for position in self._written if position.step > step]
        return durable

    def _read_reports(self, reports: list[Report]) -> None:
        for report in reports:
            if "errno" in report:
                self._snapshots.clear()
                error = OSError(report["errno"], report["strerror"], report["filename"])
                raise self.store.write_error(error, report["step"], report["wanted"]) from error
            if "commit" in report:
                self._mark_written(report)

    def _mark_written(self, report: Report) -> None:
        """Notes that the writer process has written a snapshot, and so need not write those before it."""
        self.store.mark_written(report)
        self.written += 1
        self.cadence.record_write(report["seconds"], report["cpu"])
        if report["number"] not in self._snapshots:  # forgotten, when a write before it failed
            return
        first, since = next(iter(self._snapshots.values()))
        newest = [position for position, at in self._snapshots.values() if at <= report["at"]][-1]
        self.lag = max(self.lag, report["at"] - since)
        self.lag_steps = max(self.lag_steps, newest.step - first.step)
        self._written.append(self._snapshots[report["number"]][0])
        later = ((number, entry) for number, entry in self._snapshots.items() if number > report["number"])
        self._snapshots = dict(later)

    def _on_writer_died(self, error: WriterDiedError) -> None:
        """Replaces a writer that died. Finished commits count; the next snapshot has all of the lost one."""
        self.store.end_writer(kill=True)
        self._snapshots.clear()
        self._deaths += 1
        self.store.refresh()
        if error.stderr:
            print(error.stderr, end="", file=sys.stderr)
        if self._deaths == _MAX_DEATHS:
            self._fall_back_to_sync(f"{error}, {_MAX_DEATHS} times by now")
            return
        print(
            f"samebits: the process that writes the commits of {self.store.where} is gone: {error}. A new "
            "one is started; earlier commits are untouched",
            file=sys.stderr,
        )

    def _fall_back_to_sync(self, reason: str) -> None:
        self._sync = True
        self._await_writer()
        self.store.end_writer()
        print(
            f"samebits: commits of {self.store.where} are made by the run itself from now on: {reason}",
            file=sys.stderr,
        )
